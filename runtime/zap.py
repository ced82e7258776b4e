"""Says for every CURVE handshake whether its key may connect (ZAP, ZeroMQ RFC 27), on the loop that owns the sockets.

libzmq asks on ``inproc://zeromq.zap.01`` and waits with the handshake until it is answered. pyzmq's own authenticator wants an
asyncio loop or a thread; one REP socket in our loop does the same, and the verdict can never be older than the list.

The user id of an accepted connection is its public key and not a name, so that every later frame can be judged by the list as
it is *then*: a key that is taken off the list is worth nothing from that moment on, connected or not.
"""

from collections import Counter
from collections.abc import Callable

import zmq
from zmq.utils import z85

from runtime.endpoint import Context, Socket, bind_socket
from runtime.logs import logger
from runtime.rate_limit import RateLimit

ZAP_ADDRESS = "inproc://zeromq.zap.01"
ZAP_DOMAIN = "pd-staging"
_VERSION = b"1.0"
_KEY_BYTES = 32
_FRAMES = 7


class ZapHandler:
    """Answers handshakes. Open it before the first protected socket is bound; there can be one in a context."""

    def __init__(self, context: Context, is_allowed: Callable[[str], bool], clock: Callable[[], float]) -> None:
        self.socket: Socket = context.socket(zmq.REP)
        self.socket.linger = 0
        bind_socket(self.socket, ZAP_ADDRESS)
        self.verdicts: Counter[str] = Counter()
        self._is_allowed = is_allowed
        self._clock = clock
        self._log = logger()
        self._limit = RateLimit()

    def read(self, limit: int) -> bool:
        """Answer at most ``limit`` handshakes; true if more may be waiting."""
        for _ in range(limit):
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return False
            self.socket.send_multipart(self._answer(frames))
        return True

    def close(self) -> None:
        """Stop answering; handshakes from now on fail."""
        self.socket.close()

    def _answer(self, frames: list[bytes]) -> list[bytes]:
        request_id = frames[1] if len(frames) > 1 else b""
        if len(frames) != _FRAMES or frames[0] != _VERSION or frames[5] != b"CURVE" or len(frames[6]) != _KEY_BYTES:
            self.verdicts["unreadable"] += 1
            return [_VERSION, request_id, b"400", b"expected one CURVE key", b"", b""]
        key = z85.encode(frames[6])
        if self._is_allowed(key.decode("ascii")):
            self.verdicts["accepted"] += 1
            return [_VERSION, request_id, b"200", b"OK", key, b""]
        self.verdicts["unknown_key"] += 1
        self._report(key, frames[3])
        return [_VERSION, request_id, b"400", b"this key is not on the allow-list", b"", b""]

    def _report(self, key: bytes, address: bytes) -> None:
        suppressed = self._limit.admit(("unknown_key", key), self._clock())
        if suppressed is not None:
            source = address.decode("utf-8", "replace")
            self._log.warning(
                "client_refused", reason="unknown_key", key=key.decode("ascii"), address=source, suppressed=suppressed
            )
