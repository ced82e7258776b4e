"""The decode engine's scheduler side: which rooms to load into which blocks, and which to let go unread. Pure.

A room counts from the prompt's first token. What the local prefix cache holds already is not written: the blocks in its place
are ``DISCARD``. Each request loads once at most; preempted afterwards, it is computed here.
"""

from typing import Any, Final

from structlog.typing import FilteringBoundLogger

from integrations.vllm.engine_types import Blocks, Request, Step
from integrations.vllm.orders import DISCARD, NULL_BLOCK, ConsumerOrders, Load, Release
from integrations.vllm.params import Fetch, TransferParamsError, read_fetch

REMEMBERED: Final = 65_536
"""Rooms of which it is known that they have their request."""


class ConsumerSchedule:
    """Turns what vLLM's scheduler decides into orders for the workers. One for each engine."""

    def __init__(self, *, group: str, block_size: int, log: FilteringBoundLogger) -> None:
        self._group = group
        self._block_size = block_size
        self._log = log
        self._waiting: dict[str, Fetch] = {}
        """What requests want that have no blocks yet."""
        self._takers: dict[str, str] = {}
        """By room, the request that it is for; the latest ``REMEMBERED`` of them."""
        self._orders = ConsumerOrders()

    def has_orders(self) -> bool:
        """Whether the workers have not been told everything: then the engine must make another step."""
        return bool(self._orders.loads or self._orders.releases)

    def new_request(self, request: Request) -> None:
        """Take note of a request whose KV comes from elsewhere. A malformed wish is logged, and the prompt computed here."""
        try:
            wanted = read_fetch(request.kv_transfer_params)
        except TransferParamsError as error:
            self._log.warning("transfer_params_refused", request=request.request_id, reason=str(error))
            self._close(request)
            return
        if wanted is None:
            return
        if not self._take(wanted.room, request.request_id):
            self._log.info("room_taken_already", request=request.request_id, room=wanted.room)
            self._close(request)
            return
        self._waiting[request.request_id] = wanted

    def matched_tokens(self, request: Request, num_computed: int) -> tuple[int | None, bool]:
        """``(tokens that a room brings beyond those computed, whether they come in the background)``. May be asked again."""
        wanted = self._waiting.get(request.request_id)
        brought = 0 if wanted is None else self._usable(request, wanted) - num_computed
        return (brought, True) if brought > 0 else (0, False)

    def allocated(self, request: Request, blocks: Blocks, num_external: int) -> None:
        """The request has its blocks: load into them, or let the room go if the local cache holds everything."""
        wanted = self._waiting.pop(request.request_id, None)
        if wanted is None:
            return
        self._close(request)
        if num_external <= 0:
            self._release(request, wanted)
            return
        held = self._usable(request, wanted)
        first, last = (held - num_external) // self._block_size, -(-held // self._block_size)
        num_tokens = wanted.num_tokens or request.num_prompt_tokens
        room_blocks = -(-num_tokens // self._block_size)
        into = tuple(DISCARD if block == NULL_BLOCK else block for block in blocks.get_block_ids()[0][first:last])
        placed = (DISCARD,) * first + into + (DISCARD,) * (room_blocks - last)
        group = wanted.group or self._group
        self._orders.loads.append(Load(request.request_id, wanted.room, group, num_tokens, placed))

    def orders_of(self, step: Step) -> ConsumerOrders:
        """Everything that the workers must do with this step."""
        orders, self._orders = self._orders, ConsumerOrders()
        orders.is_idle = step.total_num_scheduled_tokens == 0
        return orders

    def finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:  # noqa: ARG002 - vLLM's hook
        """A request that ended before it had blocks was refused or aborted: the prefill engine must not wait for it.

        The workers hear of every end themselves; a load that runs is given up there, and vLLM holds its blocks meanwhile.
        """
        wanted = self._waiting.pop(request.request_id, None)
        if wanted is not None:
            self._close(request)
            self._release(request, wanted)
        return False, None

    def _take(self, room: str, request: str) -> bool:
        """Whether the room is this request's. The other samples of one prompt, or a request said twice, compute it here."""
        taker = self._takers.setdefault(room, request)
        if len(self._takers) > REMEMBERED:
            del self._takers[next(iter(self._takers))]
        return taker == request

    def _usable(self, request: Request, wanted: Fetch) -> int:
        return min(wanted.num_tokens or request.num_prompt_tokens, request.num_prompt_tokens)

    def _release(self, request: Request, wanted: Fetch) -> None:
        num_tokens = wanted.num_tokens or request.num_prompt_tokens
        self._orders.releases.append(Release(wanted.room, wanted.group or self._group, num_tokens))

    @staticmethod
    def _close(request: Request) -> None:
        """Once for each request, also where it is preempted later: vLLM itself looks at this key."""
        if isinstance(request.kv_transfer_params, dict):
            request.kv_transfer_params["do_remote_prefill"] = False
