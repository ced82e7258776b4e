"""Runs of free TCP ports on the loopback interface.

Ports are chosen before the daemons that bind them start, so another process could choose the same ones meanwhile. Each process
that asks here therefore keeps a stretch of ports to itself, told apart by a kernel lock that ends with it.
"""

import fcntl
import os
import random
import socket
import tempfile
from functools import cache
from pathlib import Path

LOWEST, HIGHEST = 15_000, 32_000
"""Below the range from which the kernel takes ports for outgoing connections, so that those cannot take a port in between."""
STRETCH = 500
"""Ports that one process keeps to itself."""

_TRIES = 200


class NoFreePorts(OSError):
    """No run of free ports was found."""


def free_port_base(count: int, host: str = "127.0.0.1", among: range | None = None) -> int:
    """The first of ``count`` consecutive ports that were all free a moment ago. Raises ``NoFreePorts``."""
    ports = own_stretch() if among is None else among
    for _ in range(_TRIES):
        base = random.randrange(ports.start, ports.stop - count + 1)
        if all(_is_free(host, base + step) for step in range(count)):
            return base
    raise NoFreePorts(f"no {count} consecutive free ports between {ports.start} and {ports.stop} on {host}")


@cache
def own_stretch() -> range:
    """Ports that no other process of this user chooses from while this one lives; all of them if every stretch is taken."""
    folder = Path(tempfile.gettempdir(), f"pd-staging-lab-ports-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    starts = list(range(LOWEST, HIGHEST - STRETCH + 1, STRETCH))
    random.shuffle(starts)
    return next((range(start, start + STRETCH) for start in starts if _lock(folder / f"{start}")), range(LOWEST, HIGHEST))


def _lock(path: Path) -> bool:
    """Take the lock for the rest of this process's life: the descriptor stays open."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    return True


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
