"""The reference model must notice what it is there to notice."""

from itertools import combinations

import numpy as np
import pytest

from lab.presets import PRESETS
from lab.reference import Comparison, compare, fill
from protocol.layout import ModelLayout, PageRun, RankLayout, TensorSpec, rank_token_bytes
from runtime.pool import KvPool
from runtime.pool_layout import Arrangement, arrange_pool

TINY = PRESETS["tiny"].model
RUN = PageRun((3, 0, 5, 1), first_token=5)
TOKENS = 50


def pool_of(rank: RankLayout, order: Arrangement = Arrangement.TOKEN_MAJOR, *, filled: bool = True, room: str = "r") -> KvPool:
    """A private pool of this rank, filled with one room."""
    layout = arrange_pool(rank, 16, 6, order)
    pool = KvPool.over(bytearray(layout.total_bytes), layout)
    if filled:
        assert fill(pool, RUN, TOKENS, seed=1, room=room) == TOKENS * rank_token_bytes(rank)
    return pool


def rank_of(tp: int, tp_rank: int = 0, model: ModelLayout = TINY) -> RankLayout:
    """A rank without pipeline stages."""
    return RankLayout(model, tp_rank, tp, 0, 1, (0, len(model.layers)))


def test_what_was_filled_compares_equal_and_every_byte_is_counted() -> None:
    """A pool that was just filled has no mismatch, and all of the room's bytes were looked at."""
    rank = rank_of(4, 2)
    assert compare(pool_of(rank), RUN, TOKENS, seed=1, room="r") == Comparison(TOKENS * rank_token_bytes(rank))


def test_filling_touches_only_the_rooms_tokens() -> None:
    """Tokens of the pages before and behind the room stay zero."""
    view = pool_of(rank_of(1)).view(0, 0)
    assert not view[[2, 4]].any()
    assert not view[3, :5].any()
    assert not view[1, 7:].any()


@pytest.mark.parametrize("at", [(3, 5, 0, 0), (1, 6, 1, 31), (5, 0, 1, 9)])
def test_one_flipped_bit_is_found_and_named(at: tuple[int, int, int, int]) -> None:
    """The first wrong byte is described by layer, tensor, global head, token and both values."""
    pool = pool_of(rank_of(4, 2))
    view = pool.view(3, 1)
    right = int(view[at])
    view[at] ^= 0x10
    result = compare(pool, RUN, TOKENS, seed=1, room="r")
    token = RUN.pages.index(at[0]) * 16 + at[1] - 5
    assert result.mismatched_bytes == 1
    place = f"layer 3, tensor v, head {4 + at[2]}, token {token}, byte {at[3]}"
    assert result.first_mismatch == f"{place}: expected {right:#04x}, found {right ^ 0x10:#04x}"


def test_unwritten_pages_are_found() -> None:
    """A decode rank that received nothing has almost only wrong bytes."""
    result = compare(pool_of(rank_of(1), filled=False), RUN, TOKENS, seed=1, room="r")
    assert result.mismatched_bytes > 0.99 * result.bytes_checked


def test_rows_of_different_places_rooms_and_seeds_have_nothing_in_common() -> None:
    """No two heads, tokens, tensors, layers, rooms or seeds share a row, so nothing can be swapped unnoticed."""
    first, second = pool_of(rank_of(1)), pool_of(rank_of(1), room="s")
    rows = [
        pool.view(layer, tensor)[3, slot, head].tobytes()
        for pool in (first, second)
        for layer in range(4)
        for tensor in (0, 1)
        for slot in (5, 6, 15)
        for head in range(8)
    ]
    assert len(set(rows)) == len(rows)
    for one, other in combinations(rows[::7], 2):
        same = np.frombuffer(one, np.uint8) == np.frombuffer(other, np.uint8)
        assert np.count_nonzero(same) < 8
    assert compare(first, RUN, TOKENS, seed=2, room="r").mismatched_bytes > 0


def test_a_share_of_the_heads_is_the_same_share_of_the_whole() -> None:
    """Rank 2 of 4 holds heads 4 and 5 of what the whole model's rank holds, whatever the arrangement."""
    whole = pool_of(rank_of(1)).view(1, 0)[3, 5:, 4:6]
    assert (pool_of(rank_of(4, 2), Arrangement.FUSED_HEADS).view(1, 0)[3, 5:] == whole).all()


def test_replicated_heads_are_held_by_neighbours() -> None:
    """With two heads over four ranks, ranks 0 and 1 hold head 0, and 2 and 3 hold head 1."""
    model = ModelLayout(((TensorSpec("kv", 2, 10, "x"),),))
    whole = pool_of(rank_of(1, 0, model)).view(0, 0)[3, 5:]
    for tp_rank, head in enumerate((0, 0, 1, 1)):
        assert (pool_of(rank_of(4, tp_rank, model)).view(0, 0)[3, 5:, 0] == whole[:, head]).all()


def test_a_stage_holds_its_own_global_layers_and_a_latent_is_whole_everywhere() -> None:
    """Stage 1 of two has the same bytes for its layers as the undivided model; every TP rank has the whole latent."""
    latent = TensorSpec("latent", 1, 20, "x", sharded=False)
    model = ModelLayout(((latent,),) * 3)
    whole = pool_of(rank_of(1, 0, model))
    stage = pool_of(RankLayout(model, 1, 2, 1, 2, (0, 2, 3)))
    assert (stage.view(2, 0) == whole.view(2, 0)).all()
    assert not (whole.view(1, 0) == whole.view(2, 0)).all()


def test_comparisons_add_up_and_keep_the_first_mismatch() -> None:
    """Sums over ranks keep the counts and the earliest description."""
    assert Comparison(5) + Comparison(7, 1, "a") + Comparison(1, 2, "b") == Comparison(13, 3, "a")
