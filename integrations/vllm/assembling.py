"""Puts the connector together: for vLLM's scheduler a schedule, for each of its workers a half of the service."""

import secrets
import sys
from functools import partial
from typing import Any, Final, Protocol

from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

from decode_service.server import DecodeStagingServer
from integrations.vllm.cells import CellCopies
from integrations.vllm.configuration import allow_amx, cells_of, check, is_producer, layer_names
from integrations.vllm.consumer_schedule import ConsumerSchedule
from integrations.vllm.consumer_worker import ConsumerWorker
from integrations.vllm.embedding import Embedded, open_logs
from integrations.vllm.engine_types import Blocks, Request, Step
from integrations.vllm.layered_copies import LayeredCopies
from integrations.vllm.orders import Orders
from integrations.vllm.producer_schedule import ProducerSchedule
from integrations.vllm.producer_worker import ProducerWorker
from integrations.vllm.reports import Due
from integrations.vllm.settings import consumer_of_rank, group_of, producer_of_rank, read_consumer, read_producer
from integrations.vllm.step_gate import StepGate
from prefill_service.client import PrefillStagingClient
from runtime.foreign_pool import ForeignPool
from runtime.logs import logger

MIN_DISCARDED: Final = 1 << 20
"""Discard pages of a decode rank, at least: they cost nothing, and a room of a longer prompt than ours fits."""


class Schedule(Protocol):
    """The connector in vLLM's scheduler."""

    def has_orders(self) -> bool:
        """Whether the workers have not been told everything."""

    def new_request(self, request: Request) -> None:
        """A request has arrived."""

    def matched_tokens(self, request: Request, num_computed: int) -> tuple[int | None, bool]:
        """How many tokens come from elsewhere, and whether in the background."""

    def allocated(self, request: Request, blocks: Blocks, num_external: int) -> None:
        """A request has its blocks."""

    def orders_of(self, step: Step) -> Orders:
        """What the workers must do with this step."""

    def finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """A request has ended: whether its blocks are held, and what the client gets."""


class Worker(Protocol):
    """The connector in one of vLLM's workers, in the order of a step."""

    def preempt(self, orders: Any) -> None:  # noqa: ANN401 - the orders of its own kind
        """Let go of blocks that were taken away."""

    def begin_step(self, orders: Any) -> None:  # noqa: ANN401
        """The forward pass begins."""

    def layer_saved(self, layer: str) -> None:
        """It has written a layer."""

    def end_step(self, orders: Any, *, broken: bool) -> None:  # noqa: ANN401
        """It is over."""

    def take(self, finished: set[str], orders: Any) -> Due:  # noqa: ANN401
        """What is to be reported."""


def make_schedule(vllm_config: Any, kv_cache_config: Any) -> Schedule:  # noqa: ANN401 - vLLM's own types
    """The scheduler's half of the connector. Raises what says why not."""
    transfer, block_size = vllm_config.kv_transfer_config, vllm_config.cache_config.block_size
    log = logger(engine=transfer.engine_id)
    if not is_producer(transfer):
        wanted = read_consumer(transfer.kv_connector_extra_config)
        open_logs(wanted.service.log_level)
        check(vllm_config, kv_cache_config, allow_other=wanted.options.allow_other_vllm)
        return ConsumerSchedule(group=wanted.options.prefill_group, block_size=block_size, log=log)
    settings = read_producer(transfer.kv_connector_extra_config)
    open_logs(settings.service.log_level)
    check(vllm_config, kv_cache_config, allow_other=settings.options.allow_other_vllm)
    return ProducerSchedule(
        life=secrets.token_hex(4),
        engine=transfer.engine_id,
        group=group_of(settings.service),
        endpoints=settings.options.decode_endpoints,
        tp_size=vllm_config.parallel_config.tensor_parallel_size,
        block_size=block_size,
        by_layer=settings.options.save == "layer",
        log=log,
    )


class EmbeddedWorker:
    """A worker of the connector and the half of the service that it commands, from the moment in which there are caches."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any) -> None:  # noqa: ANN401
        """Raises what says why not, before anything starts."""
        allow_amx()
        self._config = vllm_config
        self._rank = get_tensor_model_parallel_rank()
        transfer = vllm_config.kv_transfer_config
        producer = is_producer(transfer)
        self._make = self._make_producer if producer else self._make_consumer
        settings = (read_producer if producer else read_consumer)(transfer.kv_connector_extra_config)
        open_logs(settings.service.log_level)
        check(vllm_config, kv_cache_config, allow_other=settings.options.allow_other_vllm)
        self._error_before: BaseException | None = None
        self._half: Embedded | None = None
        self._worker: Worker | None = None

    def start(self, kv_caches: dict[str, Any]) -> None:
        """Serve these caches. Raises ``StartError``, ``EngineError`` or what else says why not."""
        self._worker, self._half = self._make(kv_caches)

    def stop(self) -> None:
        """End the half."""
        if self._half is not None:
            self._half.stop()

    def preempt(self, orders: Orders) -> None:
        """Blocks were taken away."""
        if self._worker is not None:
            self._worker.preempt(orders)

    def begin_step(self, orders: Orders) -> None:
        """The forward pass begins."""
        self._error_before = sys.exc_info()[1]
        if self._worker is not None:
            self._worker.begin_step(orders)

    def layer_saved(self, layer: str) -> None:
        """The forward pass has written a layer."""
        if self._worker is not None:
            self._worker.layer_saved(layer)

    def end_step(self, orders: Orders) -> None:
        """The forward pass is over. vLLM says so also while an error of it is on its way up."""
        error = sys.exc_info()[1]
        # An error that was there before belongs to whoever drives the engine.
        broken = error is not None and error is not self._error_before
        if self._worker is not None:
            self._worker.end_step(orders, broken=broken)

    def take(self, finished: set[str], orders: Orders | None) -> Due:
        """What is to be reported."""
        return Due() if self._worker is None else self._worker.take(finished, orders)

    def _make_consumer(self, kv_caches: dict[str, Any]) -> tuple[Worker, Embedded]:
        settings = read_consumer(self._config.kv_transfer_config.kv_connector_extra_config)
        layout, cache = cells_of(self._config, kv_caches, self._rank)
        service = consumer_of_rank(settings.service, self._rank, layout.tp_size)
        server = DecodeStagingServer(service)
        worker = ConsumerWorker(
            server.engine,
            rank=self._rank,
            num_blocks=cache.num_blocks,
            block_size=cache.order.block_size,
            timeout_s=settings.options.load_timeout_s,
            idle_wait_s=settings.options.idle_wait_s,
            log=logger(decode_id=service.decode_id, rank=self._rank),
        )
        pages = cache.num_blocks + max(MIN_DISCARDED, cache.num_blocks)
        scatter = CellCopies(cache).scatter
        pool = ForeignPool(layout, cache.order.block_size, pages, scatter=scatter, closed=worker.pool_closed)
        attach = partial(server.engine.attach_pool, self._rank, pool)
        return worker, Embedded(server, attach)

    def _make_producer(self, kv_caches: dict[str, Any]) -> tuple[Worker, Embedded]:
        settings = read_producer(self._config.kv_transfer_config.kv_connector_extra_config)
        layout, cache = cells_of(self._config, kv_caches, self._rank)
        service = producer_of_rank(settings.service, self._rank, layout.tp_size)
        client = PrefillStagingClient(service)
        gate = StepGate(layer_names(kv_caches), settings.options.layer_wait_s)
        worker = ProducerWorker(
            client.engine,
            gate,
            rank=self._rank,
            preempt_wait_s=settings.options.preempt_wait_s,
            idle_wait_s=settings.options.idle_wait_s,
            log=logger(prefill_id=service.prefill_id, rank=self._rank),
        )
        gather = LayeredCopies(cache, gate).gather
        pool = ForeignPool(layout, cache.order.block_size, cache.num_blocks, gather=gather)
        attach = partial(client.engine.attach_pool, self._rank, pool)
        return worker, Embedded(client, attach)
