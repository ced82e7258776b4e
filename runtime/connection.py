"""One socket's outgoing connection, and whether it stands: zmq itself queues for a peer that may never have been there.

The socket is connected in the background and for ever. What has happened is known from its monitor, so ``connected`` is as old
as the last call of ``read``: a message sent in between goes to the connection that ended, or to the next one.
"""

from collections.abc import Callable

from runtime.endpoint import Socket, connect_socket, reconnect_socket
from runtime.errors import StartError
from runtime.monitor import (
    CONNECT_RETRIED,
    DISCONNECTED,
    HANDSHAKE_FAILED,
    HANDSHAKE_SUCCEEDED,
    ConnectionEvent,
    ConnectionMonitor,
)

_EVENTS = HANDSHAKE_FAILED | HANDSHAKE_SUCCEEDED | DISCONNECTED | CONNECT_RETRIED


def ignore(event: ConnectionEvent) -> None:
    """It is enough to know whether the connection stands."""


class Connection:
    """Connects ``socket`` and keeps it so. Raises ``StartError``, the socket being closed then."""

    def __init__(self, socket: Socket, address: str, on_event: Callable[[ConnectionEvent], None] = ignore) -> None:
        self.address = address
        self.connected = False
        """True from the end of a handshake, in which keys are judged, to the end of the connection."""
        self._socket = socket
        self._on_event = on_event
        try:
            self._monitor = ConnectionMonitor(socket, _EVENTS, self._changed)
        except StartError:
            socket.close()
            raise
        try:
            connect_socket(socket, address)
        except StartError:
            self._monitor.socket.close()
            raise

    @property
    def source(self) -> Socket:
        """What a loop polls to know when to ``read``."""
        return self._monitor.socket

    def read(self, limit: int) -> bool:
        """Take note of at most ``limit`` events; true if there may be more."""
        return self._monitor.read(limit)

    def renew(self) -> None:
        """Give the connection up, with all that waits in it, and make a new one with the socket's options as they are now."""
        self.connected = False
        reconnect_socket(self._socket, self.address)

    def close(self) -> None:
        """Stop watching; before the socket is closed. Closing again changes nothing."""
        if not self._monitor.socket.closed:
            self._monitor.close()

    def _changed(self, event: ConnectionEvent) -> None:
        if event.name == "HANDSHAKE_SUCCEEDED":
            self.connected = True
            self._on_event(event)
        else:
            # Whoever is told of an end still sees whether there was a connection that ended.
            self._on_event(event)
            self.connected = False
