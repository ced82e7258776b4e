"""Ports that are handed out were free."""

import socket

import pytest

from lab import ports
from lab.ports import NoFreePorts, free_port_base


def test_a_run_of_ports_can_be_bound() -> None:
    """Every port of the run is bindable right after it was found."""
    base = free_port_base(4)
    sockets = [socket.create_server(("127.0.0.1", base + step)) for step in range(4)]
    for bound in sockets:
        bound.close()


def test_a_taken_port_is_not_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every candidate run holds a taken port, there is none to hand out, and that is said."""
    base = free_port_base(3)
    with socket.create_server(("127.0.0.1", base + 1)):
        monkeypatch.setattr(ports, "LOWEST", base)
        monkeypatch.setattr(ports, "HIGHEST", base + 4)
        with pytest.raises(NoFreePorts, match="no 3 consecutive free ports"):
            free_port_base(3)
