"""Sockets with bounded queues and sends that never block, and the listening side of control traffic.

ZeroMQ is not an acknowledgement: a message that was ``SENT`` may still be lost with its connection. What it promises here is
that messages arrive whole, and that no peer can make this side wait or remember more than its queues hold.
"""

import errno
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

import zmq

from protocol.limits import MAX_CONTROL_MESSAGE_BYTES, MAX_FRAMES
from runtime.errors import StartError

T = TypeVar("T")

Frames = Sequence[bytes | memoryview | zmq.Frame]
Socket = zmq.Socket[bytes]
Context = zmq.Context[Socket]
Frame = zmq.Frame
Protect = Callable[[Socket], None]
"""Sets what a socket must have before it is bound or connected."""


class SendOutcome(StrEnum):
    """What became of one send. Only ``SENT`` has left this thread; nothing is queued anywhere for the others."""

    SENT = "sent"
    FULL = "full"
    """The peer's queue is full, or there is no connection."""
    UNROUTABLE = "unroutable"
    """No connection has this route any more."""


@dataclass(frozen=True, slots=True)
class SocketLimits:
    """Bounds of one socket: queue lengths in messages, and the largest frame accepted from a peer in bytes."""

    send_queue: int = 1000
    receive_queue: int = 1000
    frame_bytes: int = MAX_CONTROL_MESSAGE_BYTES


@dataclass(slots=True)
class EndpointCounters:
    """What went through an endpoint since it was opened."""

    received: int = 0
    sends: Counter[SendOutcome] = field(default_factory=Counter)


CONTROL_LIMITS = SocketLimits()
MAX_SOCKETS = 65_000
"""A little less than zmq can count."""
RECONNECT_MS = 50
RECONNECT_MAX_MS = 1000
KEEPALIVE_S = 5
"""The kernel probes a silent connection after that long, and as often."""
UNANSWERED_MS = 15_000
"""It gives a connection up on which nothing was answered for that long."""
HANDSHAKE_MS = 5000

_CAUSES = {
    errno.EADDRINUSE: ("the address is in use", "stop the process that listens there, or choose another port"),
    errno.EADDRNOTAVAIL: ("this machine has no such address", "bind to an address of a local interface, or to 127.0.0.1"),
    errno.ENODEV: ("this machine has no such interface or address", "bind to an address of a local interface, or to 127.0.0.1"),
    errno.EACCES: ("permission denied", "use a port above 1023, or a directory that this user may write"),
    errno.EMFILE: ("too many open files", "raise the limit on open files (ulimit -n)"),
    errno.ENAMETOOLONG: ("the path is too long for a unix socket", "choose a shorter runtime directory"),
}


def open_context(io_threads: int, max_sockets: int) -> Context:
    """The sockets' own threads. Ending it waits until every socket is closed and has lingered."""
    context: Context = zmq.Context(io_threads)
    context.max_sockets = min(max_sockets, MAX_SOCKETS)
    return context


def open_socket(context: Context, kind: int, limits: SocketLimits) -> Socket:
    """A socket that cannot queue without bound, linger, or keep a dead connection. Raises ``StartError`` if none is left."""
    try:
        socket = context.socket(kind)
    except zmq.ZMQError as error:
        raise start_error("open a socket", error) from error
    socket.linger = 0
    socket.sndhwm = limits.send_queue
    socket.rcvhwm = limits.receive_queue
    socket.set(zmq.MAXMSGSIZE, limits.frame_bytes)
    # Not zmq's own heartbeats: libzmq 4.3 ends the whole process if one is due on a broken connection whose queue is full.
    socket.set(zmq.TCP_KEEPALIVE, 1)
    socket.set(zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_S)
    socket.set(zmq.TCP_KEEPALIVE_INTVL, KEEPALIVE_S)
    socket.set(zmq.TCP_KEEPALIVE_CNT, UNANSWERED_MS // 1000 // KEEPALIVE_S)
    socket.set(zmq.TCP_MAXRT, UNANSWERED_MS)
    socket.set(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    return socket


def bind_socket(socket: Socket, address: str) -> str:
    """Bind, or close the socket and raise ``StartError``. Returns the address with the port that was really taken."""
    _allow_ipv6(socket, address)
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        socket.close()
        raise start_error(f"listen on {address}", error) from error
    if not address.startswith("tcp://"):
        return address
    taken: bytes = socket.getsockopt(zmq.LAST_ENDPOINT)  # type: ignore[assignment] # this option is bytes
    port = taken.rstrip(b"\0").decode("ascii").rpartition(":")[2]
    return f"{address.rpartition(':')[0]}:{port}"


def connect_socket(socket: Socket, address: str) -> None:
    """Connect in the background and for ever, at most ``RECONNECT_MAX_MS`` apart.

    What is sent waits for the connection and outlives it, unless the socket has ``IMMEDIATE``. Never set that on one which
    receives messages of several frames: libzmq 4.3 drops what such a socket holds of a connection when it takes note of its
    end. Where that happens between two frames of a message, the next read ends the process (assertion ``!_more``).
    """
    _allow_ipv6(socket, address)
    socket.set(zmq.RECONNECT_IVL, RECONNECT_MS)
    socket.set(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
    try:
        socket.connect(address)
    except zmq.ZMQError as error:
        socket.close()
        raise start_error(f"connect to {address}", error) from error


def reconnect_socket(socket: Socket, address: str) -> None:
    """Give the connection to ``address`` up and make a new one, with the socket's options as they are now."""
    try:
        socket.disconnect(address)
    except zmq.ZMQError as error:
        # After a failed handshake libzmq may have given it up by itself.
        if error.errno != errno.ENOENT:
            raise
    try:
        socket.connect(address)
    except zmq.ZMQError as error:
        raise start_error(f"connect to {address}", error) from error


def _allow_ipv6(socket: Socket, address: str) -> None:
    # Only for literal addresses: with it, a host name that has both kinds would be tried as IPv6 alone.
    socket.set(zmq.IPV6, int("[" in address))


def send_frames(socket: Socket, frames: Frames) -> SendOutcome:
    """Send without blocking. A message goes as a whole or not at all."""
    try:
        socket.send_multipart(frames, zmq.NOBLOCK)
    except zmq.Again:
        return SendOutcome.FULL
    except zmq.ZMQError as error:
        if error.errno != zmq.EHOSTUNREACH:
            raise
        return SendOutcome.UNROUTABLE
    return SendOutcome.SENT


def receive_frames(socket: Socket) -> list[bytes] | None:
    """The next message, or ``None`` if none is waiting."""
    return _unless_empty(lambda: socket.recv_multipart(zmq.NOBLOCK))


def receive_parts(socket: Socket) -> list[zmq.Frame] | None:
    """As ``receive_frames``, without copying, and each frame with what zmq knows about its sender."""
    return _unless_empty(lambda: socket.recv_multipart(zmq.NOBLOCK, copy=False))


def _unless_empty(receive: Callable[[], list[T]]) -> list[T] | None:
    try:
        return receive()
    except zmq.Again:
        return None


def start_error(wanted: str, error: zmq.ZMQError) -> StartError:
    """An error of zmq in an operator's words."""
    cause, advice = _CAUSES.get(error.errno or 0, (str(error), "check the address"))
    return StartError(wanted, cause, advice)


def user_of(frame: zmq.Frame) -> str:
    """The user id that the ZAP handler gave the connection on which this frame came."""
    return str(frame.get("User-Id"))


def leave_open(socket: Socket) -> None:
    """Protect nothing: anybody who reaches the socket may speak."""


class RouterEndpoint:
    """The listening side: messages come with the route of their sender, and answers go back to a route."""

    def __init__(
        self, context: Context, address: str, limits: SocketLimits = CONTROL_LIMITS, protect: Protect = leave_open
    ) -> None:
        self.socket = open_socket(context, zmq.ROUTER, limits)
        self.socket.set(zmq.ROUTER_MANDATORY, 1)
        protect(self.socket)
        self.address = bind_socket(self.socket, address)
        self.counters = EndpointCounters()

    @property
    def port(self) -> int:
        """The TCP port that was really taken (a bind to port 0 takes any)."""
        return int(self.address.rpartition(":")[2])

    def send(self, route: bytes, frames: Sequence[bytes]) -> SendOutcome:
        """Send to one peer without blocking; a full queue of one peer does not hold up another's."""
        outcome = send_frames(self.socket, (route, *frames))
        self.counters.sends[outcome] += 1
        return outcome

    def receive(self) -> tuple[bytes, list[bytes]] | None:
        """The next message as (route, frames), or ``None``.

        More than ``MAX_FRAMES`` frames come cut to one too many, so that the codec refuses them without seeing a long list.
        """
        frames = receive_frames(self.socket)
        if frames is None:
            return None
        self.counters.received += 1
        return frames[0], frames[1 : MAX_FRAMES + 2]

    def receive_identified(self) -> tuple[bytes, list[bytes], str] | None:
        """As ``receive``, with the user id that the connection was authenticated as; only for a protected socket."""
        frames = receive_parts(self.socket)
        if frames is None:
            return None
        self.counters.received += 1
        return frames[0].bytes, [frame.bytes for frame in frames[1 : MAX_FRAMES + 2]], user_of(frames[0])

    def close(self, linger_ms: int = 0) -> None:
        """Close; what was just sent gets at most ``linger_ms`` to leave."""
        self.socket.close(linger_ms)
