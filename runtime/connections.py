"""Outgoing connections that come back whatever ended them, and say why they do not come about.

libzmq connects anew after a lost connection, but not after a failed handshake: a client whose key was not on the allow-list
yet, or that met something else on the port, would wait for ever. Here a failed handshake is counted, logged and tried again
after ``RETRY_S``, and a changed key makes every connection anew. What was queued in a connection that is made anew is lost with
it; the protocol repeats it.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from runtime.addresses import is_loopback_endpoint
from runtime.connection import Connection
from runtime.endpoint import Socket
from runtime.errors import StartError
from runtime.logs import logger
from runtime.loop import EventLoop
from runtime.monitor import ConnectionEvent
from runtime.rate_limit import RateLimit
from runtime.security import CHECK_S, ClientSecurity

RETRY_S = 1.0
WARN_S = 60.0
"""How often the log says that connections beyond this host are not encrypted."""
LOG_S = 10.0
_REASONS = {
    "HANDSHAKE_FAILED_AUTH": "the decode daemon does not allow this client's key",
    "HANDSHAKE_FAILED_PROTOCOL": "one side has keys and the other has none, or no decode daemon listens there",
    "HANDSHAKE_FAILED_NO_DETAIL": "the other side hung up: it may have another key than the one known here",
}


def nothing() -> None:
    """Nobody waits for the connection."""


@dataclass(slots=True)
class _Kept:
    """A connection, and what is needed to bring it about again."""

    socket: Socket
    connection: Connection
    server: str
    """The decode endpoint whose key counts."""
    came_about: Callable[[], None]
    retry_at: float | None = None
    attempt: int = 0
    """Which of the server's keys is tried."""
    wants_other_key: bool = False
    """The other side hung up on this one, and there is another."""
    trouble: str = ""
    """Why the last handshake failed, until one succeeds."""


class Connections:
    """Every outgoing connection of one daemon. One of the loop's timed objects."""

    def __init__(self, loop: EventLoop, security: ClientSecurity | None, *, insecure: bool) -> None:
        self.failures: Counter[str] = Counter()
        self._loop = loop
        self._security = security
        self._insecure = insecure
        self._open: dict[Socket, _Kept] = {}
        self._retries: set[Socket] = set()
        self._log = logger()
        self._limit = RateLimit(LOG_S)
        self._warn_at: float | None = None
        self._check_at = loop.clock() + CHECK_S

    def obstacle(self, endpoint: str) -> str | None:
        """Why nothing may be sent to this decode endpoint; ``None`` if it may."""
        if self._security is None:
            exposed = not self._insecure and not is_loopback_endpoint(endpoint)
            return f"{endpoint} is beyond loopback: set client_key and server_keys, or --insecure" if exposed else None
        return (
            None if self._security.keys_known(endpoint) else f"the public key of {endpoint} is not known: add it to server_keys"
        )

    def connect(
        self, socket: Socket, address: str, server: str | None = None, came_about: Callable[[], None] = nothing
    ) -> Connection:
        """Connect and stay connected until ``forget``, calling ``came_about`` each time. Raises ``StartError``.

        ``server``: the endpoint whose key counts. After an error the socket is closed.
        """
        server = server or address
        try:
            self._allow(socket, server, attempt=0)
        except StartError:
            socket.close()
            raise
        connection = Connection(socket, address, partial(self._changed, socket))
        self._open[socket] = _Kept(socket, connection, server, came_about)
        self._loop.add_reader(connection.source, connection.read)
        return connection

    def forget(self, socket: Socket) -> None:
        """Before the socket is closed."""
        kept = self._open.pop(socket, None)
        self._retries.discard(socket)
        if kept is not None:
            self._loop.remove_reader(kept.connection.source)
            kept.connection.close()

    def trouble_of(self, socket: Socket) -> str:
        """Why this socket's last handshake failed; empty if none has since one succeeded."""
        kept = self._open.get(socket)
        return "" if kept is None else kept.trouble

    def reload(self) -> None:
        """Read the keys now, and make every connection anew if they are different."""
        if self._security is not None and self._security.reload():
            for kept in self._open.values():
                self._again(kept)

    def counts(self) -> dict[str, object]:
        """Failed handshakes by kind."""
        return dict(self.failures)

    # ---- the loop's interface -------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When a connection is tried again, the keys are looked at, or the log must speak."""
        due = [self._open[socket].retry_at for socket in self._retries]
        due += [self._warn_at, self._check_at if self._security is not None else None]
        return min((at for at in due if at is not None), default=None)

    def tick(self, now: float) -> None:
        """Do what is due."""
        for socket in tuple(self._retries):
            kept = self._open[socket]
            if kept.retry_at is not None and now >= kept.retry_at:
                self._again(kept)
        if self._warn_at is not None and now >= self._warn_at:
            self._warn(now)
        if self._security is not None and now >= self._check_at:
            self._check_at = now + CHECK_S
            if self._security.files_changed():
                self.reload()

    def flush(self, now: float) -> None:
        """Nothing is owed."""

    # ---- inside ---------------------------------------------------------------------------------------------------------

    def _allow(self, socket: Socket, server: str, attempt: int) -> None:
        if self._security is not None:
            self._security.protect(socket, server, attempt)
        elif not is_loopback_endpoint(server) and self._warn_at is None:
            self._warn_at = self._loop.clock()

    def _again(self, kept: _Kept) -> None:
        self._cancel_retry(kept)
        kept.attempt += kept.wants_other_key
        kept.wants_other_key = False
        try:
            self._allow(kept.socket, kept.server, kept.attempt)
            kept.connection.renew()
        except StartError as error:
            # A key that was taken off the list of servers: nothing is said to that endpoint until it is back.
            self._log.warning("reconnect_failed", address=kept.connection.address, reason=str(error))
            self._retry_later(kept)

    def _changed(self, socket: Socket, event: ConnectionEvent) -> None:
        kept = self._open.get(socket)
        if kept is None:
            return
        if event.name == "HANDSHAKE_SUCCEEDED":
            kept.trouble = ""
            kept.came_about()
        elif kept.connection.connected:
            self._lost(kept)
        if event.name == "DISCONNECTED":
            # libzmq says at once if it tries again. If it does not, what it met was so wrong that it has given up.
            self._retry_later(kept)
        elif event.name in {"CONNECT_RETRIED", "HANDSHAKE_SUCCEEDED"}:
            if not kept.wants_other_key:
                self._cancel_retry(kept)
        else:
            self._failed(kept, event)

    def _lost(self, kept: _Kept) -> None:
        suppressed = self._limit.admit((kept.connection.address, "lost"), self._loop.clock())
        if suppressed is not None:
            reason = "the other side ended it, or nothing is answered from there any more; it is tried again"
            self._log.warning("connection_lost", address=kept.connection.address, reason=reason, suppressed=suppressed)

    def _failed(self, kept: _Kept, event: ConnectionEvent) -> None:
        self.failures[event.name.lower()] += 1
        kept.trouble = _REASONS.get(event.name, event.name)
        suppressed = self._limit.admit((kept.connection.address, event.name), self._loop.clock())
        if suppressed is not None:
            detail = {"reason": kept.trouble, "suppressed": suppressed}
            self._log.warning("peer_handshake_failed", address=kept.connection.address, **detail)
        if event.name == "HANDSHAKE_FAILED_NO_DETAIL":
            kept.wants_other_key = self._has_other_key(kept)
        self._retry_later(kept)

    def _has_other_key(self, kept: _Kept) -> bool:
        return self._security is not None and self._security.keys_known(kept.server) > 1

    def _retry_later(self, kept: _Kept) -> None:
        if kept.retry_at is None:
            kept.retry_at = self._loop.clock() + RETRY_S
            self._retries.add(kept.socket)

    def _cancel_retry(self, kept: _Kept) -> None:
        kept.retry_at = None
        self._retries.discard(kept.socket)

    def _warn(self, now: float) -> None:
        open_now = sorted({entry.server for entry in self._open.values() if not is_loopback_endpoint(entry.server)})
        self._warn_at = now + WARN_S if open_now else None
        if open_now:
            text = "traffic to these decode ranks is neither encrypted nor authenticated (--insecure)"
            self._log.warning("insecure_connections_open", reason=text, count=len(open_now), first=open_now[:8])
