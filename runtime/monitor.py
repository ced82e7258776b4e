"""What zmq knows about a socket's connections and does not say through the socket itself."""

from collections.abc import Callable
from dataclasses import dataclass

import zmq
from zmq.utils.monitor import parse_monitor_message

from runtime.endpoint import Socket, start_error

HANDSHAKE_FAILED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
DISCONNECTED = zmq.EVENT_DISCONNECTED
HANDSHAKE_SUCCEEDED = zmq.EVENT_HANDSHAKE_SUCCEEDED
CONNECT_RETRIED = zmq.EVENT_CONNECT_RETRIED


@dataclass(frozen=True, slots=True)
class ConnectionEvent:
    """One event of a monitored socket: zmq's name for it, the address it concerns and the system's error or detail."""

    name: str
    address: str
    value: int


class ConnectionMonitor:
    """Reads one socket's events on the thread that owns the socket. Raises ``StartError`` if no socket is left for it."""

    def __init__(self, monitored: Socket, events: int, on_event: Callable[[ConnectionEvent], None]) -> None:
        self._monitored = monitored
        self._on_event = on_event
        try:
            self.socket: Socket = monitored.get_monitor_socket(events)
        except zmq.ZMQError as error:
            monitored.disable_monitor()
            raise start_error("watch a connection", error) from error
        self.socket.linger = 0

    def read(self, limit: int) -> bool:
        """Report at most ``limit`` waiting events; true if there may be more."""
        for _ in range(limit):
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return False
            event = parse_monitor_message(frames)
            name = zmq.Event(event["event"]).name or str(event["event"])
            self._on_event(ConnectionEvent(name, event["endpoint"].decode("utf-8", "replace"), event["value"]))
        return True

    def close(self) -> None:
        """Stop monitoring; before the monitored socket is closed."""
        self._monitored.disable_monitor()
        self.socket.close()
