"""What the decode machine wants is done, and what goes wrong with it comes back to the machine."""

import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from decode_service.scatter import scatter
from decode_service.scatter_job import Scatter
from protocol.layout import PageRun, WriterSlice
from protocol.messages import Subscribed
from runtime.pool import KvPool
from tests.unit.embedded import RUN, WAIT_S, EmbeddedPair, Stranger, subscribe


def test_a_scatter_that_fails_fails_its_room_alone(tmp_path: Path) -> None:
    """A fault while copying one room's pages is that room's failure with its reason; the next room goes through."""

    def make_scatter(rank: int) -> Scatter:
        assert rank == 0
        calls = iter(range(100))

        def first_fails(
            pool: KvPool, writer: WriterSlice, destination: PageRun, token_start: int, num_tokens: int, block: memoryview
        ) -> None:
            if next(calls) == 0:
                raise OSError("no such page")
            scatter(pool, writer, destination, token_start, num_tokens, block)

        return first_fails

    with EmbeddedPair(tmp_path, make_scatter=make_scatter) as pair:
        decode, prefill = pair.carry("unlucky", 8)
        assert not decode.done
        assert "no such page" in decode.message
        assert not prefill.done
        assert all(outcome.done for outcome in pair.carry("lucky", 8))


@pytest.mark.parametrize("piece_bytes", [4096, 1 << 20])
def test_pieces_of_any_size_are_copied(tmp_path: Path, piece_bytes: int) -> None:
    """Small pieces are copied at once and large ones by a worker, with the same result."""
    chunk_tokens = 1024
    settings = {"chunk_tokens": chunk_tokens, "piece_bytes": piece_bytes, "ring_bytes": 1 << 20}
    with EmbeddedPair(tmp_path, ("zmq",), decode=settings, prefill={"chunk_tokens": chunk_tokens}) as pair:
        assert all(outcome.done for outcome in pair.carry("room", 64))
        assert (pair.destination.memory == pair.source.memory).all()


def test_a_peer_that_is_gone_costs_one_counted_send(tmp_path: Path) -> None:
    """What is owed to a vanished connection is counted by its reason, and the others are served."""
    with EmbeddedPair(tmp_path, ("zmq",)) as pair:
        stranger = Stranger(pair.endpoint)
        stranger.say(subscribe(pair.server.config))
        while not isinstance(stranger.hear(), Subscribed):
            pass
        stranger.close()
        for number in range(3):
            assert all(outcome.done for outcome in pair.carry(f"room-{number}", 8))
        state = pair.server.engine.inspect(0).result(WAIT_S)["ranks"][0]
        assert state["sends"].get("unroutable", 0) == state["counters"].get("sends_failed_unroutable", 0)


def test_two_rooms_share_the_ring(tmp_path: Path) -> None:
    """Rooms registered together come out right although the ring holds two chunks."""
    with EmbeddedPair(tmp_path) as pair:
        for room in ("a", "b"):
            pair.server.engine.register_room(room, 0, "prefill", 40, RUN).result(WAIT_S)
        for room in ("a", "b"):
            pair.submit(room, 40)
        assert pair.server.engine.wait_room("a", 0).result(WAIT_S).done
        assert pair.server.engine.wait_room("b", 0).result(WAIT_S).done


def test_fencing_is_logged_with_its_reason(tmp_path: Path) -> None:
    """An operator reads in the log, without asking, which prefill is listened to no more and why."""
    with capture_logs() as lines, EmbeddedPair(tmp_path, ("zmq",)) as pair:
        assert all(outcome.done for outcome in pair.carry("room", 8))
        pair.client.request_stop()
        assert pair.client.join() == 0
        until = time.monotonic() + WAIT_S
        while pair.server.engine.inspect(0).result(WAIT_S)["ranks"][0]["session_count"]:
            assert time.monotonic() < until
    (line,) = [line for line in lines if line["event"] == "session_fenced"]
    assert line["prefill_id"] == "prefill-0"
    assert "it left" in line["reason"]
