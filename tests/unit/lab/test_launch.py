"""A launched program never outlives its starter."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import lab.launch

STARTER = """
import sys, pathlib
from lab.process import DaemonProcess
daemon = DaemonProcess("child", [sys.executable, "-c", "import time; time.sleep(600)"], pathlib.Path(sys.argv[1]))
daemon.start()
print(daemon.pid, flush=True)
sys.stdin.read()
"""


def test_a_daemon_dies_with_a_starter_that_is_killed(tmp_path: Path) -> None:
    """After SIGKILL of the starter, which could clean nothing up, the kernel ends the daemon."""
    command = [sys.executable, "-c", STARTER, str(tmp_path / "log")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        child = os.pidfd_open(int(starter.stdout.readline()))
        starter.kill()
    try:
        asyncio.run(asyncio.wait_for(_gone(child), 10))
    finally:
        os.close(child)


async def _gone(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    await ended.wait()
    loop.remove_reader(descriptor)


def test_a_program_whose_starter_is_gone_already_does_not_start() -> None:
    """A parent that died before the bond was made is noticed, so no window is left."""
    not_our_parent = "1" if os.getpid() != 1 else "2"
    command = [sys.executable, lab.launch.__file__, not_our_parent, sys.executable, "-c", "print('ran')"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (finished.returncode, finished.stdout) == (1, "")
