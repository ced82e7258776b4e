"""What was written down becomes the same memory again, and nothing that a dump says is ever called."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from decode_service.handler import DecodeStagingHandler
from decode_service.rooms import RoomEnd
from prefill_service.handler import PrefillStagingHandler
from protocol.messages import GrantStatus
from protocol.watermark import Watermark
from runtime.freezing import Encoder, freeze
from runtime.thawing import Decoder, ThawError, find_class
from tests.unit.lab.machines import JoinedMachines


def written(value: object) -> Any:
    """As it stands in a file, small enough to need no shared values."""
    encoder = Encoder()
    text = encoder.text(value)
    assert encoder.take_new_values() == ()
    return json.loads(text)


def again(root: object) -> object:
    """Through a file and back."""
    encoder, decoder = Encoder(), Decoder()
    nodes = [(node.kind, node.name, json.loads(encoder.text(node.content))) for node in freeze(root).nodes]
    for text in encoder.take_new_values():
        decoder.add_value(json.loads(text))
    return decoder.thaw(nodes)


@pytest.mark.parametrize(
    "value",
    [
        None,
        1,
        1.5,
        float("inf"),
        "a",
        b"\x00\xff",
        (1, (2,)),
        GrantStatus.BUSY,
        Watermark(1, 2),
        RoomEnd("c", "m"),
        frozenset({1}),
    ],
    ids=repr,
)
def test_values_come_back(value: object) -> None:
    """Every kind of value that cannot change is equal to what was written, class and all."""
    back = Decoder().value(written(value))
    assert back == value
    assert type(back) is type(value)


def test_a_random_source_goes_on() -> None:
    """A source of chance gives the numbers that it would have given."""
    random = Random(5)
    random.random()
    back = again([random])
    assert isinstance(back, list)
    assert back[0].random() == random.random()


def test_both_machines_come_back_and_live() -> None:
    """Machines in the middle of their life are frozen, thawed, and decide the same as the ones that lived on."""
    machines = JoinedMachines()
    assert machines.send("room", "p", 40)
    for original in (machines.decode, machines.prefills["p"]):
        assert isinstance(original, DecodeStagingHandler | PrefillStagingHandler)
        copy = again(original)
        assert type(copy) is type(original)
        later = machines.now + 1000.0
        assert copy.tick(later) == original.tick(later)
        assert copy.snapshot() == original.snapshot()


@pytest.mark.parametrize(
    "name",
    [
        *("os:system", "builtins:eval", "subprocess:Popen", "lab.process:ServiceProcess", "runtime.loop:EventLoop"),
        *("decode_service.__main__:main", "decode_service.rooms:OrderedDict", "decode_service.rooms:nothing"),
        *(
            "decode_service.nowhere:Room",
            "protocol.watermark:START",
            "decode_service.rooms:Room.mark_scattered",
            "",
            "protocol",
        ),
    ],
)
def test_other_classes_are_not_looked_up(name: str) -> None:
    """A dump can name classes that the machines' own modules define, and nothing else."""
    with pytest.raises(ThawError):
        find_class(name)


@pytest.mark.parametrize(
    "plain",
    [
        *({"b": "zz"}, {"b": 1}, {"r": 0}, {"r": -1}, {"v": 3}, {"v": True}, {"m": [1]}, {"z": 1}, {}, {"x": 1}),
        {"e": "protocol.watermark:Watermark", "n": "x"},
        {"e": "protocol.messages:GrantStatus", "n": "nothing"},
        {"n": "protocol.messages:GrantStatus", "f": []},
        {"n": "protocol.watermark:Watermark", "f": [1]},
        {"c": "protocol.messages:Abort", "f": [1]},
        {"c": "protocol.messages:GrantStatus", "f": []},
        {"c": "decode_service.handler:DecodeStagingHandler", "f": []},
    ],
    ids=json.dumps,
)
def test_what_fits_nothing_is_an_error(plain: object) -> None:
    """Whatever a value is missing or has too much, it is one kind of error."""
    with pytest.raises(ThawError):
        Decoder().value(plain)


@pytest.mark.parametrize(
    "nodes",
    [
        [],
        [("file", "", "/etc/passwd")],
        [("defaultdict system", "", [[], []])],
        [("dict", "", [[1], []])],
        [("object", "decode_service.rooms:Room", [["no_such_member"], [1]])],
        [("random", "", [3, [1, 2], None])],
        [("count", "", -1)],
    ],
    ids=json.dumps,
)
def test_memory_that_fits_nothing_is_an_error(nodes: list[tuple[str, str, Any]]) -> None:
    """Whatever a node is missing or has too much, it is one kind of error."""
    with pytest.raises(ThawError):
        Decoder().thaw(nodes)


def test_no_constructor_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object is filled without its constructor or any hook after it."""

    def refuse(*_: object) -> None:
        raise AssertionError

    hooks: list[tuple[type, str, Callable[..., None]]] = [(RoomEnd, "__init__", refuse), (Watermark, "__init__", refuse)]
    plain = written(RoomEnd("code", "message"))
    for kind, name, hook in hooks:
        monkeypatch.setattr(kind, name, hook)
    assert Decoder().value(plain).code == "code"
