"""Scattering slices into pages, and the whole way there from the prefill pages, judged by the independent reference."""

from dataclasses import dataclass
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from decode_service.scatter import scatter
from lab.reference import Comparison, compare, fill
from prefill_service.gather import gather
from protocol.layout import (
    ModelLayout,
    PageRun,
    RankLayout,
    TensorSpec,
    even_stage_bounds,
    expected_writers,
    layout_differences,
    rank_token_bytes,
)
from runtime.page_runs import PageRunError
from runtime.pool import KvPool
from runtime.pool_layout import Arrangement, arrange_pool

MODEL = ModelLayout(((TensorSpec("k", 4, 16, "x"), TensorSpec("v", 4, 8, "x")),) * 2)
DECODE = RankLayout(MODEL, 0, 2, 0, 1, (0, 2))


def test_a_scatter_touches_only_its_own_heads_of_its_own_tokens() -> None:
    """Writer 1 of two fills head 1 of seven tokens in each tensor; every other byte of the pool stays as it was."""
    (_, writer) = expected_writers(RankLayout(MODEL, 0, 4, 0, 1, (0, 2)), DECODE)
    layout = arrange_pool(DECODE, 4, 8)
    pool = KvPool.over(bytearray(layout.total_bytes), layout)
    scatter(pool, writer, PageRun((5, 6, 1), 2), 1, 7, memoryview(b"\1" * (7 * writer.token_bytes)))
    for layer in (0, 1):
        for tensor in (0, 1):
            view = pool.view(layer, tensor)
            for page, slot in [(5, 3), (6, 0), (6, 1), (6, 2), (6, 3), (1, 0), (1, 1)]:
                assert (view[page, slot, 1] == 1).all()
    assert np.count_nonzero(pool.memory) == 7 * writer.token_bytes


def test_a_page_outside_the_pool_is_refused_and_nothing_is_written() -> None:
    """A wrong page list cannot reach memory that is not the room's."""
    (writer, _) = expected_writers(RankLayout(MODEL, 0, 4, 0, 1, (0, 2)), DECODE)
    layout = arrange_pool(DECODE, 4, 8)
    pool = KvPool.over(bytearray(layout.total_bytes), layout)
    with pytest.raises(PageRunError, match="expected 0 to 7"):
        scatter(pool, writer, PageRun((0, 8)), 0, 8, memoryview(b"\1" * (8 * writer.token_bytes)))
    assert not pool.memory.any()


@dataclass(frozen=True)
class Parallel:
    """TP and PP sizes of both sides."""

    prefill_tp: int
    decode_tp: int
    prefill_pp: int = 1
    decode_pp: int = 1


def move(model: ModelLayout, sizes: Parallel, random: Random, tokens: int, chunk_tokens: int) -> Comparison:
    """Send one room from a prefill group to every decode rank, chunk by chunk, and compare all that the ranks hold."""
    page_sizes = random.choice([1, 4, 16]), random.choice([1, 4, 16])
    firsts = random.randrange(20), random.randrange(20)
    source, destination = (_pages(random, size, first, tokens) for size, first in zip(page_sizes, firsts, strict=True))
    prefill = {
        rank_key: _pool(rank, page_sizes[0], random) for rank_key, rank in _ranks(model, sizes.prefill_tp, sizes.prefill_pp)
    }
    for pool in prefill.values():
        fill(pool, source, tokens, seed=3, room="room-1")
    result = Comparison(0)
    for _, decode in _ranks(model, sizes.decode_tp, sizes.decode_pp):
        pool = _pool(decode, page_sizes[1], random)
        for writer in expected_writers(prefill[0, 0].layout.rank, decode):
            for start in range(0, tokens, chunk_tokens):
                count = min(chunk_tokens, tokens - start)
                block = memoryview(bytearray(count * writer.token_bytes))
                gather(prefill[writer.writer], writer, source, start, count, block)
                scatter(pool, writer, destination, start, count, block)
        result += compare(pool, destination, tokens, seed=3, room="room-1")
    return result


def _ranks(model: ModelLayout, tp: int, pp: int) -> list[tuple[tuple[int, int], RankLayout]]:
    bounds = even_stage_bounds(len(model.layers), pp)
    return [((t, p), RankLayout(model, t, tp, p, pp, bounds)) for t in range(tp) for p in range(pp)]


def _pool(rank: RankLayout, page_size: int, random: Random) -> KvPool:
    layout = arrange_pool(rank, page_size, 150, random.choice(list(Arrangement)))
    return KvPool.over(bytearray(layout.total_bytes), layout)


def _pages(random: Random, page_size: int, first: int, tokens: int) -> PageRun:
    return PageRun(tuple(random.sample(range(150), -(-(first + tokens) // page_size))), first)


KINDS = ("grouped", "mixed", "latent", "both")


def kv_model(kind: str, heads: int) -> ModelLayout:
    """Two to four small layers with this many heads, of the kind named."""
    k, v = TensorSpec("k", heads, 16, "x"), TensorSpec("v", heads, 8, "x")
    latent = TensorSpec("latent", 1, 20, "x", sharded=False)
    match kind:
        case "grouped":
            layers: tuple[tuple[TensorSpec, ...], ...] = ((k, TensorSpec("v", heads, 16, "x")),)
        case "mixed":
            layers = ((k, v), (TensorSpec("kv", 8, 12, "x"),))
        case "latent":
            layers = ((latent,),)
        case _:
            layers = ((k, latent),)
    return ModelLayout(layers * 2)


SIZES = st.sampled_from([1, 2, 4, 8])


@settings(max_examples=60)
@given(
    random=st.randoms(use_true_random=False),
    kind=st.sampled_from(KINDS),
    heads=SIZES,
    sizes=st.builds(Parallel, SIZES, SIZES, st.integers(1, 2)),
    staged=st.booleans(),
)
def test_every_byte_arrives_for_any_pair_of_layouts(
    random: Random, kind: str, heads: int, sizes: Parallel, staged: bool
) -> None:
    """TP up and down, replicated heads, stages, latents, any page sizes and arrangements: every decode rank is right."""
    model = kv_model(kind, heads)
    if staged:
        sizes = Parallel(sizes.prefill_tp, sizes.decode_tp, sizes.prefill_pp, sizes.prefill_pp)
    decode_ranks = [rank for _, rank in _ranks(model, sizes.decode_tp, sizes.decode_pp)]
    assume(not layout_differences(_ranks(model, sizes.prefill_tp, sizes.prefill_pp)[0][1], decode_ranks[0]))
    tokens = random.randint(1, 60)
    result = move(model, sizes, random, tokens, chunk_tokens=random.choice([7, 16, 64]))
    assert result == Comparison(tokens * sum(rank_token_bytes(rank) for rank in decode_ranks))
