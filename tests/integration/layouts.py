"""Parallel layouts of both sides, and a pair of daemons inside the test's process that moves KV between them.

Pools lie in private memory; sockets, rings, machines and copies are those of the daemons. What the decode pools must hold is
said by the laboratory's independent model, and nothing but the room's tokens may have changed in them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from decode_service.config import DecodeServiceConfig
from decode_service.server import DecodeStagingServer
from lab.ports import free_port_base
from lab.reference import Comparison, compare, fill
from prefill_service.client import PrefillStagingClient
from prefill_service.config import PrefillServiceConfig
from protocol.layout import ModelLayout, PageRun, RankLayout, TensorSpec, chunk_bytes, even_stage_bounds, expected_writers
from runtime.pool import KvPool
from runtime.pool_layout import Arrangement, arrange_pool

WAIT_S = 60
CHUNK_TOKENS = 16
NUM_PAGES = 24
UNTOUCHED = 0xA5
"""What decode pools hold before the transfer."""
SEED = 7


def grouped(layers: int = 2, heads: int = 4, item_bytes: int = 2, dtype: str = "bfloat16", head_dim: int = 8) -> ModelLayout:
    """K and V of equal width."""
    specs = tuple(TensorSpec(name, heads, head_dim * item_bytes, dtype) for name in ("k", "v"))
    return ModelLayout((specs,) * layers)


@dataclass(frozen=True, slots=True)
class Parallel:
    """How one side splits the model. ``dp`` prefill groups serve requests of their own; ``page_size`` in tokens."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    page_size: int = 8
    order: Arrangement = Arrangement.TOKEN_MAJOR
    stage_bounds: tuple[int, ...] = ()

    def ranks(self, model: ModelLayout) -> list[RankLayout]:
        """Every rank of one group, stage by stage."""
        bounds = self.stage_bounds or even_stage_bounds(len(model.layers), self.pp)
        return [RankLayout(model, tp, self.tp, pp, self.pp, bounds) for pp in range(self.pp) for tp in range(self.tp)]

    def pools(self, model: ModelLayout) -> list[KvPool]:
        """A pool for each rank of each group, filled with ``UNTOUCHED``."""
        layouts = [arrange_pool(rank, self.page_size, NUM_PAGES, self.order) for rank in self.ranks(model) * self.dp]
        return [KvPool.over(bytearray([UNTOUCHED]) * layout.total_bytes, layout) for layout in layouts]


@dataclass(frozen=True, slots=True)
class Case:
    """One layout and one room for each prefill group."""

    model: ModelLayout
    prefill: Parallel
    decode: Parallel
    num_tokens: int = 2 * CHUNK_TOKENS + 5
    cached_tokens: int = 0
    """Tokens before the room's first that the decode side has cached: whole pages there."""
    source_first_token: int = 3
    """Where the prompt begins within its first prefill page."""


class EmbeddedPair:
    """Both services in this process, with every pool of a case. A context manager."""

    def __init__(self, case: Case, folder: Path, plane: str) -> None:
        self.case = case
        self.prefill_pools, self.decode_pools = case.prefill.pools(case.model), case.decode.pools(case.model)
        self.attached: list[KvPool] = [*self.prefill_pools, *self.decode_pools]
        """What the services are given; a test may put other pools in place of these."""
        prefill, decode = case.prefill.ranks(case.model), case.decode.ranks(case.model)
        ring_bytes = max(chunk_bytes(expected_writers(prefill[0], rank), CHUNK_TOKENS) for rank in decode) * 3 // 2
        port = free_port_base(2 * len(decode))
        self.endpoints = [f"tcp://127.0.0.1:{port + rank}" for rank in range(len(decode))]
        (folder / "shm").mkdir()
        common: dict[str, Any] = {"chunk_tokens": CHUNK_TOKENS, "planes": (plane,), "shm_dir": folder / "shm"}
        common["runtime_dir"] = folder / "run"
        common["http_port"] = 0
        ports: dict[str, Any] = {"base_port": port, "data_base_port": port + len(decode), "ring_bytes": ring_bytes}
        self.server = DecodeStagingServer(DecodeServiceConfig(ranks=tuple(range(len(decode))), **ports, **common))
        ranks = tuple(range(len(self.prefill_pools)))
        self.client = PrefillStagingClient(PrefillServiceConfig(ranks=ranks, attention_tp=len(prefill), **common))

    def __enter__(self) -> Self:
        self.server.start()
        self.client.start()
        prefill, decode = self.attached[: len(self.prefill_pools)], self.attached[len(self.prefill_pools) :]
        calls = [self.server.engine.attach_pool(rank, pool) for rank, pool in enumerate(decode)]
        calls += [self.client.engine.attach_pool(rank, pool) for rank, pool in enumerate(prefill)]
        for call in calls:
            call.result(WAIT_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for service in (self.client, self.server):
            service.request_stop()
        for service in (self.client, self.server):
            assert service.join() == 0

    def group_ranks(self, group: int) -> range:
        """The client's ranks of one prefill group."""
        size = self.case.prefill.tp * self.case.prefill.pp
        return range(group * size, (group + 1) * size)

    def carry(self, room: str, group: int, source: PageRun, destination: PageRun) -> list[str]:
        """Move one room from one group; the codes of all ranks on which it failed."""
        case, sender, receiver = self.case, self.client.engine, self.server.engine
        ranks, decode = self.group_ranks(group), range(len(self.decode_pools))
        for rank in ranks:
            fill(self.prefill_pools[rank], source, case.num_tokens, seed=SEED, room=room)
        calls = [receiver.register_room(room, rank, f"prefill-dp{group}", case.num_tokens, destination) for rank in decode]
        for rank in ranks:
            for start in range(0, case.num_tokens, CHUNK_TOKENS):
                count = min(CHUNK_TOKENS, case.num_tokens - start)
                calls.append(sender.submit_chunk(room, rank, self.endpoints, start, count, source))
            calls.append(sender.finish_room(room, rank))
        for call in calls:
            call.result(WAIT_S)
        waits = [receiver.wait_room(room, rank) for rank in decode] + [sender.wait_room(room, rank) for rank in ranks]
        return [outcome.code for wait in waits if not (outcome := wait.result(WAIT_S)).done]

    def compared(self, room: str, destination: PageRun) -> Comparison:
        """Every KV byte of the room on every decode rank against what it must be."""
        total = Comparison(0)
        for pool in self.decode_pools:
            total += compare(pool, destination, self.case.num_tokens, seed=SEED, room=room)
        return total

    def bytes_outside(self, runs: Sequence[PageRun]) -> int:
        """Decode bytes that changed although they belong to none of these rooms."""
        changed = 0
        for pool in self.decode_pools:
            page_size, own = pool.layout.page_size, pool.memory.copy()
            # The rooms' own rows count as untouched; everything else must be.
            erased = KvPool.over(own, pool.layout)
            for run in runs:
                at = np.arange(run.first_token, run.first_token + self.case.num_tokens)
                pages, slots = np.array(run.pages)[at // page_size], at % page_size
                for place in pool.layout.tensors:
                    erased.view(place.layer, place.tensor)[pages, slots] = UNTOUCHED
            changed += int(np.count_nonzero(own != UNTOUCHED))
        return changed


def page_runs(case: Case, group: int) -> tuple[PageRun, PageRun]:
    """Scattered pages of a group's room: on the decode side behind the cached prefix, with a last page partly filled."""
    order = np.random.default_rng(group)
    share = NUM_PAGES // case.prefill.dp
    source_pages = -(-(case.source_first_token + case.num_tokens) // case.prefill.page_size)
    decode_pages = -(-(case.cached_tokens + case.num_tokens) // case.decode.page_size)
    assert case.cached_tokens % case.decode.page_size == 0
    source = order.permutation(NUM_PAGES)[:source_pages]
    destination = group * share + order.permutation(share)[:decode_pages]
    return PageRun(tuple(source.tolist()), case.source_first_token), PageRun(tuple(destination.tolist()), case.cached_tokens)
