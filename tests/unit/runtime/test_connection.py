"""Whether a connection stands is known from its events, whatever the socket would take."""

from collections.abc import Iterator

import pytest
import zmq

from lab.ports import free_port_base
from runtime.connection import Connection
from runtime.endpoint import CONTROL_LIMITS, Context, Socket, open_context, open_socket
from runtime.errors import StartError
from runtime.monitor import ConnectionEvent
from tests.unit.connecting import WAIT_MS, arrived, listening


@pytest.fixture
def context() -> Iterator[Context]:
    """A context that ends only if every socket was closed."""
    made = open_context(1, 8)
    yield made
    made.term()


def dealer(context: Context) -> Socket:
    """A socket that is not connected yet."""
    return open_socket(context, zmq.DEALER, CONTROL_LIMITS)


def read_until(connection: Connection, connected: bool) -> None:
    """Read events until the connection stands or does not."""
    while connection.connected is not connected:
        assert connection.source.poll(WAIT_MS)
        connection.read(1)


def test_it_stands_from_handshake_to_end(context: Context) -> None:
    """It is connected once its events have been read, not before; after the end no more; every event is passed on."""
    socket, events = dealer(context), list[ConnectionEvent]()
    with listening("tcp://127.0.0.1:0") as router:
        connection = Connection(socket, router.address, events.append)
        assert connection.source.poll(WAIT_MS)
        assert not connection.connected
        read_until(connection, True)
    read_until(connection, False)
    assert [event.name for event in events] == ["HANDSHAKE_SUCCEEDED", "DISCONNECTED"]
    connection.close()
    connection.close()
    socket.close()


def test_a_renewed_one_has_lost_what_waited(context: Context) -> None:
    """What was queued when the connection was given up never arrives; what is sent on the new one does."""
    socket = dealer(context)
    connection = Connection(socket, f"tcp://127.0.0.1:{free_port_base(1)}")
    socket.send(b"lost")
    connection.renew()
    with listening(connection.address) as router:
        read_until(connection, True)
        socket.send(b"arrives")
        assert arrived(router)[1] == [b"arrives"]
    connection.close()
    socket.close()


def test_an_address_that_is_none_closes_the_socket(context: Context) -> None:
    """What cannot be connected to is a start error, and neither the socket nor its monitor is left open."""
    socket = dealer(context)
    with pytest.raises(StartError, match="connect to tcp://nowhere"):
        Connection(socket, "tcp://nowhere")
    assert socket.closed


def test_without_a_socket_for_the_events_there_is_no_connection() -> None:
    """Where no socket is left for the monitor the connection's own is closed too."""
    with open_context(1, 2) as context:
        socket = dealer(context)
        with pytest.raises(StartError, match="watch a connection"):
            Connection(socket, "tcp://127.0.0.1:1")
        assert socket.closed
