"""``PdStagingConnector``: the class that vLLM loads. It only knows vLLM's names for things; the work is done elsewhere.

vLLM makes one for its scheduler and one for each worker. Name this module as ``kv_connector_module_path``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from integrations.vllm.assembling import EmbeddedWorker, Schedule, make_schedule
from integrations.vllm.engine_types import Blocks, Request, Step
from integrations.vllm.orders import Orders


@dataclass
class StagingMetadata(KVConnectorMetadata):
    """The orders of one step, as vLLM carries them to its workers."""

    orders: Orders


class PdStagingConnector(KVConnectorBase_V1):
    """Prefill and decode engines exchange KV through the staging ring of the decode side."""

    _cache_hit_source = CacheHitSource.P2P

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:  # noqa: ANN401 - vLLM's own types
        super().__init__(vllm_config, role, kv_cache_config)
        schedules = role == KVConnectorRole.SCHEDULER
        self._schedule = make_schedule(vllm_config, kv_cache_config) if schedules else None
        self._worker = None if schedules else EmbeddedWorker(vllm_config, kv_cache_config)
        self._bad_blocks: set[int] = set()

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: Mapping[str, Any]) -> bool:
        """Layers that leave as they are saved need their hook to be called between them."""
        return bool(extra_config.get("save") == "layer")

    # ---- scheduler ------------------------------------------------------------------------------------------------------

    def on_new_request(self, request: Request) -> None:
        """A request has arrived."""
        self._scheduling.new_request(request)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        """How many tokens come from elsewhere."""
        return self._scheduling.matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Request, blocks: Blocks, num_external_tokens: int) -> None:
        """A request has its blocks."""
        self._scheduling.allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Step) -> StagingMetadata:
        """A step is planned."""
        return StagingMetadata(self._scheduling.orders_of(scheduler_output))

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """A request has ended."""
        return self._scheduling.finished(request, block_ids)

    def has_pending_push_work(self) -> bool:
        """Whether another step must come even if no request needs one."""
        return self._scheduling.has_orders()

    # ---- worker, in the order of a step -----------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """The cache exists: start the half of the service over it."""
        self._working.start(kv_caches)

    def handle_preemptions(self, kv_connector_metadata: StagingMetadata) -> None:
        """Blocks were taken away, and the coming forward pass may write them."""
        self._working.preempt(kv_connector_metadata.orders)

    def bind_connector_metadata(self, connector_metadata: StagingMetadata) -> None:
        """A step begins."""
        super().bind_connector_metadata(connector_metadata)
        self._working.begin_step(connector_metadata.orders)

    def start_load_kv(self, forward_context: object, **kwargs: object) -> None:
        """Nothing: loads run in the background, and begin at the end of the step."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: no forward pass uses blocks that are being loaded."""

    def save_kv_layer(self, layer_name: str, kv_layer: object, attn_metadata: object, **kwargs: object) -> None:  # noqa: ARG002
        """A layer of the cache has been written."""
        self._working.layer_saved(layer_name)

    def wait_for_save(self) -> None:
        """The forward pass is over."""
        self._working.end_step(self._get_connector_metadata().orders)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """``(sent, received)`` since the last time."""
        metadata = self._connector_metadata
        due = self._working.take(finished_req_ids, None if metadata is None else metadata.orders)
        self._bad_blocks |= due.bad_blocks
        return set(due.sent) or None, set(due.received) or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks of the failed loads among those received."""
        bad, self._bad_blocks = self._bad_blocks, set()
        return bad

    def shutdown(self) -> None:
        """The engine ends."""
        if self._worker is not None:
            self._worker.stop()

    @property
    def _scheduling(self) -> Schedule:
        assert self._schedule is not None, "a hook of the scheduler, called in a worker"
        return self._schedule

    @property
    def _working(self) -> EmbeddedWorker:
        assert self._worker is not None, "a hook of the workers, called in the scheduler"
        return self._worker
