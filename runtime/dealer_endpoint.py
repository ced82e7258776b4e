"""The connecting side of control traffic: one peer, which may come, go and come back.

Its socket has one queue each way, which outlive connections: what was handed over when a connection ended goes out on the
next one, and what the former one brought is still read. So a peer that came back may hear as many messages to its former life
as the queue holds, and this side an answer of that life; all of them name the session or the incarnation that they belong to.
What is sent while there is no connection is refused.
"""

from collections.abc import Callable, Sequence

import zmq

from protocol.limits import MAX_FRAMES
from runtime.connection import Connection
from runtime.endpoint import (
    CONTROL_LIMITS,
    Context,
    EndpointCounters,
    SendOutcome,
    Socket,
    SocketLimits,
    open_socket,
    receive_frames,
    send_frames,
)


class DealerEndpoint:
    """A DEALER and its connection, whose events somebody must ``read``. Raises ``StartError`` if no socket is left."""

    def __init__(
        self,
        context: Context,
        address: str,
        limits: SocketLimits = CONTROL_LIMITS,
        connect: Callable[[Socket, str], Connection] = Connection,
    ) -> None:
        self.socket = open_socket(context, zmq.DEALER, limits)
        self.connection = connect(self.socket, address)
        self.address = address
        self.counters = EndpointCounters()

    def send(self, frames: Sequence[bytes]) -> SendOutcome:
        """Send without blocking; ``FULL`` also while there is no connection."""
        outcome = send_frames(self.socket, frames) if self.connection.connected else SendOutcome.FULL
        self.counters.sends[outcome] += 1
        return outcome

    def receive(self) -> list[bytes] | None:
        """The next message, at most ``MAX_FRAMES + 1`` frames of it, or ``None``."""
        frames = receive_frames(self.socket)
        if frames is None:
            return None
        self.counters.received += 1
        return frames[: MAX_FRAMES + 1]

    def close(self, linger_ms: int = 0) -> None:
        """Close; what was just sent gets at most ``linger_ms`` to leave."""
        self.connection.close()
        self.socket.close(linger_ms)
