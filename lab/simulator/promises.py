"""What a prefill rank has given its word for, kept by an observer of its wire: it must write nothing that would break it.

The observer reads messages and nothing of the machine, so a machine that fools itself does not fool it.
"""

from collections.abc import Iterable

from lab.simulator.memory import ViolationError
from prefill_service.outputs import WriteChunk
from protocol.messages import (
    Abort,
    AbortAck,
    ChunkDone,
    ChunkReady,
    DoneStatus,
    Heartbeat,
    HeartbeatAck,
    Subscribe,
    Subscribed,
    ToDecode,
    ToPrefill,
    Unsubscribe,
)


class Promises:
    """One life's words and leases."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._ended_sessions: set[str] = set()
        self._ended_rooms: set[tuple[str, str]] = set()
        self._ready: dict[tuple[str, int], int] = {}
        self._rejected: dict[tuple[str, int], int] = {}
        self._sent: dict[tuple[str, int], float] = {}
        self._lease: dict[str, float] = {}
        self._lease_s: dict[str, float] = {}

    def sent(self, peer: str, message: ToDecode, writing: Iterable[WriteChunk], now: float) -> None:
        """Note what is said, and that it is true now."""
        match message:
            case Subscribe():
                self._sent[peer, message.attempt] = now
                if message.stopped is not None:
                    self._end_session(message.stopped, writing)
            case Heartbeat():
                self._sent[message.session, message.seq] = now
            case Unsubscribe():
                self._end_session(message.session, writing)
            case Abort() | AbortAck():
                self._require_none(w for w in writing if (w.session, w.room) == (message.session, message.room))
                self._ended_rooms.add((message.session, message.room))
            case ChunkReady():
                self._require_none(w for w in writing if (w.session, w.alloc_id) == (message.session, message.alloc_id))
                self._ready[message.session, message.alloc_id] = message.attempt
            case _:
                pass

    def heard(self, peer: str, message: ToPrefill) -> None:
        """Note what allows to write again, and what renews a lease."""
        match message:
            case Subscribed():
                sent = self._sent.get((peer, message.attempt))
                if sent is not None:
                    self._renew(message.session, sent + message.lease_s)
                    self._lease_s[message.session] = message.lease_s
            case HeartbeatAck():
                sent = self._sent.pop((message.session, message.seq), None)
                if sent is not None and message.session in self._lease:
                    self._renew(message.session, sent + self._lease_s[message.session])
            case ChunkDone(status=DoneStatus.REJECTED):
                key = (message.session, message.alloc_id)
                self._rejected[key] = max(message.attempt, self._rejected.get(key, 0))
            case _:
                pass

    def room_begins(self, room: str) -> None:
        """An engine uses an id again: what was said about the former room says nothing about this one."""
        self._ended_rooms = {key for key in self._ended_rooms if key[1] != room}

    def writes(self, write: WriteChunk, now: float) -> None:
        """A write begins: no word may speak against it."""
        if write.session in self._ended_sessions:
            self._fail(f"writes in session {write.session}, all of whose writes it said have ended")
        if (write.session, write.room) in self._ended_rooms:
            self._fail(f"writes into room {write.room}, all of whose writes it said have ended")
        if now >= self._lease.get(write.session, 0.0):
            self._fail(f"writes in session {write.session} without a valid lease")
        key = (write.session, write.alloc_id)
        said = self._ready.get(key)
        if said is not None and (self._rejected.get(key, 0) < said or write.attempt <= said):
            self._fail(f"writes grant {write.alloc_id} again after its word for attempt {said}, which was not rejected")

    def _renew(self, session: str, until: float) -> None:
        self._lease[session] = max(until, self._lease.get(session, 0.0))

    def _end_session(self, session: str, writing: Iterable[WriteChunk]) -> None:
        self._require_none(write for write in writing if write.session == session)
        self._ended_sessions.add(session)

    def _require_none(self, writing: Iterable[WriteChunk]) -> None:
        for write in writing:
            self._fail(f"says that its writes have ended while it writes grant {write.alloc_id} of room {write.room}")

    def _fail(self, problem: str) -> None:
        raise ViolationError(f"{self._name} {problem}")
