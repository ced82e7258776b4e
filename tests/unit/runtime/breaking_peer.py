"""``python -m tests.unit.runtime.breaking_peer``: read from peers that cut their connections amid their messages; exit with 0.

A program of its own, since a socket that cannot bear it ends its whole process.
"""

import contextlib
import socket as sockets
import struct
import sys
import threading

import zmq

import runtime.endpoint
from protocol.limits import MAX_FRAMES
from runtime.dealer_endpoint import DealerEndpoint
from runtime.endpoint import Context, open_context

PEERS = 4
CONNECTIONS = 40
"""As many are cut of each peer."""
MESSAGE = [bytes([number]) * 4 for number in range(MAX_FRAMES + 1)]
MESSAGES = 1000
"""Sent on each connection."""
WAIT_S = 10.0

_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_READY = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"ROUTER"
_RESET = struct.pack("ii", 1, 0)


def _wire(frames: list[bytes]) -> bytes:
    more = [1] * (len(frames) - 1) + [0]
    return b"".join(bytes([flag, len(frame)]) + frame for flag, frame in zip(more, frames, strict=True))


def serve(listener: sockets.socket) -> None:
    """Speak just enough ZMTP to be heard, and reset the connection with half a message on its way."""
    for _ in range(CONNECTIONS):
        connection = listener.accept()[0]
        with connection, contextlib.suppress(ConnectionError):
            connection.sendall(_GREETING + bytes([4, len(_READY)]) + _READY)
            connection.recv(len(_GREETING) + 2, sockets.MSG_WAITALL)
            connection.sendall(_wire(MESSAGE) * MESSAGES + _wire(MESSAGE)[:13])
            connection.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, _RESET)


def read_all(context: Context) -> int:
    """Read from all peers until each has cut its last connection; the number of messages. One in part is a ``ValueError``."""
    listeners = [sockets.create_server(("127.0.0.1", 0)) for _ in range(PEERS)]
    for listener in listeners:
        listener.settimeout(WAIT_S)
    servers = [threading.Thread(target=serve, args=(listener,)) for listener in listeners]
    dealers = [DealerEndpoint(context, f"tcp://127.0.0.1:{listener.getsockname()[1]}") for listener in listeners]
    poller, read, torn = zmq.Poller(), 0, 0
    for dealer in dealers:
        poller.register(dealer.socket, zmq.POLLIN)
    for server in servers:
        server.start()
    while any(server.is_alive() for server in servers):
        poller.poll(10)
        for dealer in dealers:
            dealer.connection.read(8)
            while (frames := dealer.receive()) is not None:
                read += 1
                torn += frames != MESSAGE
    for dealer in dealers:
        dealer.close()
    for listener in listeners:
        listener.close()
    if torn:
        raise ValueError(f"{torn} of {read} messages came in part")
    return read


if __name__ == "__main__":
    runtime.endpoint.RECONNECT_MS = 1
    with open_context(1, 4 * PEERS) as shared:
        sys.stdout.write(f"{read_all(shared)}\n")
