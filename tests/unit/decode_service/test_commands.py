"""What an engine may ask of a decode daemon: every wrong field is named, nothing is changed by a refusal."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from decode_service.server import DecodeStagingServer
from runtime.engine_protocol import EngineError
from tests.unit.embedded import PAGES, RUN, WAIT_S, decode_config, private_pool

ROOM = {"room": "room", "rank": 0, "group": "g", "num_tokens": 8, "pages": [0, 1], "first_token": 0}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DecodeStagingServer]:
    """A running server with a pool at rank 0."""
    with DecodeStagingServer(decode_config(tmp_path)) as running:
        running.engine.attach_pool(0, private_pool()).result(WAIT_S)
        yield running


def refused(server: DecodeStagingServer, op: str, **body: Any) -> EngineError:
    """The refusal of one command."""
    with pytest.raises(EngineError) as caught:
        server._calls.call(op, **body).result(WAIT_S)
    return caught.value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rank", None),
        ("rank", True),
        ("rank", 10**9),
        ("room", ""),
        ("room", "é"),
        ("group", 7),
        ("num_tokens", 0),
        ("num_tokens", 1.5),
        ("pages", "01"),
        ("pages", [PAGES]),
        ("pages", [-1, 0]),
        ("pages", [0]),
        ("pages", [0, 0]),
        ("first_token", -1),
        ("deadline_s", 0),
        ("deadline_s", "soon"),
    ],
)
def test_a_wrong_field_is_named(server: DecodeStagingServer, field: str, value: object) -> None:
    """The refusal names the field, and the room is not known afterwards."""
    error = refused(server, "register_room", **{**ROOM, field: value})
    assert (error.code, error.field) == ("invalid", field)
    assert refused(server, "wait_room", room="room", rank=0).code == "unknown_room"


def test_ranks_rooms_and_commands_that_do_not_exist(server: DecodeStagingServer) -> None:
    """Each is refused with its own code."""
    assert refused(server, "register_room", **{**ROOM, "rank": 5}).code == "unknown_rank"
    assert refused(server, "abort_room", room="none", rank=0).code == "unknown_room"
    assert refused(server, "dance").code == "unknown_op"
    assert refused(server, "register_pool", rank=0, pool={"path": 3}).code == "pool"


def test_a_room_id_is_taken_once(server: DecodeStagingServer) -> None:
    """A live id and one that is over are both refused; waiting for one that is over is answered at once."""
    server.engine.register_room("room", 0, "g", 8, RUN).result(WAIT_S)
    assert refused(server, "register_room", **ROOM).code != "invalid"
    server.engine.abort_room("room", 0, "over").result(WAIT_S)
    outcome = server.engine.wait_room("room", 0).result(WAIT_S)
    assert (outcome.code, outcome.message) == ("aborted", "over")
    assert refused(server, "register_room", **ROOM).code != "invalid"
    assert server.engine.wait_room("room", 0).result(WAIT_S) == outcome


def test_a_wait_has_its_own_end(server: DecodeStagingServer) -> None:
    """A wait that times out says so and leaves the room alone."""
    server.engine.register_room("room", 0, "g", 8, RUN).result(WAIT_S)
    with pytest.raises(EngineError, match="still live"):
        server.engine.wait_room("room", 0, timeout_s=0.01).result(WAIT_S)
    waiting = server.engine.wait_room("room", 0)
    server.engine.abort_room("room", 0).result(WAIT_S)
    assert not waiting.result(WAIT_S).done


def test_inspect_shows_one_rank_or_all(server: DecodeStagingServer) -> None:
    """Snapshots are plain values with the rank's endpoint."""
    everything = server.engine.inspect().result(WAIT_S)
    assert everything["ranks"][0]["endpoint"] == server.endpoints["control_0"]
    assert len(server.engine.inspect(0).result(WAIT_S)["ranks"]) == 1
