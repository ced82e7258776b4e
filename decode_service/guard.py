"""The machine's border: who is speaking, and may that one say this. Nothing that is turned away here reaches the machine.

1. A frame counts only while its connection's key is on the allow-list *now*: what a revoked key sends ends here at once.
2. A client subscribes only as its own prefill ids and into its own groups, and holds no more sessions than it may.
3. A message or piece that names a session must come from the client whose session that is, whatever its key is good for
   otherwise. Sessions are thus worth nothing to those who learn their names.
4. What costs more to refuse than to send is rationed: frames that are no messages or not allowed, and subscriptions.

Every refusal is counted by its reason and logged, once per client and reason in ``LOG_S``. Without keys only the fourth rule is
left, applied to each connection.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from structlog.typing import FilteringBoundLogger

from decode_service.sessions import Session, SessionTable
from protocol.messages import DataPiece, Refused, RefusedCode, Subscribe, ToDecode
from runtime.allow_list import Client
from runtime.budget import PeerBudget
from runtime.endpoint import Frame, RouterEndpoint, user_of
from runtime.rate_limit import RateLimit
from runtime.security import ServerSecurity

LOG_S = 10.0
WASTE_RATE = 50.0
WASTE_BURST = 500.0
"""Useless frames per second and at once; a peer beyond it is not read until it has been quiet for a moment."""
SUBSCRIBE_RATE = 100.0
SUBSCRIBE_BURST = 2000.0
"""Subscriptions of one peer: the ranks of a large instance start together and repeat themselves a few times."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message that has not been opened. ``user`` is the public key of its connection, empty without keys."""

    frames: Sequence[bytes]
    route: bytes
    user: str

    @property
    def peer(self) -> str | bytes:
        """Who pays for it: the client, or without keys the connection. Empty on a data socket without keys."""
        return self.user or self.route


class Denial(StrEnum):
    """Why something was turned away."""

    REVOKED = "revoked_key"
    PREFILL = "foreign_prefill_id"
    GROUP = "foreign_group"
    SESSION = "foreign_session"
    TOO_MANY = "too_many_sessions"
    WASTE = "too_many_bad_frames"
    SUBSCRIBES = "too_many_subscribes"


_REFUSALS = {
    Denial.PREFILL: (RefusedCode.NOT_ALLOWED, "this key may not speak as prefill {message.prefill_id!r}"),
    Denial.GROUP: (RefusedCode.NOT_ALLOWED, "this key may not join group {message.group!r}"),
    Denial.SESSION: (RefusedCode.NOT_ALLOWED, "the session that it names belongs to another client"),
    Denial.TOO_MANY: (RefusedCode.TOO_MANY_SESSIONS, "this key holds as many sessions as it may"),
}

_HANDSHAKES = {
    "HANDSHAKE_FAILED_AUTH": "its key is not on the allow-list",
    "HANDSHAKE_FAILED_PROTOCOL": "it is no prefill daemon, or one side has keys and the other has none",
    "HANDSHAKE_FAILED_NO_DETAIL": "it is no prefill daemon, or knows another key of this one; it hung up",
}


class Guard:
    """Judges what comes to one rank's sockets. ``security`` is ``None`` for a daemon without keys."""

    def __init__(self, security: ServerSecurity | None, log: FilteringBoundLogger) -> None:
        self.denied: Counter[str] = Counter()
        self.handshakes_failed: Counter[str] = Counter()
        self._security = security
        self._log = log
        self._limit = RateLimit(LOG_S)
        self._waste = PeerBudget(WASTE_RATE, WASTE_BURST)
        self._subscribes = PeerBudget(SUBSCRIBE_RATE, SUBSCRIBE_BURST)

    def receive(self, control: RouterEndpoint) -> Arrival | None:
        """The next control message, or ``None``."""
        if self._security is None:
            plain = control.receive()
            return None if plain is None else Arrival(plain[1], plain[0], "")
        received = control.receive_identified()
        return None if received is None else Arrival(received[1], received[0], received[2])

    def identify(self, frames: Sequence[Frame]) -> Arrival:
        """A message of the data socket."""
        return Arrival((), b"", user_of(frames[0]) if self._security is not None else "")

    def hears(self, arrival: Arrival, now: float) -> bool:
        """Whether a message is worth opening."""
        user, peer = arrival.user, arrival.peer
        if self._security is not None and self._security.client(user) is None:
            self._deny(Denial.REVOKED, user, now)
        elif peer and not self._waste.has_tokens(peer, now):
            self._deny(Denial.WASTE, user, now)
        elif arrival.frames and arrival.frames[0] == b"SUBSCRIBE" and not self._subscribes.spend(peer, now):
            self._deny(Denial.SUBSCRIBES, user, now)
        else:
            return True
        return False

    def wasted(self, arrival: Arrival, now: float) -> None:
        """It was no message."""
        if arrival.peer:
            self._waste.spend(arrival.peer, now)

    def handshake_failed(self, kind: str, address: str, now: float) -> None:
        """A connection to ``address`` did not come about; ``kind`` is zmq's word for why."""
        self.handshakes_failed[kind.removeprefix("HANDSHAKE_FAILED_").lower()] += 1
        suppressed = self._limit.admit((kind, address), now)
        if suppressed is not None:
            detail = {"reason": _HANDSHAKES.get(kind, kind), "address": address, "suppressed": suppressed}
            self._log.warning("peer_handshake_failed", event_name=kind, **detail)

    def denial(self, arrival: Arrival, message: ToDecode | DataPiece, sessions: SessionTable, now: float) -> Denial | None:
        """Why a valid message must not reach the machine; ``None`` if it may."""
        user = arrival.user
        client = self._security.client(user) if self._security is not None else None
        if client is None:
            return None
        denial = _subscribe_denial(client, message, sessions) if isinstance(message, Subscribe) else None
        if denial is None and not all(client.may_be(owner) for owner in _owners(message, sessions)):
            denial = Denial.SESSION
        if denial is not None:
            self._waste.spend(user, now)
            self._deny(denial, user, now, message)
        return denial

    def refusal(self, denial: Denial, message: Subscribe) -> Refused:
        """What a client hears whose ``SUBSCRIBE`` was turned away; other messages are not answered."""
        code, text = _REFUSALS[denial]
        return Refused(message.attempt, code, text.format(message=message))

    def counts(self) -> dict[str, object]:
        """What was turned away, by reason."""
        handshakes = self._security.counts() if self._security is not None else {}
        counts = {"denied": dict(self.denied), "handshakes_failed": dict(self.handshakes_failed)}
        return {"secured": self._security is not None, **counts, **handshakes}

    def _deny(self, denial: Denial, user: str, now: float, message: ToDecode | DataPiece | None = None) -> None:
        self.denied[denial.value] += 1
        suppressed = self._limit.admit((denial, user), now)
        if suppressed is None:
            return
        client = self._security.client(user) if self._security is not None else None
        detail = {} if message is None else {"message": type(message).__name__, **_names(message)}
        who = {"client": client.name if client is not None else None, "key": user or None}
        self._log.warning("peer_denied", reason=denial.value, **who, **detail, suppressed=suppressed)


def _subscribe_denial(client: Client, message: Subscribe, sessions: SessionTable) -> Denial | None:
    if not client.may_be(message.prefill_id):
        return Denial.PREFILL
    if not client.may_join(message.group):
        return Denial.GROUP
    if sessions.of_prefill(message.prefill_id) is None:
        held = sum(client.may_be(session.request.prefill_id) for session in sessions.all())
        if held >= client.max_sessions:
            return Denial.TOO_MANY
    return None


def _owners(message: ToDecode | DataPiece, sessions: SessionTable) -> list[str]:
    """The prefill ids to which the sessions that a message names belong. A session that nobody knows belongs to nobody."""
    named = (getattr(message, field, None) for field in ("session", "stopped", "lost"))
    known: list[Session | None] = [sessions.get(session_id) for session_id in named if session_id is not None]
    return [session.request.prefill_id for session in known if session is not None]


def _names(message: ToDecode | DataPiece) -> dict[str, object]:
    fields = ("prefill_id", "group", "session", "room")
    return {field: getattr(message, field) for field in fields if hasattr(message, field)}
