"""A prefill engine's worker: rooms of the embedded ``PrefillStagingClient``, filled at the end or while the model computes.

vLLM holds a request's blocks until every rank has reported it. Here that is once, when its room has ended: sent, failed, given
up by either side, never asked for within the room's deadline, or the service gone.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from functools import partial
from threading import Lock
from typing import Any, Protocol

from structlog.typing import FilteringBoundLogger

from integrations.vllm.calls import error_of, when_done
from integrations.vllm.orders import NULL_BLOCK, Abandon, Decline, Finish, ProducerOrders, Submission
from integrations.vllm.reports import Due, Reports
from integrations.vllm.step_gate import StepGate
from protocol.layout import PageRun
from runtime.engine_protocol import EngineError
from runtime.room_waiters import RoomOutcome


class PrefillCalls(Protocol):
    """What is used of ``prefill_service.engine.PrefillEngine``."""

    def submit_chunk(
        self, room: str, rank: int, decode: Sequence[str], token_start: int, num_tokens: int, source: PageRun
    ) -> "Future[dict[str, Any]]":
        """Hand over tokens."""

    def finish_room(self, room: str, rank: int) -> "Future[dict[str, Any]]":
        """No more will come."""

    def wait_room(self, room: str, rank: int, timeout_s: float | None = None) -> "Future[RoomOutcome]":
        """How it ended."""

    def abort_room(self, room: str, rank: int, reason: str = "") -> "Future[dict[str, Any]]":
        """Give it up."""


class ProducerWorker:
    """Rooms of one rank. vLLM calls from its own thread; ends come from the half's."""

    def __init__(
        self,
        engine: PrefillCalls,
        gate: StepGate,
        *,
        rank: int,
        preempt_wait_s: float,
        idle_wait_s: float,
        log: FilteringBoundLogger,
    ) -> None:
        self._engine = engine
        self._gate = gate
        self._rank = rank
        self._preempt_wait_s = preempt_wait_s
        self._idle_wait_s = idle_wait_s
        self._log = log
        self._reports = Reports()
        self._guard = Lock()
        self._unasked: list[tuple[str, str]] = []
        """``(request, room)`` whose end the half had no place to be asked for: asked again with the next step."""

    def preempt(self, orders: ProducerOrders) -> None:
        """Give up the rooms whose blocks this step may write again, and see that no copy reads them any more."""
        for abandoned in orders.preempted:
            self._give_up(abandoned)
        ends = [self._end_of(abandoned.room) for abandoned in orders.preempted]
        late = wait_for([end for end in ends if end is not None], self._preempt_wait_s).not_done
        if late:
            # Nothing wrong can come of it: what was given up is never read on the other side.
            self._log.error("preempted_rooms_still_read", rooms=len(late), waited_s=self._preempt_wait_s)

    def begin_step(self, orders: ProducerOrders) -> None:
        """The step's forward pass begins: what it computes may be asked for already, layer by layer."""
        self._gate.begin(orders.computed)
        if orders.computed:
            self._submit(orders)

    def layer_saved(self, layer: str) -> None:
        """The forward pass has written a layer: copies of it may begin."""
        self._gate.saved(layer)

    def end_step(self, orders: ProducerOrders, *, broken: bool) -> None:
        """The forward pass is over: everything else that the step orders."""
        self._gate.end(broken=broken)
        with self._guard:
            unasked, self._unasked = self._unasked, []
        for request, room in unasked:
            self._await_end(request, room)
        if not orders.computed:
            self._submit(orders)
        for finish in orders.finishes:
            self._finish(finish)
        for abandoned in orders.abandoned:
            if abandoned.request is not None and self._reports.owe(abandoned.request):
                self._give_up(abandoned)
                self._await_end(abandoned.request, abandoned.room)
        for declined in orders.declined:
            self._decline(declined)

    def take(self, finished: set[str], orders: ProducerOrders | None) -> Due:  # noqa: ARG002 - vLLM's hook
        """What is due to vLLM now."""
        sent, _ = self._reports.take(self._idle_wait_s if orders is not None and orders.is_idle else 0.0)
        return Due(sent=sent)

    # ---- one room -------------------------------------------------------------------------------------------------------

    def _submit(self, orders: ProducerOrders) -> None:
        for submission in orders.submissions:
            when_done(partial(self._hand_over, submission), partial(self._submitted, submission.room))

    def _hand_over(self, submission: Submission) -> "Future[dict[str, Any]]":
        run = PageRun(submission.blocks)
        tokens = (submission.token_start, submission.num_tokens)
        return self._engine.submit_chunk(submission.room, self._rank, submission.endpoints, *tokens, run)

    def _submitted(self, room: str, answer: "Future[Any] | EngineError") -> None:
        error = error_of(answer)
        if error is not None:
            self._log.warning("submission_refused", room=room, reason=str(error))
            # The room lacks these tokens for good: let the other side hear of it, if it knows the room at all.
            when_done(partial(self._engine.abort_room, room, self._rank, f"refused: {error}"), lambda _: None)

    def _finish(self, finish: Finish) -> None:
        if not self._reports.owe(finish.request):
            self._log.error("finish_repeated", request=finish.request, room=finish.room)
            return
        # Whatever the answer: how the room ended is heard next.
        when_done(partial(self._engine.finish_room, finish.room, self._rank), lambda _: None)
        self._await_end(finish.request, finish.room)

    def _await_end(self, request: str, room: str) -> None:
        when_done(partial(self._engine.wait_room, room, self._rank), partial(self._ended, request, room))

    def _ended(self, request: str, room: str, answer: "Future[RoomOutcome] | EngineError") -> None:
        error = error_of(answer)
        if error is not None and error.code == "busy":
            with self._guard:
                self._unasked.append((request, room))
            return
        failure = None if error is None else str(error)
        if isinstance(answer, Future) and error is None and not (outcome := answer.result()).done:
            failure = f"{outcome.code}: {outcome.message}"
        if failure is not None:
            self._log.warning("send_failed", request=request, room=room, reason=failure)
        self._reports.settle(request)

    def _decline(self, declined: Decline) -> None:
        """Have the room here for a moment, with a token that nobody reads, so that giving it up reaches the decode side."""
        submission = Submission(declined.room, declined.endpoints, 0, 1, (NULL_BLOCK,))
        when_done(partial(self._hand_over, submission), lambda _: None)
        self._give_up(Abandon(declined.room, declined.reason))

    def _give_up(self, abandoned: Abandon) -> None:
        # Whatever the answer: how the room ended is heard where it is waited for.
        when_done(partial(self._engine.abort_room, abandoned.room, self._rank, abandoned.reason), lambda _: None)

    def _end_of(self, room: str) -> "Future[RoomOutcome] | None":
        """A future of a room's end; ``None`` where the half cannot be asked."""
        try:
            return self._engine.wait_room(room, self._rank)
        except EngineError:
            return None
