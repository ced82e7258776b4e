"""Real daemons, one of them killed or stopped while a one-sided write is on its way: nothing is freed without proof.

The prefill's copies stop half-way until the test lets them go on, so it is certain that grants are out and not written. Then
the decode daemon is stopped, and the copies go on: each write is handed to the engine, and cannot be completed.
"""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.chaos.timers import DECODE_TIMERS, PREFILL_TIMERS
from lab.stepping import DONE, HALF, CopySteps
from protocol.layout import PageRun
from runtime.planes import ONE_SIDED_PLANES
from tests.conformance.planes import PLANES
from tests.integration.daemons import CHUNK_TOKENS, DECODE_TP, WAIT_S, Deployment
from tests.integration.test_moving_kv import carry, runs

WRITERS = 2
"""Copies that run at the same time: one per worker of the prefill daemon."""
SOURCE, DESTINATION = runs(5, CHUNK_TOKENS)


class Stepped:
    """A deployment whose prefill copies in steps."""

    def __init__(self, folder: Path, plane: str) -> None:
        self.steps = CopySteps(folder / "steps")
        self.deployment = Deployment(folder, plane)
        self.deployment.decode.command += DECODE_TIMERS
        settings = self.deployment.prefill.command[3:]
        stepped = [sys.executable, "-m", "lab.stepped_daemon", f"{self.steps.directory}"]
        self.deployment.prefill.command = [*stepped, *settings, *PREFILL_TIMERS]

    def begin(self) -> None:
        """Have one chunk granted on every decode rank, and two of its writes handed to an engine whose peer is stopped."""
        deployment = self.deployment.start()
        deployment.expect("room", CHUNK_TOKENS, DESTINATION)
        deployment.submit("room", CHUNK_TOKENS, SOURCE)
        self.until(HALF, WRITERS)
        self.until_counted("grants", DECODE_TP)
        self.stop_decode()
        self.steps.go(WRITERS)
        self.until(DONE, WRITERS)
        # The engine was called by the worker that said it was done; nothing tells from outside what has left the process.
        threading.Event().wait(0.2)

    def until(self, note: str, copies: int) -> None:
        """Wait until so many copies have said so."""
        asyncio.run(self.steps.until(note, copies, WAIT_S, f"{copies} copies said {note!r}"))

    def stop_decode(self) -> None:
        """Stop every thread of the decode daemon. Right after the signal some of them may still run for a while."""
        process = self.deployment.decode.process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

    def until_counted(self, counter: str, ranks: int) -> None:
        """Wait until so many decode ranks have counted one."""
        for _ in range(10 * WAIT_S):
            if sum(bool(counters.get(counter)) for counters in self.counters()) >= ranks:
                return
            threading.Event().wait(0.1)
        pytest.fail(f"{counter}: never on {ranks} ranks")

    def released_where_replaced(self) -> int:
        """How many grants were freed early on ranks whose region had to be replaced."""
        return sum(counters.get("grants_released", 0) for counters in self.counters() if counters.get("regions_replaced"))

    def counters(self) -> list[dict[str, int]]:
        """The counters of each decode machine."""
        return [rank["counters"] for rank in self.deployment.decode_engine.inspect().result(WAIT_S)["ranks"]]


@pytest.fixture(params=[plane for plane in PLANES if plane in ONE_SIDED_PLANES])
def stepped(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stepped]:
    """A deployment on each one-sided plane in turn."""
    made = Stepped(tmp_path, request.param)
    with made.deployment:
        yield made
    made.steps.close()


def test_a_writer_killed_in_a_write_proves_nothing(stepped: Stepped) -> None:
    """Its bytes may land after its death: the grants are quarantined, the regions replaced and kept, and a new life goes on."""
    deployment = stepped.deployment
    stepped.begin()
    deployment.prefill.end(signal.SIGKILL)
    deployment.decode.signal(signal.SIGCONT)
    stepped.until_counted("regions_replaced", WRITERS)
    assert stepped.released_where_replaced() == 0
    assert "session_proven_quiet" not in deployment.decode.log
    stepped.steps.go()
    deployment.prefill.start()
    deployment.register_prefill()
    carry(deployment, "after", 100, seed=9)
    codes = {deployment.decode_engine.wait_room("room", rank).result(WAIT_S).code for rank in range(DECODE_TP)}
    assert codes == {"prefill_gone"}
    assert "region_released" not in deployment.decode.log


def test_a_decode_rank_killed_in_a_write_fails_the_room(stepped: Stepped) -> None:
    """The write ends with the engine's error, the room fails once the decode daemon is back, and new rooms go through."""
    deployment = stepped.deployment
    stepped.begin()
    deployment.decode.end(signal.SIGKILL)
    stepped.steps.go()
    deployment.decode.start()
    deployment.register_decode()
    outcomes = [deployment.prefill_engine.wait_room("room", rank).result(WAIT_S) for rank in range(2)]
    assert [outcome.done for outcome in outcomes] == [False, False]
    assert {outcome.code for outcome in outcomes} <= {"decode_restarted", "unknown_room", "write_failed"}
    assert "write_failed" in deployment.prefill.log
    carry(deployment, "after", 100, seed=9)


def test_a_write_that_hangs_is_made_again_elsewhere(stepped: Stepped) -> None:
    """It is given up in time; its late bytes reach a grant that nobody gets again, and the room is complete and right."""
    deployment = stepped.deployment
    stepped.begin()
    stepped.steps.go()
    for _ in range(10 * WAIT_S):
        if deployment.prefill.log.count('"write_failed"') >= 1:
            break
        threading.Event().wait(0.1)
    assert "took no byte" in deployment.prefill.log
    deployment.decode.signal(signal.SIGCONT)
    assert [outcome.code for outcome in deployment.outcomes("room") if not outcome.done] == []
    assert deployment.differences(CHUNK_TOKENS, SOURCE, DESTINATION) == 0
    stepped.until_counted("regions_replaced", WRITERS)
    assert stepped.released_where_replaced() == 0
    carry(deployment, "after", 100, seed=9)


def test_source_and_destination_are_scattered_pages() -> None:
    """The rooms above go through more than one page on either side."""
    assert isinstance(SOURCE, PageRun)
    assert len(SOURCE.pages) > 1
    assert len(DESTINATION.pages) > 1
