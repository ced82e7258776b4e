"""The parts of vLLM's scheduler objects that the connector reads, as protocols: no vLLM is needed to test against them."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Named(Protocol):
    """A member of an enumeration."""

    @property
    def name(self) -> str:
        """Such as ``FINISHED_LENGTH_CAPPED``."""


class Request(Protocol):
    """``vllm.v1.request.Request``."""

    @property
    def request_id(self) -> str:
        """Unlike that of the other engine."""

    @property
    def kv_transfer_params(self) -> Any:  # noqa: ANN401 - JSON of a client
        """What came with the request."""

    @property
    def status(self) -> Named:
        """A ``RequestStatus``."""

    @property
    def num_computed_tokens(self) -> int:
        """Tokens whose KV exists."""

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""


class Blocks(Protocol):
    """``vllm.v1.core.kv_cache_manager.KVCacheBlocks``."""

    def get_block_ids(self) -> Sequence[Sequence[int]]:
        """Ids by KV cache group."""


class NewRequest(Protocol):
    """``vllm.v1.core.sched.output.NewRequestData``: a request's first step."""

    @property
    def req_id(self) -> str:
        """The request."""

    @property
    def block_ids(self) -> Sequence[Sequence[int]]:
        """All its blocks, by KV cache group."""

    @property
    def num_computed_tokens(self) -> int:
        """Tokens whose KV exists before the step."""


class CachedRequests(Protocol):
    """``vllm.v1.core.sched.output.CachedRequestData``: parallel lists, one entry for each request of a further step."""

    @property
    def req_ids(self) -> Sequence[str]:
        """The requests."""

    @property
    def resumed_req_ids(self) -> set[str]:
        """Those whose new blocks replace all former ones, after a preemption."""

    @property
    def new_block_ids(self) -> Sequence[Sequence[Sequence[int]] | None]:
        """What they got, by KV cache group; ``None`` for nothing."""

    @property
    def num_computed_tokens(self) -> Sequence[int]:
        """Tokens whose KV exists before the step."""


class Step(Protocol):
    """``vllm.v1.core.sched.output.SchedulerOutput``."""

    @property
    def scheduled_new_reqs(self) -> Sequence[NewRequest]:
        """Requests in their first step."""

    @property
    def scheduled_cached_reqs(self) -> CachedRequests:
        """Requests in a further step."""

    @property
    def num_scheduled_tokens(self) -> Mapping[str, int]:
        """Tokens that the step computes, by request."""

    @property
    def total_num_scheduled_tokens(self) -> int:
        """Of all requests."""

    @property
    def preempted_req_ids(self) -> set[str] | None:
        """Requests whose blocks were taken away."""
