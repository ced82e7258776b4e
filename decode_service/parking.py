"""What arrived before its room did: requests that wait for the engine to register, and aborts of rooms nobody knows yet.

Everything here is bounded and short-lived: requests die with their session or after ``park_s``, early aborts after the same
time.
"""

from collections import OrderedDict

from protocol.messages import StagingReq


class Parking:
    """Parked requests by session and by room, and the reasons of early aborts by room and group."""

    def __init__(self, max_per_session: int, max_early_aborts: int) -> None:
        self._by_session: dict[str, dict[tuple[str, int], StagingReq]] = {}
        self._by_room: dict[str, dict[tuple[str, int], None]] = {}
        self._aborted: OrderedDict[tuple[str, str], tuple[str, float]] = OrderedDict()
        self._max_per_session = max_per_session
        self._max_early_aborts = max_early_aborts

    def has(self, session: str, message: StagingReq) -> bool:
        """Whether a request for that room and chunk is parked already."""
        return (message.room, message.chunk) in self._by_session.get(session, ())

    def park(self, session: str, message: StagingReq) -> bool:
        """Keep a request; ``False`` if this session has too many parked."""
        mine = self._by_session.setdefault(session, {})
        if len(mine) >= self._max_per_session:
            return False
        mine[message.room, message.chunk] = message
        self._by_room.setdefault(message.room, {})[session, message.chunk] = None
        return True

    def take(self, session: str, room: str, chunk: int) -> StagingReq | None:
        """Remove and return one parked request."""
        message = self._by_session.get(session, {}).pop((room, chunk), None)
        _discard(self._by_room, room, (session, chunk))
        if not self._by_session.get(session):
            self._by_session.pop(session, None)
        return message

    def waiting_for(self, room: str) -> tuple[tuple[str, int], ...]:
        """``(session, chunk)`` of every request parked for a room, in order of arrival."""
        return tuple(self._by_room.get(room, ()))

    def drop_session(self, session: str) -> list[StagingReq]:
        """Remove and return everything a session has parked."""
        dropped = self._by_session.pop(session, {})
        for room, chunk in dropped:
            _discard(self._by_room, room, (session, chunk))
        return list(dropped.values())

    def drop_room(self, session: str, room: str) -> list[int]:
        """Remove what a session has parked for one room; its chunks."""
        chunks = [chunk for waiting, chunk in self.waiting_for(room) if waiting == session]
        for chunk in chunks:
            self.take(session, room, chunk)
        return chunks

    def abort_early(self, room: str, group: str, reason: str, until: float) -> None:
        """Remember that a prefill of this group gave up a room that is not registered yet."""
        self._aborted[room, group] = (reason, until)
        self._aborted.move_to_end((room, group))
        while len(self._aborted) > self._max_early_aborts:
            self._aborted.popitem(last=False)

    def early_abort(self, room: str, group: str, now: float) -> str | None:
        """Why this group gave the room up before it was registered, if it did so lately; forgets it."""
        reason, until = self._aborted.pop((room, group), ("", now))
        return reason if until > now else None

    def __len__(self) -> int:
        return sum(len(mine) for mine in self._by_session.values())


def _discard(table: dict[str, dict[tuple[str, int], None]], key: str, item: tuple[str, int]) -> None:
    items = table.get(key)
    if items is not None:
        items.pop(item, None)
        if not items:
            del table[key]
