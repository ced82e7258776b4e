"""Both daemons as processes of their own, moving real KV between real pools."""

import signal
import subprocess
from pathlib import Path
from random import Random

import pytest

from protocol.layout import PageRun
from runtime.engine_protocol import EngineError
from tests.conformance.planes import PLANES
from tests.integration.daemons import (
    CHUNK_BYTES,
    CHUNK_TOKENS,
    DECODE_PAGE,
    DECODE_TP,
    PAGES,
    PREFILL_PAGE,
    WAIT_S,
    Deployment,
)


def runs(seed: int, num_tokens: int) -> tuple[PageRun, PageRun]:
    """Scattered pages on both sides, starting inside a page."""
    order = Random(seed)
    first_source, first_destination = order.randrange(PREFILL_PAGE), order.randrange(DECODE_PAGE)
    source = order.sample(range(PAGES), -(-(first_source + num_tokens) // PREFILL_PAGE))
    destination = order.sample(range(PAGES), -(-(first_destination + num_tokens) // DECODE_PAGE))
    return PageRun(tuple(source), first_source), PageRun(tuple(destination), first_destination)


def longer(run: PageRun, num_tokens: int) -> PageRun:
    """Room for ``num_tokens`` tokens, beginning as ``run`` does."""
    needed = -(-(run.first_token + num_tokens) // DECODE_PAGE)
    spare = [page for page in range(PAGES) if page not in run.pages]
    return PageRun((*run.pages, *spare)[:needed], run.first_token)


def carry(deployment: Deployment, room: str, num_tokens: int, seed: int = 1) -> None:
    """Move one room and compare every byte."""
    source, destination = runs(seed, num_tokens)
    deployment.expect(room, num_tokens, destination)
    deployment.submit(room, num_tokens, source)
    assert [outcome.code for outcome in deployment.outcomes(room) if not outcome.done] == []
    assert deployment.differences(num_tokens, source, destination) == 0


@pytest.mark.parametrize("plane", PLANES)
@pytest.mark.parametrize("num_tokens", [1, CHUNK_TOKENS, 5 * CHUNK_TOKENS + 7])
def test_every_byte_arrives(tmp_path: Path, plane: str, num_tokens: int) -> None:
    """A room of any length goes through a ring of one and a half chunks, byte for byte, and both daemons stop with status 0."""
    with Deployment(tmp_path, plane).start() as deployment:
        carry(deployment, "room", num_tokens)
        assert deployment.prefill.end() == 0
        assert deployment.decode.end() == 0
        assert list(deployment.segments.iterdir()) == []
        assert list(deployment.runtime.iterdir()) == []


def test_many_rooms_at_once_and_either_side_first(tmp_path: Path) -> None:
    """Rooms that are submitted before they are registered, and others after, all go through side by side."""
    with Deployment(tmp_path, "shm").start() as deployment:
        rooms = {f"room-{number}": runs(number, 16) for number in range(8)}
        for number, (room, (source, destination)) in enumerate(rooms.items()):
            steps = [lambda room=room, d=destination: deployment.expect(room, 16, d)]
            steps.append(lambda room=room, s=source: deployment.submit(room, 16, s))
            for step in steps if number % 2 else reversed(steps):
                step()
        for room in rooms:
            assert all(outcome.done for outcome in deployment.outcomes(room))


def test_daemons_start_in_any_order(tmp_path: Path) -> None:
    """The prefill daemon may take rooms before the decode daemon exists."""
    with Deployment(tmp_path, "shm") as deployment:
        deployment.prefill.start()
        deployment.register_prefill()
        source, destination = runs(3, 100)
        deployment.submit("room", 100, source)
        deployment.decode.start()
        deployment.register_decode()
        deployment.expect("room", 100, destination)
        assert all(outcome.done for outcome in deployment.outcomes("room"))
        assert deployment.differences(100, source, destination) == 0


@pytest.mark.parametrize("plane", PLANES)
@pytest.mark.parametrize("victim", ["decode", "prefill"])
def test_a_killed_daemon_fails_its_rooms_and_comes_back(tmp_path: Path, plane: str, victim: str) -> None:
    """Kill one side in the middle of a room: the room fails on both sides, and after the restart new rooms go through."""
    with Deployment(tmp_path, plane).start() as deployment:
        carry(deployment, "before", 100)
        source, destination = runs(5, 200)
        deployment.expect("during", 300, longer(destination, 300))
        deployment.submit("during", 200, source, finish=False)
        daemon = getattr(deployment, victim)
        daemon.end(signal.SIGKILL)
        daemon.start()
        deployment.register_decode() if victim == "decode" else deployment.register_prefill()
        carry(deployment, "after", 100, seed=9)
        survivor = deployment.prefill_engine if victim == "decode" else deployment.decode_engine
        outcome = survivor.wait_room("during", 0).result(WAIT_S)
        # A decode rank that had not answered for the room yet is asked again, and its new life does not know the room.
        assert outcome.code in ({"decode_restarted", "unknown_room"} if victim == "decode" else {"prefill_gone"})


def test_an_abort_reaches_the_other_side(tmp_path: Path) -> None:
    """A room that the decode engine gives up fails on every prefill rank, and the ring is empty again for the next one."""
    with Deployment(tmp_path, "shm").start() as deployment:
        source, destination = runs(2, 64)
        deployment.expect("room", 100, longer(destination, 100))
        deployment.submit("room", 64, source, finish=False)
        for rank in range(DECODE_TP):
            deployment.decode_engine.abort_room("room", rank, "changed my mind").result(WAIT_S)
        outcomes = deployment.outcomes("room")
        # The news of one decode rank's abort may reach the others by way of the prefill before their own engine's does.
        assert {outcome.code for outcome in outcomes} <= {"aborted", "aborted_by_decode", "aborted_by_prefill"}
        carry(deployment, "next", 64)


def test_a_ring_smaller_than_a_chunk_is_refused_at_registration(tmp_path: Path) -> None:
    """The engine is told which setting is too small, what a chunk takes and what to do; the daemon stays up."""
    with Deployment(tmp_path, "shm", ring_bytes=CHUNK_BYTES - 1) as deployment:
        deployment.decode.start()
        with pytest.raises(EngineError, match=rf"ring_bytes: .* takes {CHUNK_BYTES} bytes .* raise ring_bytes"):
            deployment.register_decode()
        assert deployment.decode_engine.ping().result(WAIT_S)["service"] == "decode"


def test_two_daemons_on_one_port(tmp_path: Path) -> None:
    """The second daemon exits with status 1 and says which address is taken; the first one does not notice."""
    with Deployment(tmp_path, "shm").start() as deployment:
        command = [*deployment.decode.command, "--decode-id", "other"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
        assert ended.returncode == 1
        assert f"listen on {deployment.endpoints[0]}: the address is in use" in ended.stderr
        assert [path.name for path in deployment.runtime.iterdir() if path.name.startswith("other")] == []
        carry(deployment, "room", 40)


def test_segments_of_a_killed_daemon_are_swept(tmp_path: Path) -> None:
    """A daemon that was killed leaves its segments; its next life removes them and says so."""
    with Deployment(tmp_path, "shm").start() as deployment:
        carry(deployment, "room", 40)
        stale = {path.name for path in deployment.segments.iterdir() if not path.name.endswith(".lock")}
        deployment.decode.end(signal.SIGKILL)
        deployment.decode.start()
        deployment.register_decode()
        left = {path.name for path in deployment.segments.iterdir()}
        assert len(stale) == DECODE_TP
        assert not stale & left
        assert deployment.decode.log.count("stale_segment_removed") == DECODE_TP
