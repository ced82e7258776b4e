"""What zmq knows about connections."""

import pytest
import zmq

from runtime.endpoint import CONTROL_LIMITS, RouterEndpoint, connect_socket, open_context, open_socket
from runtime.errors import StartError
from runtime.monitor import DISCONNECTED, ConnectionEvent, ConnectionMonitor


def test_a_connection_that_ends_is_reported() -> None:
    """The end of a connection is an event with its address; reading stops where nothing more waits."""
    context = open_context(1, 16)
    router = RouterEndpoint(context, "tcp://127.0.0.1:0")
    dealer = open_socket(context, zmq.DEALER, CONTROL_LIMITS)
    events: list[ConnectionEvent] = []
    monitor = ConnectionMonitor(dealer, DISCONNECTED, events.append)
    connect_socket(dealer, router.address)
    dealer.send(b"X")
    assert router.socket.poll(30_000)
    assert not monitor.read(5)
    router.close()
    assert monitor.socket.poll(30_000)
    assert not monitor.read(5)
    assert [(event.name, event.address) for event in events] == [("DISCONNECTED", router.address)]
    monitor.close()
    dealer.close()
    context.term()


def test_a_monitor_that_cannot_be_opened_is_a_start_error() -> None:
    """Where no socket is left for the monitor it is refused in words, and the monitored socket can still be closed."""
    context = open_context(1, 2)
    dealer = open_socket(context, zmq.DEALER, CONTROL_LIMITS)
    with pytest.raises(StartError, match=r"watch a connection: too many open files; raise the limit"):
        ConnectionMonitor(dealer, DISCONNECTED, lambda _: None)
    dealer.close()
    context.term()
