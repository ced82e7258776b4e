"""What an engine may ask of a prefill daemon: every wrong field is named, nothing is changed by a refusal."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prefill_service.client import PrefillStagingClient
from runtime.engine_protocol import EngineError
from tests.unit.embedded import PAGES, RUN, WAIT_S, prefill_config, private_pool

CHUNK = {
    "room": "room",
    "rank": 0,
    "decode": ["tcp://127.0.0.1:1"],
    "token_start": 0,
    "num_tokens": 8,
    "pages": [0, 1],
    "first_token": 0,
}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[PrefillStagingClient]:
    """A running client with a pool at rank 0."""
    with PrefillStagingClient(prefill_config(tmp_path, drain_s=0.0)) as running:
        running.engine.attach_pool(0, private_pool()).result(WAIT_S)
        yield running


def refused(client: PrefillStagingClient, op: str, **body: Any) -> EngineError:
    """The refusal of one command."""
    with pytest.raises(EngineError) as caught:
        client._calls.call(op, **body).result(WAIT_S)
    return caught.value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rank", -1),
        ("room", "x" * 129),
        ("decode", []),
        ("decode", "tcp://127.0.0.1:1"),
        ("decode", ["ipc:///tmp/x"]),
        ("decode", ["tcp://127.0.0.1:99999"]),
        ("token_start", -1),
        ("num_tokens", 10**12),
        ("pages", [PAGES, 0]),
        ("pages", [0]),
        ("traceparent", "é"),
        ("traceparent", "x" * 56),
    ],
)
def test_a_wrong_field_is_named(client: PrefillStagingClient, field: str, value: object) -> None:
    """The refusal names the field, and the room is not known afterwards."""
    error = refused(client, "submit_chunk", **{**CHUNK, field: value})
    assert (error.code, error.field) == ("invalid", field)
    assert refused(client, "wait_room", room="room", rank=0).code == "unknown_room"


def test_progress_must_be_continuous(client: PrefillStagingClient) -> None:
    """Tokens that do not follow what was submitted are refused with what was expected."""
    assert "expected 0" in refused(client, "submit_chunk", **{**CHUNK, "token_start": 4, "num_tokens": 4}).message


def test_rooms_peers_and_ranks_that_do_not_exist(client: PrefillStagingClient) -> None:
    """Each is refused with its own code."""
    assert refused(client, "finish_room", room="none", rank=0).code == "unknown_room"
    assert refused(client, "abort_room", room="none", rank=0).code == "unknown_room"
    assert refused(client, "inspect", rank=3).code == "unknown_rank"
    assert refused(client, "add_peer", rank=0, endpoint="somewhere").field == "endpoint"
    assert refused(client, "add_peer", rank=0, endpoint="tcp://127.0.0.1:1", decode_rank="0").field == "decode_rank"


def test_an_aborted_room_ends_with_the_engines_reason(client: PrefillStagingClient) -> None:
    """Whoever waits hears it, and so does whoever asks later."""
    client.engine.submit_chunk("room", 0, ["tcp://127.0.0.1:1"], 0, 8, RUN).result(WAIT_S)
    waiting = client.engine.wait_room("room", 0)
    client.engine.abort_room("room", 0, "cancelled by its user").result(WAIT_S)
    outcome = waiting.result(WAIT_S)
    assert (outcome.code, outcome.message) == ("aborted", "cancelled by its user")
    assert client.engine.wait_room("room", 0).result(WAIT_S) == outcome
