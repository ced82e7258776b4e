"""When each chunk in flight passed each stage, so that one line can say where its time went.

    asked -- requested_ms --> granted -- gated_ms --> started -- written_ms --> written -- scattered_ms --> done

Observes what the shell sends and hears; the machine knows nothing of it. Repeats of a stage keep the first time, except that a
new write starts the stages from ``started`` on anew.
"""

from dataclasses import dataclass
from typing import NamedTuple

Moments = tuple[float, float | None, float | None, float | None, float]


@dataclass(slots=True)
class StageTimes:
    """Seconds of the loop's clock; ``None`` while a stage has not been reached."""

    asked: float
    granted: float | None = None
    started: float | None = None
    written: float | None = None

    def moments(self, done: float) -> Moments:
        """All five, from the request to ``done``."""
        return (self.asked, self.granted, self.started, self.written, done)


class ChunkKey(NamedTuple):
    """A chunk of a room on its way to one decode rank."""

    room: str
    peer: str
    chunk: int


class ChunkTimes:
    """Times of every chunk in flight, the longest asked for first. What is kept for a room goes with it."""

    def __init__(self) -> None:
        self._times: dict[ChunkKey, StageTimes] = {}
        self._rooms: dict[str, set[ChunkKey]] = {}

    def __len__(self) -> int:
        return len(self._times)

    def asked(self, key: ChunkKey, now: float) -> None:
        """A ``STAGING_REQ`` went out."""
        if key not in self._times:
            self._times[key] = StageTimes(now)
            self._rooms.setdefault(key.room, set()).add(key)

    def granted(self, key: ChunkKey, now: float) -> None:
        """A grant came."""
        times = self._times.get(key)
        if times is not None and times.granted is None:
            times.granted = now

    def started(self, key: ChunkKey, now: float) -> None:
        """A write began."""
        times = self._times.get(key)
        if times is not None:
            times.started, times.written = now, None

    def written(self, key: ChunkKey, now: float) -> None:
        """The bytes are visible to the decode rank."""
        times = self._times.get(key)
        if times is not None:
            times.written = now

    def done(self, key: ChunkKey, now: float) -> Moments | None:
        """The chunk is scattered: its moments, the first time this is said."""
        times = self._times.pop(key, None)
        if times is None:
            return None
        keys = self._rooms[key.room]
        keys.discard(key)
        if not keys:
            del self._rooms[key.room]
        return times.moments(now)

    def forget(self, room: str) -> None:
        """The room is over."""
        for key in self._rooms.pop(room, ()):
            del self._times[key]
