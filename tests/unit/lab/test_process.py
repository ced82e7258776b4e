"""A daemon process is started, stopped, killed and noticed."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from lab.process import DaemonProcess, tail

READY_THEN_WAIT = "print('ready', flush=True); import sys, time\nwhile True: time.sleep(60)"
IGNORES_SIGTERM = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(os.environ["READY"], "wb") as ready:
    ready.write(b"x")
while True:
    time.sleep(60)
"""


def daemon(tmp_path: Path, code: str, **environment: str) -> DaemonProcess:
    """A Python program as a daemon."""
    return DaemonProcess("echo", [sys.executable, "-c", code], tmp_path / "log", {**os.environ, **environment})


def test_exit_is_noticed_with_status_and_log(tmp_path: Path) -> None:
    """The end of a daemon resolves ``exited`` and its epitaph shows the status and the log's end."""
    with daemon(tmp_path, "print('last words'); raise SystemExit(3)") as process:
        process.start()
        assert asyncio.run(process.exited()) == 3
        assert process.epitaph() == "echo exited with status 3; the end of its log:\n  | last words"


def test_kill_is_noticed_as_a_signal(tmp_path: Path) -> None:
    """SIGKILL from anywhere resolves ``exited`` and is named in the epitaph."""

    async def scenario(process: DaemonProcess) -> int:
        waiting = asyncio.create_task(process.exited())
        os.kill(process.pid, signal.SIGKILL)
        return await waiting

    with daemon(tmp_path, READY_THEN_WAIT) as process:
        process.start()
        assert asyncio.run(scenario(process)) == -signal.SIGKILL
        assert "was killed by SIGKILL" in process.epitaph()


def test_a_daemon_can_be_started_again_and_appends_to_its_log(tmp_path: Path) -> None:
    """A second life needs the first to be over, and keeps the first one's log."""
    with daemon(tmp_path, "print('a life')") as process:
        process.start()
        asyncio.run(process.exited())
        process.start()
        asyncio.run(process.exited())
        assert tail(process.log) == "  | a life\n  | a life"


def test_two_lives_at_once_are_refused(tmp_path: Path) -> None:
    """Starting a running daemon is a mistake of the caller's and says so."""
    with daemon(tmp_path, READY_THEN_WAIT) as process:
        process.start()
        with pytest.raises(RuntimeError, match="is running already"):
            process.start()


def test_stop_ends_a_willing_daemon_by_sigterm(tmp_path: Path) -> None:
    """The default action of SIGTERM counts as a clean enough end."""
    with daemon(tmp_path, READY_THEN_WAIT) as process:
        process.start()
        assert asyncio.run(process.stop()) == -signal.SIGTERM


def test_stop_kills_a_daemon_that_ignores_sigterm(tmp_path: Path) -> None:
    """Nobody can refuse to leave."""
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    with daemon(tmp_path, IGNORES_SIGTERM, READY=str(ready)) as process:
        process.start()
        assert ready.read_bytes() == b"x"
        assert asyncio.run(process.stop(timeout_s=0.05)) == -signal.SIGKILL


def test_tail_keeps_the_end_of_a_long_log(tmp_path: Path) -> None:
    """Only the last lines are shown, and an empty log is said to be empty."""
    path = tmp_path / "log"
    path.write_text("")
    assert tail(path) == "  | (empty)"
    path.write_text("".join(f"{number}\n" for number in range(100)))
    assert tail(path, 2) == "  | 98\n  | 99"
