"""Engines that wait for the end of a room."""

import heapq
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

from runtime.engine_protocol import Body, EngineError


class RoomKey(NamedTuple):
    """A room of one rank."""

    rank: int
    room: str


@dataclass(frozen=True, slots=True)
class RoomOutcome:
    """How a room ended. ``code`` and ``message`` are empty if every token arrived."""

    room: str
    rank: int
    done: bool
    code: str = ""
    message: str = ""

    def to_body(self) -> dict[str, Any]:
        """As an answer to ``wait_room``."""
        outcome = "done" if self.done else "failed"
        return {"room": self.room, "rank": self.rank, "outcome": outcome, "code": self.code, "message": self.message}

    @classmethod
    def from_body(cls, body: Body) -> "RoomOutcome":
        """From an answer to ``wait_room``."""
        return cls(body["room"], body["rank"], body["outcome"] == "done", body["code"], body["message"])


class RoomWaiters:
    """Futures by room, with a deadline each. Lives on the loop's thread and is served by the loop."""

    def __init__(self) -> None:
        self._waiting: dict[RoomKey, dict[int, Future[Body]]] = {}
        self._deadlines: list[tuple[float, int, RoomKey]] = []
        self._numbers = count()

    def add(self, key: RoomKey, future: "Future[Body]", deadline: float | None) -> None:
        """Complete ``future`` when the room ends, or with ``timeout`` at the deadline."""
        number = next(self._numbers)
        self._waiting.setdefault(key, {})[number] = future
        if deadline is not None:
            heapq.heappush(self._deadlines, (deadline, number, key))

    def resolve(self, key: RoomKey, outcome: RoomOutcome) -> None:
        """The room has ended: tell everybody who waits for it."""
        for future in self._waiting.pop(key, {}).values():
            future.set_result(outcome.to_body())

    def fail_all(self, error: EngineError) -> None:
        """Nobody will be told any more: say so."""
        waiting, self._waiting = self._waiting, {}
        for futures in waiting.values():
            for future in futures.values():
                future.set_exception(error)

    def next_deadline(self) -> float | None:
        """The earliest deadline of a waiter that still waits."""
        while self._deadlines and self._deadlines[0][1] not in self._waiting.get(self._deadlines[0][2], {}):
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def tick(self, now: float) -> None:
        """Give up for those whose deadline has come; the room itself is not touched."""
        while (at := self.next_deadline()) is not None and at <= now:
            _, number, key = heapq.heappop(self._deadlines)
            futures = self._waiting[key]
            future = futures.pop(number)
            if not futures:
                del self._waiting[key]
            future.set_exception(EngineError("timeout", f"room {key.room!r} on rank {key.rank} is still live"))

    def flush(self, now: float) -> None:
        """Nothing is owed."""
