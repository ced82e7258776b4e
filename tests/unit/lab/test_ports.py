"""Ports that are handed out were free, and nobody else's."""

import socket
import subprocess
import sys

import pytest

from lab.ports import NoFreePorts, free_port_base, own_stretch


def test_a_run_of_ports_can_be_bound() -> None:
    """Every port of the run is bindable right after it was found."""
    base = free_port_base(4)
    sockets = [socket.create_server(("127.0.0.1", base + step)) for step in range(4)]
    for bound in sockets:
        bound.close()


def test_a_taken_port_is_not_handed_out() -> None:
    """Where every candidate run holds a taken port, there is none to hand out, and that is said."""
    base = free_port_base(3)
    with (
        socket.create_server(("127.0.0.1", base + 1)),
        pytest.raises(NoFreePorts, match="no 3 consecutive free ports"),
    ):
        free_port_base(3, among=range(base, base + 4))


def test_another_process_chooses_elsewhere() -> None:
    """Two processes that choose at the same time never choose the same ports, though neither has bound any yet."""
    mine = own_stretch()
    said = subprocess.run(
        [sys.executable, "-c", "from lab.ports import own_stretch; s = own_stretch(); print(s.start, s.stop)"],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout.split()
    assert set(mine).isdisjoint(range(int(said[0]), int(said[1])))
