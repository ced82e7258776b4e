"""Runs of free TCP ports on the loopback interface."""

import random
import socket

LOWEST, HIGHEST = 15_000, 32_000
"""Below the range from which the kernel takes ports for outgoing connections, so that those cannot take a port in between."""

_TRIES = 200


class NoFreePorts(OSError):
    """No run of free ports was found."""


def free_port_base(count: int, host: str = "127.0.0.1") -> int:
    """The first of ``count`` consecutive ports that were all free a moment ago. Raises ``NoFreePorts``."""
    for _ in range(_TRIES):
        base = random.randrange(LOWEST, HIGHEST - count)
        if all(_is_free(host, base + step) for step in range(count)):
            return base
    raise NoFreePorts(f"no {count} consecutive free ports between {LOWEST} and {HIGHEST} on {host}")


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
