"""A decode daemon whose control queues hold next to nothing: ``python -m lab.narrow_daemon serve ...``.

With its own queues, and what the kernel adds to them, it takes a hundred thousand watermarks until a peer that reads nothing
is noticed. Here it takes a few hundred, and what happens then is the same.
"""

from unittest.mock import patch

import zmq

from decode_service.config import DecodeServiceConfig
from decode_service.server import DecodeStagingServer
from runtime import endpoint
from runtime.endpoint import CONTROL_LIMITS, Context, Socket, SocketLimits, open_socket
from runtime.service_command import service_command

QUEUE = 64
"""Messages per peer."""
KERNEL_BYTES = 4096
"""Of the kernel's buffer per connection; it doubles this for its own use."""


def open_narrow_socket(context: Context, kind: int, limits: SocketLimits) -> Socket:
    """As ``open_socket``; the listening control sockets get the short queues."""
    narrow = kind == zmq.ROUTER and limits == CONTROL_LIMITS
    socket = open_socket(context, kind, SocketLimits(QUEUE, limits.receive_queue, limits.frame_bytes) if narrow else limits)
    if narrow:
        socket.set(zmq.SNDBUF, KERNEL_BYTES)
    return socket


def main() -> None:
    """Run the decode service with short queues."""
    with patch.object(endpoint, "open_socket", open_narrow_socket):
        service_command("decode-service", DecodeServiceConfig, DecodeStagingServer).main()


if __name__ == "__main__":
    main()
