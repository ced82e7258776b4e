"""A decode engine's worker: every load is a room of the embedded ``DecodeStagingServer``, and every end of it one report.

However a load ends (done, failed, refused, too late, given up by the engine, service gone), the request is reported once, and
only when nobody writes into its blocks any more. A load that did not bring everything reports its blocks as bad with it.
"""

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from threading import Lock
from typing import Any, Protocol

from structlog.typing import FilteringBoundLogger

from integrations.vllm.calls import error_of, is_gone, when_done
from integrations.vllm.orders import DISCARD, ConsumerOrders, Load, Release
from integrations.vllm.reports import Due, Reports
from protocol.layout import PageRun
from runtime.engine_protocol import EngineError
from runtime.room_waiters import RoomOutcome


class DecodeCalls(Protocol):
    """What is used of ``decode_service.engine.DecodeEngine``."""

    def register_room(
        self, room: str, rank: int, group: str, num_tokens: int, destination: PageRun, deadline_s: float | None = None
    ) -> "Future[dict[str, Any]]":
        """Expect a room."""

    def wait_room(self, room: str, rank: int, timeout_s: float | None = None) -> "Future[RoomOutcome]":
        """How it ended."""

    def abort_room(self, room: str, rank: int, reason: str = "") -> "Future[dict[str, Any]]":
        """Give it up."""


class ConsumerWorker:
    """Loads of one rank. vLLM calls from its own thread; ends come from the half's."""

    def __init__(
        self,
        engine: DecodeCalls,
        *,
        rank: int,
        num_blocks: int,
        block_size: int,
        timeout_s: float,
        idle_wait_s: float,
        log: FilteringBoundLogger,
    ) -> None:
        self._engine = engine
        self._rank = rank
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._timeout_s = timeout_s
        self._idle_wait_s = idle_wait_s
        self._log = log
        self._reports = Reports()
        self._guard = Lock()
        self._rooms: dict[str, str] = {}
        """Room by request, of the loads that run and are still wanted."""
        self._orphans: list[Load] | None = []
        """Loads whose service is gone, until it has let go of the blocks; ``None`` afterwards."""
        self._unasked: list[Callable[[], None]] = []
        """Questions to the half that it had no place for: asked again with the next step."""

    def preempt(self, orders: ConsumerOrders) -> None:
        """Nothing: vLLM takes no blocks away that are being loaded."""

    def begin_step(self, orders: ConsumerOrders) -> None:
        """Nothing: loads begin behind the forward pass."""

    def layer_saved(self, layer: str) -> None:
        """Nothing: no KV leaves from here."""

    def end_step(self, orders: ConsumerOrders, *, broken: bool) -> None:  # noqa: ARG002 - loads use blocks of their own
        """Begin what the step orders."""
        with self._guard:
            unasked, self._unasked = self._unasked, []
        for ask in unasked:
            ask()
        for release in orders.releases:
            self._release(release)
        for load in orders.loads:
            self._load(load)

    def take(self, finished: set[str], orders: ConsumerOrders | None) -> Due:
        """What is due to vLLM now; ``finished`` are requests that have ended, whose loads are given up."""
        for request in finished:
            with self._guard:
                room = self._rooms.pop(request, None)
            if room is not None:
                self._abort(room, "the decode engine ended the request")
        received, bad_blocks = self._reports.take(self._idle_wait_s if orders is not None and orders.is_idle else 0.0)
        return Due(received=received, bad_blocks=bad_blocks)

    def pool_closed(self) -> None:
        """The half has ended and copies nothing any more."""
        with self._guard:
            orphans, self._orphans = self._orphans or [], None
        for load in orphans:
            self._end(load, "the staging service has stopped")

    # ---- one load -------------------------------------------------------------------------------------------------------

    def _load(self, load: Load) -> None:
        if not self._reports.owe(load.request):
            self._log.error("load_repeated", request=load.request, room=load.room)
            return
        with self._guard:
            self._rooms[load.request] = load.room
        register = partial(
            self._engine.register_room,
            load.room,
            self._rank,
            load.group,
            load.num_tokens,
            self._run(load.blocks),
            self._timeout_s,
        )
        when_done(register, partial(self._registered, load))

    def _registered(self, load: Load, answer: "Future[dict[str, Any]] | EngineError") -> None:
        error = error_of(answer)
        if error is None:
            self._wait(load, self._timeout_s)
        elif is_gone(error):
            self._orphan(load)
        else:
            self._end(load, str(error))

    def _wait(self, load: Load, timeout_s: float | None) -> None:
        ask = partial(self._engine.wait_room, load.room, self._rank, timeout_s)
        when_done(ask, partial(self._ended, load))

    def _ended(self, load: Load, answer: "Future[RoomOutcome] | EngineError") -> None:
        error = error_of(answer)
        if error is None:
            assert isinstance(answer, Future)
            outcome = answer.result()
            self._end(load, None if outcome.done else f"{outcome.code}: {outcome.message}")
        elif error.code == "timeout":
            self._abort(load.room, f"no KV within {self._timeout_s:g} s")
            self._wait(load, None)
        elif error.code == "busy":
            with self._guard:
                self._unasked.append(partial(self._wait, load, self._timeout_s))
        elif is_gone(error):
            self._orphan(load)
        else:
            self._end(load, str(error))

    def _orphan(self, load: Load) -> None:
        """The half ends, and a copy of it may still run: report when it has let go of the cache."""
        with self._guard:
            if self._orphans is not None:
                self._orphans.append(load)
                return
        self._end(load, "the staging service has stopped")

    def _end(self, load: Load, failure: str | None) -> None:
        with self._guard:
            wanted = self._rooms.pop(load.request, None) is not None
        bad = frozenset[int]()
        if failure is not None and wanted:
            bad = frozenset(block for block in load.blocks if block != DISCARD)
            self._log.warning("load_failed", request=load.request, room=load.room, reason=failure)
        self._reports.settle(load.request, bad)

    # ---- rooms that nobody reads ------------------------------------------------------------------------------------------

    def _release(self, release: Release) -> None:
        """Have the room here for a moment, into nowhere, so that giving it up reaches its prefill engine."""
        nowhere = self._run((DISCARD,) * -(-release.num_tokens // self._block_size))
        register = partial(
            self._engine.register_room, release.room, self._rank, release.group, release.num_tokens, nowhere, self._timeout_s
        )
        when_done(register, partial(self._released, release))
        self._abort(release.room, "the decode engine does not need it")

    def _released(self, release: Release, answer: "Future[dict[str, Any]] | EngineError") -> None:
        error = error_of(answer)
        if error is not None:
            self._log.warning("release_refused", room=release.room, reason=str(error))

    def _abort(self, room: str, reason: str) -> None:
        # Whatever the answer: how the room ended is heard where it is waited for.
        when_done(partial(self._engine.abort_room, room, self._rank, reason), lambda _: None)

    def _run(self, blocks: tuple[int, ...]) -> PageRun:
        """The blocks as pages; each discarded one another page that does not exist, since no page may be listed twice."""
        return PageRun(tuple(self._num_blocks + at if block == DISCARD else block for at, block in enumerate(blocks)))
