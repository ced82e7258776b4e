"""When each chunk in flight passed each stage, so that one line can say where its time went.

    asked -- requested_ms --> granted -- gated_ms --> started -- written_ms --> written -- scattered_ms --> done

Observes what the shell sends and hears; the machine knows nothing of it. Repeats of a stage keep the first time, except that a
new write starts the stages from ``started`` on anew.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class StageTimes:
    """Seconds of the loop's clock; ``None`` while a stage has not been reached."""

    asked: float
    granted: float | None = None
    started: float | None = None
    written: float | None = None

    def line(self, done: float) -> dict[str, float | None]:
        """The four stages in milliseconds."""
        marks = (self.asked, self.granted, self.started, self.written, done)
        names = ("requested_ms", "gated_ms", "written_ms", "scattered_ms")
        return {name: _milliseconds(begin, end) for name, begin, end in zip(names, marks, marks[1:], strict=False)}


class ChunkTimes:
    """Times by room, then by (peer, chunk). What is kept for a room goes with it."""

    def __init__(self) -> None:
        self._rooms: dict[str, dict[tuple[str, int], StageTimes]] = {}

    def __len__(self) -> int:
        return sum(len(chunks) for chunks in self._rooms.values())

    def asked(self, room: str, peer: str, chunk: int, now: float) -> None:
        """A ``STAGING_REQ`` went out."""
        self._rooms.setdefault(room, {}).setdefault((peer, chunk), StageTimes(now))

    def granted(self, room: str, peer: str, chunk: int, now: float) -> None:
        """A grant came."""
        times = self._find(room, peer, chunk)
        if times is not None and times.granted is None:
            times.granted = now

    def started(self, room: str, peer: str, chunk: int, now: float) -> None:
        """A write began."""
        times = self._find(room, peer, chunk)
        if times is not None:
            times.started, times.written = now, None

    def written(self, room: str, peer: str, chunk: int, now: float) -> None:
        """The bytes are visible to the decode rank."""
        times = self._find(room, peer, chunk)
        if times is not None:
            times.written = now

    def done(self, room: str, peer: str, chunk: int, now: float) -> dict[str, float | None] | None:
        """The chunk is scattered: its line, the first time this is said."""
        times = self._rooms.get(room, {}).pop((peer, chunk), None)
        return None if times is None else times.line(now)

    def forget(self, room: str) -> None:
        """The room is over."""
        self._rooms.pop(room, None)

    def _find(self, room: str, peer: str, chunk: int) -> StageTimes | None:
        return self._rooms.get(room, {}).get((peer, chunk))


def _milliseconds(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else round((end - begin) * 1e3, 3)
