"""What the log says of a room when it is over: one line with its chunks, bytes, duration and trace."""

from dataclasses import dataclass


@dataclass(slots=True)
class RoomTally:
    """What a room has come to so far."""

    since: float
    chunks: int = 0
    num_bytes: int = 0
    traceparent: str | None = None


class RoomTallies:
    """By room, from its first sign to its end. The caller ends every room it begins."""

    def __init__(self) -> None:
        self._rooms: dict[str, RoomTally] = {}

    def begin(self, room: str, now: float, traceparent: str | None = None) -> None:
        """A room came into sight; said again it only adds the trace."""
        tally = self._rooms.setdefault(room, RoomTally(now))
        tally.traceparent = tally.traceparent or traceparent

    def chunk(self, room: str, num_bytes: int, traceparent: str | None = None) -> None:
        """A chunk of it has arrived. Rooms that are not in sight are not counted."""
        tally = self._rooms.get(room)
        if tally is not None:
            tally.chunks += 1
            tally.num_bytes += num_bytes
            tally.traceparent = tally.traceparent or traceparent

    def end(self, room: str, now: float) -> dict[str, object]:
        """The room is over: the keys of its line."""
        tally = self._rooms.pop(room, None)
        if tally is None:
            return {}
        took_ms = round((now - tally.since) * 1e3, 3)
        line: dict[str, object] = {"chunks": tally.chunks, "num_bytes": tally.num_bytes, "took_ms": took_ms}
        if tally.traceparent is not None:
            line["traceparent"] = tally.traceparent
        return line

    def __len__(self) -> int:
        return len(self._rooms)
