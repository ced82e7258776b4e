"""The prefill engine's scheduler side: which tokens go where, and until when their blocks must be held. Pure.

A request that is to be sent has one *room*. With ``save="finish"`` it is handed over whole when the request finishes. With
``save="layer"`` the tokens of each step are handed over as the step begins, and the worker lets each layer go as it is saved.
Once anything was handed over, the blocks are held until every worker has seen the room end.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from structlog.typing import FilteringBoundLogger

from integrations.vllm.engine_types import Blocks, Request, Step
from integrations.vllm.orders import NULL_BLOCK, Abandon, Decline, Finish, ProducerOrders, Submission
from integrations.vllm.params import Save, TransferParamsError, answer, read_save

SENDABLE: Final = frozenset({"FINISHED_LENGTH_CAPPED", "FINISHED_STOPPED"})
"""Ends of a request after which its prompt's KV is complete."""
_UNCLEAN = re.compile(r"[^A-Za-z0-9._:-]")
_MAX_NAME = 64


@dataclass(slots=True)
class _Sending:
    """One request on its way."""

    wanted: Save
    num_tokens: int
    """Of the prompt: the whole room."""
    number: int
    attempt: int = 1
    blocks: list[int] = field(default_factory=list)
    submitted: int = 0
    given_up: bool = False
    """Its room has failed and another cannot take its place, since the client chose the name."""


class ProducerSchedule:
    """Turns what vLLM's scheduler decides into orders for the workers. One for each engine."""

    def __init__(
        self,
        *,
        life: str,
        engine: str,
        group: str,
        endpoints: tuple[str, ...],
        tp_size: int,
        block_size: int,
        by_layer: bool,
        log: FilteringBoundLogger,
    ) -> None:
        self._life = life
        self._engine = engine
        self._group = group
        self._endpoints = endpoints
        self._tp_size = tp_size
        self._block_size = block_size
        self._by_layer = by_layer
        self._log = log
        self._sending: dict[str, _Sending] = {}
        self._orders = ProducerOrders()
        self._numbers = 0

    def has_orders(self) -> bool:
        """Whether the workers have not been told everything: then the engine must make another step."""
        return bool(self._orders.finishes or self._orders.abandoned or self._orders.declined)

    def new_request(self, request: Request) -> None:
        """Take note of a request that is to be sent. A malformed wish is logged, and the request is served without it."""
        try:
            wanted = read_save(request.kv_transfer_params)
        except TransferParamsError as error:
            self._log.warning("transfer_params_refused", request=request.request_id, reason=str(error))
            return
        if wanted is not None:
            self._numbers += 1
            self._sending[request.request_id] = _Sending(wanted, request.num_prompt_tokens, self._numbers)

    def matched_tokens(self, request: Request, num_computed: int) -> tuple[int | None, bool]:  # noqa: ARG002 - vLLM's hook
        """A prefill engine loads nothing."""
        return 0, False

    def allocated(self, request: Request, blocks: Blocks, num_external: int) -> None:
        """Nothing to do: blocks come with the step."""

    def orders_of(self, step: Step) -> ProducerOrders:
        """Everything that the workers must do with this step."""
        orders, self._orders = self._orders, ProducerOrders()
        orders.is_idle = step.total_num_scheduled_tokens == 0
        for name in sorted(step.preempted_req_ids or ()):
            self._preempted(name, orders)
        if self._by_layer:
            self._follow(step, orders)
        return orders

    def finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """``(hold the blocks, what the client gets)`` for a request that has ended, in whatever way."""
        sending = self._sending.pop(request.request_id, None)
        if sending is None or sending.given_up:
            return False, None
        total = min(request.num_computed_tokens, sending.num_tokens)
        blocks = block_ids[: -(-total // self._block_size)]
        room = self._room(request.request_id, sending)
        if request.status.name not in SENDABLE:
            return self._abandon(request, sending, room), None
        if not blocks or NULL_BLOCK in blocks:
            self._log.warning("blocks_incomplete", request=request.request_id, blocks=len(blocks), tokens=total)
            return self._abandon(request, sending, room), None
        if sending.submitted < total:
            self._submit(self._orders, room, sending, blocks, total)
        self._orders.finishes.append(Finish(request.request_id, room))
        return True, answer(
            engine=self._engine,
            request=request.request_id,
            blocks=blocks,
            tp_size=self._tp_size,
            num_tokens=total,
            room=room,
            group=self._group,
        )

    def _abandon(self, request: Request, sending: _Sending, room: str) -> bool:
        """Nobody gets this request. Its blocks are held if anything of it may be read by now.

        Where the client named the room, the decode engine may have been asked for it already: it must not wait.
        """
        name = request.request_id
        reason = f"the prefill engine ended the request: {request.status.name}"
        if sending.submitted:
            self._orders.abandoned.append(Abandon(room, reason, name))
            return True
        if sending.wanted.room is not None:
            self._orders.declined.append(Decline(room, sending.wanted.endpoints or self._endpoints, reason))
        return False

    def _preempted(self, name: str, orders: ProducerOrders) -> None:
        """VLLM has taken the blocks away and will begin anew: so does the room, under another name."""
        sending = self._sending.get(name)
        if sending is None:
            return
        if sending.submitted:
            room = self._room(name, sending)
            orders.preempted.append(Abandon(room, "the prefill engine preempted the request"))
            self._log.info("room_preempted", request=name, room=room, tokens=sending.submitted)
            sending.given_up = sending.wanted.room is not None
        sending.attempt += 1
        sending.submitted = 0
        sending.blocks.clear()

    def _follow(self, step: Step, orders: ProducerOrders) -> None:
        """Hand over what this step computes, of every request that is to be sent."""
        computed: set[int] = set()
        for new in step.scheduled_new_reqs:
            computed |= self._advance(step, orders, new.req_id, new.num_computed_tokens, new.block_ids[0], anew=True)
        cached = step.scheduled_cached_reqs
        entries = zip(cached.req_ids, cached.num_computed_tokens, cached.new_block_ids, strict=True)
        for name, before, new_blocks in entries:
            added = new_blocks[0] if new_blocks else ()
            anew = name in cached.resumed_req_ids
            computed |= self._advance(step, orders, name, before, added, anew=anew)
        orders.computed = frozenset(computed)

    def _advance(
        self,
        step: Step,
        orders: ProducerOrders,
        name: str,
        before: int,
        blocks: Sequence[int],
        *,
        anew: bool,
    ) -> set[int]:
        """Of one request; the blocks of it that the step writes."""
        sending = self._sending.get(name)
        if sending is None or sending.given_up:
            return set()
        if anew:
            sending.blocks.clear()
        sending.blocks.extend(blocks)
        end = min(before + step.num_scheduled_tokens.get(name, 0), sending.num_tokens)
        needed = -(-end // self._block_size)
        held = sending.blocks[:needed]
        if end <= sending.submitted or len(held) < needed or NULL_BLOCK in held:
            return set()
        self._submit(orders, self._room(name, sending), sending, held, end)
        return set(held[before // self._block_size :])

    def _submit(self, orders: ProducerOrders, room: str, sending: _Sending, blocks: list[int], end: int) -> None:
        endpoints = sending.wanted.endpoints or self._endpoints
        count = end - sending.submitted
        orders.submissions.append(Submission(room, endpoints, sending.submitted, count, tuple(blocks)))
        sending.submitted = end

    def _room(self, name: str, sending: _Sending) -> str:
        if sending.wanted.room is not None:
            return sending.wanted.room
        return f"{self._life}-{sending.number}.{sending.attempt}.{clean_name(name)}"


def clean_name(request: str) -> str:
    """A request's id as part of a room's: readable where it may be, and never ambiguous enough to matter."""
    cleaned = _UNCLEAN.sub("_", request)[:_MAX_NAME]
    return cleaned if cleaned == request else f"{cleaned}~{hashlib.blake2s(request.encode(), digest_size=4).hexdigest()}"
