"""What zmq knows about connections."""

import zmq

from runtime.endpoint import DealerEndpoint, RouterEndpoint, open_context
from runtime.monitor import DISCONNECTED, ConnectionEvent, ConnectionMonitor


def test_a_connection_that_ends_is_reported() -> None:
    """The end of a connection is an event with its address; reading stops where nothing more waits."""
    context = open_context(1, 16)
    router = RouterEndpoint(context, "tcp://127.0.0.1:0")
    dealer = DealerEndpoint(context, router.address)
    events: list[ConnectionEvent] = []
    monitor = ConnectionMonitor(dealer.socket, DISCONNECTED, events.append)
    assert dealer.socket.poll(30_000, zmq.POLLOUT)
    assert not monitor.read(5)
    router.close()
    assert monitor.socket.poll(30_000)
    assert not monitor.read(5)
    assert [(event.name, event.address) for event in events] == [("DISCONNECTED", router.address)]
    monitor.close()
    dealer.close()
    context.term()
