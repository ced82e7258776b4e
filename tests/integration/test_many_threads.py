"""Many threads of an engine use one connection to a daemon: sockets are never shared, so nothing of it mixes."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from protocol.layout import PageRun
from tests.integration.daemons import CHUNK_TOKENS, DECODE_PAGE, WAIT_S, Deployment
from tests.integration.test_moving_kv import carry

THREADS = 8
ROOMS = 25
RUN = PageRun(tuple(range(CHUNK_TOKENS // DECODE_PAGE)))


def test_a_burst_of_calls_and_aborts_from_many_threads(tmp_path: Path) -> None:
    """Eight threads register and abort rooms at once: each hears of its own rooms, and afterwards transfers go through."""
    with Deployment(tmp_path, "shm").start() as deployment:
        engine = deployment.decode_engine

        def burst(thread: int) -> list[tuple[str, str]]:
            rooms = [f"room-{thread}-{number}" for number in range(ROOMS)]
            for call in [engine.register_room(room, 0, "p", CHUNK_TOKENS, RUN) for room in rooms]:
                call.result(WAIT_S)
            waits = [engine.wait_room(room, 0) for room in rooms]
            for call in [engine.abort_room(room, 0, f"reason of {room}") for room in rooms]:
                call.result(WAIT_S)
            return [(outcome.room, outcome.message) for outcome in (wait.result(WAIT_S) for wait in waits)]

        with ThreadPoolExecutor(THREADS) as pool:
            heard = list(pool.map(burst, range(THREADS)))
        for thread, outcomes in enumerate(heard):
            assert outcomes == [(f"room-{thread}-{number}", f"reason of room-{thread}-{number}") for number in range(ROOMS)]
        carry(deployment, "room-after", CHUNK_TOKENS)
        assert deployment.prefill.end() == 0
        assert deployment.decode.end() == 0
