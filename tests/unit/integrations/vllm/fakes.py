"""What vLLM's scheduler would hand to the connector, and halves of the service that answer when a test says so."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from runtime.engine_protocol import EngineError
from runtime.room_waiters import RoomOutcome


@dataclass
class FakeStatus:
    """A ``RequestStatus``."""

    name: str


@dataclass
class FakeRequest:
    """A ``Request``."""

    request_id: str
    kv_transfer_params: Any = None
    num_prompt_tokens: int = 10
    num_computed_tokens: int = 0
    status: Any = field(default_factory=lambda: FakeStatus("RUNNING"))

    def ended(self, status: str, num_computed: int | None = None) -> "FakeRequest":
        """The same, finished."""
        self.status = FakeStatus(status)
        self.num_computed_tokens = self.num_prompt_tokens if num_computed is None else num_computed
        return self


@dataclass
class FakeBlocks:
    """``KVCacheBlocks`` of one group."""

    ids: list[int]

    def get_block_ids(self) -> tuple[list[int], ...]:
        """By group."""
        return (self.ids,)


@dataclass
class FakeNew:
    """``NewRequestData``."""

    req_id: str
    ids: list[int]
    num_computed_tokens: int = 0

    @property
    def block_ids(self) -> Sequence[Sequence[int]]:
        """By group."""
        return (self.ids,)


@dataclass
class FakeCached:
    """``CachedRequestData``."""

    req_ids: list[str] = field(default_factory=list)
    new_block_ids: list[Any] = field(default_factory=list)
    num_computed_tokens: list[int] = field(default_factory=list)
    resumed_req_ids: set[str] = field(default_factory=set)


@dataclass
class FakeStep:
    """``SchedulerOutput``."""

    scheduled_new_reqs: Sequence[FakeNew] = ()
    scheduled_cached_reqs: FakeCached = field(default_factory=FakeCached)
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    preempted_req_ids: set[str] | None = None

    @property
    def total_num_scheduled_tokens(self) -> int:
        """Of all requests."""
        return sum(self.num_scheduled_tokens.values())


class FakeHalf:
    """Notes every call of the engine's commands and answers at once, but for ``wait_room``, which a test answers."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, dict[str, Any]]] = []
        self.waits: dict[str, list[Future[RoomOutcome]]] = {}
        self.refusals: dict[str, EngineError] = {}
        """By name of the command: answered through the future."""
        self.full: set[str] = set()
        """Commands that are refused before they are taken."""

    def submit_chunk(
        self, room: str, rank: int, decode: Sequence[str], token_start: int, num_tokens: int, source: Any
    ) -> "Future[dict[str, Any]]":
        """Noted."""
        tokens = (token_start, num_tokens)
        return self._call("submit_chunk", room, rank=rank, decode=tuple(decode), tokens=tokens, pages=source.pages)

    def finish_room(self, room: str, rank: int) -> "Future[dict[str, Any]]":
        """Noted."""
        return self._call("finish_room", room, rank=rank)

    def register_room(
        self, room: str, rank: int, group: str, num_tokens: int, destination: Any, deadline_s: float | None = None
    ) -> "Future[dict[str, Any]]":
        """Noted."""
        body = {"group": group, "num_tokens": num_tokens, "pages": destination.pages, "deadline_s": deadline_s}
        return self._call("register_room", room, rank=rank, **body)

    def abort_room(self, room: str, rank: int, reason: str = "") -> "Future[dict[str, Any]]":
        """Noted."""
        return self._call("abort_room", room, rank=rank, reason=reason)

    def wait_room(self, room: str, rank: int, timeout_s: float | None = None) -> "Future[RoomOutcome]":
        """Noted, and open until the test ends it."""
        self._take("wait_room", room, {"rank": rank, "timeout_s": timeout_s})
        future: Future[RoomOutcome] = Future()
        if "wait_room" in self.refusals:
            future.set_exception(self.refusals["wait_room"])
        else:
            self.waits.setdefault(room, []).append(future)
        return future

    def names(self, room: str | None = None) -> list[str]:
        """The commands so far, of one room or of all."""
        return [name for name, of, _ in self.calls if room in {None, of}]

    def body(self, name: str) -> dict[str, Any]:
        """Of the latest command of that name."""
        return next(body for called, _, body in reversed(self.calls) if called == name)

    def end(self, room: str, code: str = "") -> None:
        """The room has ended: done, or failed with a code."""
        for future in self.waits.pop(room):
            future.set_result(RoomOutcome(room, 0, not code, code, "because"))

    def break_wait(self, room: str, code: str) -> None:
        """Whoever waits for the room gets this refusal."""
        for future in self.waits.pop(room):
            future.set_exception(EngineError(code, "because"))

    def _call(self, name: str, room: str, **body: Any) -> "Future[dict[str, Any]]":
        self._take(name, room, body)
        future: Future[dict[str, Any]] = Future()
        if name in self.refusals:
            future.set_exception(self.refusals[name])
        else:
            future.set_result({})
        return future

    def _take(self, name: str, room: str, body: dict[str, Any]) -> None:
        if name in self.full:
            raise EngineError("busy", "too many requests are in flight")
        self.calls.append((name, room, body))
