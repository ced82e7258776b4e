"""One daemon as a process of its own, which cannot outlive this one, with its log in a file.

Three nets catch it: ``stop`` asks and then insists, leaving the ``with`` block kills its whole process group, and if this
process dies without doing either, the kernel kills the daemon (``lab/launch.py``).
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import lab.launch

STOP_TIMEOUT_S = 15.0
"""How long a daemon may take to drain and leave after SIGTERM before it is killed."""

TAIL_LINES = 12


class DaemonDied(Exception):
    """A daemon ended that should have gone on. The message says how, and shows the end of its log."""


class DaemonProcess:
    """A command that runs as its own process group, can be started again, and appends its output to ``log``."""

    def __init__(self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.command = tuple(command)
        self.log = log
        self._environment = dict(os.environ if environment is None else environment)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """Process id of the running life."""
        return self._life().pid

    @property
    def exit_status(self) -> int | None:
        """As ``subprocess``: negative for a signal, ``None`` while it runs."""
        return self._life().poll()

    def start(self) -> None:
        """Begin a life. The previous one must be over. The thread that calls this must live as long as the daemon."""
        if self._process is not None and self._process.poll() is None:
            raise RuntimeError(f"{self.name} is running already (pid {self._process.pid})")
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", lab.launch.__file__, str(os.getpid()), *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )

    async def exited(self) -> int:
        """Wait for the end of this life and return its exit status, at once if it is over. No thread, no polling."""
        process = self._life()
        if process.poll() is None:
            descriptor = os.pidfd_open(process.pid)
            try:
                await _readable(descriptor)
            finally:
                os.close(descriptor)
        return process.wait()

    async def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Send SIGTERM, wait up to ``timeout_s`` for the drain, then kill. Returns the exit status."""
        process = self._life()
        if process.poll() is None:
            process.terminate()
            try:
                await asyncio.wait_for(self.exited(), timeout_s)
            except TimeoutError:
                self.kill()
        return process.wait()

    def kill(self) -> None:
        """Kill the whole process group now and wait for it. Changes nothing if it never ran or is over.

        A daemon that is over is not signalled: its process group's number may already belong to someone else.
        """
        if self._process is None or self._process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def epitaph(self) -> str:
        """How this life ended, and the last lines of its log."""
        status = self.exit_status
        if status is None:
            ending = "is still running"
        elif status < 0:
            ending = f"was killed by {signal.Signals(-status).name}"
        else:
            ending = f"exited with status {status}"
        return f"{self.name} {ending}; the end of its log:\n{tail(self.log)}"

    def _life(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError(f"{self.name} was never started")
        return self._process


def tail(path: Path, lines: int = TAIL_LINES) -> str:
    """The last ``lines`` lines of a text file, indented; a placeholder if it is empty."""
    with path.open("r", encoding="utf-8", errors="replace") as file:
        last = deque(file, maxlen=lines)
    return "".join(f"  | {line}" for line in last).rstrip("\n") or "  | (empty)"


async def _readable(descriptor: int) -> None:
    """Wait until ``descriptor`` is readable; for a pidfd that is the end of its process."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def note() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(descriptor, note)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)
