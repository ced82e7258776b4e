"""A daemon that dies is started again; one that cannot live is given up."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import pytest

from lab import supervised
from lab.process import DaemonDied, DaemonProcess
from lab.supervised import Life, SupervisedDaemon

T = TypeVar("T")

ANSWERS = """
import os, time
with open(os.environ["FIFO"], "w") as fifo:
    fifo.write(str(os.getpid()))
while True:
    time.sleep(60)
"""


class FifoConnection:
    """A connection to a program that says its process id once, over a FIFO."""

    def __init__(self, fifo: Path) -> None:
        self.fifo = fifo
        self.pid = 0
        self.closed = False

    def ping(self) -> "Future[dict[str, Any]]":
        """Resolves when the program has spoken."""
        future: Future[dict[str, Any]] = Future()

        def wait() -> None:
            self.pid = int(self.fifo.read_text())
            if future.set_running_or_notify_cancel():
                future.set_result({})

        threading.Thread(target=wait, daemon=True).start()
        return future

    def close(self) -> None:
        """Note it."""
        self.closed = True


class Stage:
    """A supervised program, and what was prepared and said about it."""

    def __init__(self, tmp_path: Path, code: str) -> None:
        fifo = tmp_path / "fifo"
        os.mkfifo(fifo)
        self.prepared: list[FifoConnection] = []
        self._preparations: asyncio.Queue[None] = asyncio.Queue()
        self.said: list[str] = []
        process = DaemonProcess("echo", [sys.executable, "-c", code], tmp_path / "log", {**os.environ, "FIFO": str(fifo)})
        self.daemon = SupervisedDaemon(process, lambda: FifoConnection(fifo), self._prepare, self.said.append)

    async def _prepare(self, connection: FifoConnection) -> None:
        self.prepared.append(connection)
        self._preparations.put_nowait(None)

    async def kill_and_wait(self) -> Life[FifoConnection]:
        """SIGKILL the running life, as somebody else would, and wait for the next."""
        await self._preparations.get()
        os.kill(self.prepared[-1].pid, signal.SIGKILL)
        await self._preparations.get()
        self._preparations.put_nowait(None)
        return await self.daemon.available()


@pytest.fixture
def stage(tmp_path: Path) -> Callable[[str], Stage]:
    """Makes stages whose program is gone after the test."""
    return lambda code: Stage(tmp_path, code)


def play(stage: Stage, scenario: Coroutine[Any, Any, T]) -> T:
    """Run a scenario, and leave no process behind."""
    try:
        return asyncio.run(asyncio.wait_for(scenario, 60))
    finally:
        stage.daemon.process.kill()


def test_a_killed_daemon_comes_back_as_a_new_life(stage: Callable[[str], Stage]) -> None:
    """The next life has a new connection, its pools are registered again, and the former connection is closed."""
    echo = stage(ANSWERS)

    async def scenario() -> tuple[Life[FifoConnection], Life[FifoConnection]]:
        await echo.daemon.start()
        first = await echo.daemon.available()
        keeper = asyncio.create_task(echo.daemon.supervise())
        second = await echo.kill_and_wait()
        keeper.cancel()
        return first, second

    first, second = play(echo, scenario())
    assert (first.number, second.number) == (0, 1)
    assert first.client.closed
    assert echo.prepared == [first.client, second.client]
    assert echo.daemon.restarts == 1
    assert "was killed by SIGKILL" in echo.said[0]


def test_a_daemon_that_dies_before_it_answers_is_an_error_with_its_log(stage: Callable[[str], Stage]) -> None:
    """A start that fails says how the program ended and shows what it wrote."""
    echo = stage("raise SystemExit('port 7600 is in use')")
    with pytest.raises(DaemonDied, match=r"exited with status 1(.|\n)*port 7600 is in use"):
        play(echo, echo.daemon.start())


def test_a_daemon_that_dies_again_and_again_is_given_up(stage: Callable[[str], Stage], monkeypatch: pytest.MonkeyPatch) -> None:
    """After the last allowed restart the supervision ends with an error instead of going on for ever."""
    monkeypatch.setattr(supervised, "MAX_RESTARTS", 2)
    echo = stage(ANSWERS)

    async def scenario() -> None:
        await echo.daemon.start()
        keeper = asyncio.create_task(echo.daemon.supervise())
        for _ in range(2):
            await echo.kill_and_wait()
        os.kill(echo.prepared[-1].pid, signal.SIGKILL)
        await keeper

    with pytest.raises(DaemonDied, match="echo is given up after 2 restarts"):
        play(echo, scenario())


def test_a_daemon_that_never_answers_is_killed(stage: Callable[[str], Stage], monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait for the first answer is bounded, and the silent process does not stay."""
    monkeypatch.setattr(supervised, "START_TIMEOUT_S", 0.05)
    echo = stage("import time; time.sleep(600)")
    with pytest.raises(DaemonDied, match="no answer within"):
        play(echo, echo.daemon.start())
    assert echo.daemon.process.exit_status == -signal.SIGKILL
