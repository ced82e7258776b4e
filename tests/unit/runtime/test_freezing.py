"""A machine's memory is copied whole, and what is written of it is plain JSON."""

import json
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from itertools import count
from random import Random
from weakref import ref

import pytest

from protocol.layout import PageRun
from protocol.messages import GrantStatus
from protocol.watermark import Watermark
from runtime.freezing import Encoder, FreezeError, Ref, TooLargeError, freeze


@dataclass(slots=True, eq=False)
class Inner:
    """A part that several others point at."""

    name: str
    owner: "Memory | None" = None


class Memory:
    """A small machine with one of everything."""

    def __init__(self) -> None:
        self.inner = Inner("inner", self)
        self.again = self.inner
        self.table: dict[object, object] = {"a": 1, Watermark(1, 2): [1, 2]}
        self.order: OrderedDict[str, int] = OrderedDict(x=1)
        self.counts: Counter[str] = Counter(a=2)
        self.sums: defaultdict[str, float] = defaultdict(float, g=1.5)
        self.latest: deque[int] = deque([1, 2], maxlen=2)
        self.marks = {3}
        self.bits = bytearray(b"\x01")
        self.serial = count(7)
        self.random = Random(1)
        self.pages = PageRun((1, 2), 0)


def test_an_object_that_is_shared_is_one_node() -> None:
    """Two members that are the same object, and a cycle back to the root, point at the same node."""
    frozen = freeze(Memory())
    root = frozen.nodes[0]
    members = dict(zip(*root.content, strict=True))
    assert members["inner"] == members["again"] == Ref(1)
    assert dict(zip(*frozen.nodes[1].content, strict=True)) == {"name": "inner", "owner": Ref(0)}


def test_what_comes_next_is_not_taken() -> None:
    """A counter that is copied still gives the number that it would have given."""
    memory = Memory()
    freeze(memory)
    assert next(memory.serial) == 7


def test_a_copy_does_not_change_with_its_original() -> None:
    """What the machine does after it was copied is not in the copy."""
    memory = Memory()
    frozen = freeze(memory)
    before = Encoder().text([list(node.content) for node in frozen.nodes if node.kind == "dict"])
    memory.table["b"] = 2
    memory.marks.add(4)
    assert Encoder().text([list(node.content) for node in frozen.nodes if node.kind == "dict"]) == before


def test_frozen_values_are_kept_as_they_are() -> None:
    """Nothing that cannot change is copied: it costs a reference, however large it is."""
    memory = Memory()
    assert any(memory.pages is member for member in freeze(memory).nodes[0].content[1])


def test_a_listener_on_a_method_is_no_memory() -> None:
    """A method replaced on one object alone is left out; any other function is an error."""

    class Machine:
        """Has one verb."""

        def verb(self) -> None:
            """Do nothing."""

    machine = Machine()
    setattr(machine, "verb", lambda: None)  # noqa: B010 - a method cannot be assigned to
    assert freeze(machine).nodes[0].content == ((), ())
    setattr(machine, "callback", lambda: None)  # noqa: B010
    with pytest.raises(FreezeError, match="function"):
        freeze(machine)


def test_a_large_machine_is_refused() -> None:
    """Beyond the limit of nodes nothing is copied, so that no daemon stands still for it."""
    with pytest.raises(TooLargeError):
        freeze([[] for _ in range(10)], max_nodes=10)
    assert len(freeze([[] for _ in range(9)], max_nodes=10).nodes) == 10


def test_a_heavy_machine_is_refused() -> None:
    """A bound on the estimated bytes holds for objects and for what stands in them."""
    weight = freeze([[1], [2]]).weight
    assert freeze([[1], [2]], max_weight=weight).weight == weight
    for heavier in ([[1], [2], []], [[1], [2, 3]]):
        with pytest.raises(TooLargeError):
            freeze(heavier, max_weight=weight)


def test_a_large_table_of_values_is_one_node() -> None:
    """A table of texts and tuples costs one node, whatever its size."""
    assert len(freeze({f"{n}": (GrantStatus.DONE, 1.0) for n in range(1000)}).nodes) == 1


@dataclass(frozen=True)
class Large:
    """More than a few characters."""

    text: str
    more: tuple[int, ...] = field(default=tuple(range(100)))


def test_equal_large_values_are_written_once() -> None:
    """A large frozen value is written before its first use and referred to after that."""
    encoder = Encoder()
    assert encoder.plain((Large("a"), Large("a"), Large("b"))) == [{"v": 0}, {"v": 0}, {"v": 1}]
    assert [json.loads(text)["f"][0] for text in encoder.take_new_values()] == ["a", "b"]


def test_what_was_written_is_let_go() -> None:
    """An encoder that has handed a value over as text refers to it later on without keeping the object."""
    encoder, value = Encoder(), Large("a")
    written = ref(value)
    assert (encoder.plain(value), len(encoder.take_new_values())) == ({"v": 0}, 1)
    del value
    assert written() is None
    assert (encoder.plain(Large("a")), encoder.take_new_values()) == ({"v": 0}, ())


def test_what_is_unknown_cannot_be_written() -> None:
    """Objects without fields, and containers that change, are errors and never half written."""
    for value in (object(), {1}, Inner("x")):
        with pytest.raises(FreezeError, match="cannot be written"):
            Encoder().plain(value)
