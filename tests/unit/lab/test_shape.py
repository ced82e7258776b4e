"""A deployment is checked as a whole before anything is started."""

from dataclasses import replace

import pytest

from lab.presets import PRESETS
from lab.shape import PairShape, ShapeError
from protocol.layout import rank_token_bytes

TINY = PRESETS["tiny"].model
WIDE = PairShape(TINY, prefill_ranks=4, prefill_groups=1, decode_ranks=8, plane="shm", chunk_tokens=64, ring_bytes=0)


def test_groups_share_the_prefill_ranks() -> None:
    """Two groups of four ranks are two groups of attention TP 2, and each rank's layout is its place in its group."""
    shape = replace(WIDE, prefill_groups=2)
    assert shape.group_size == 2
    assert [list(shape.group_ranks(group)) for group in range(2)] == [[0, 1], [2, 3]]
    assert [(shape.prefill_layout(rank).tp_rank, shape.prefill_layout(rank).tp_size) for rank in range(4)] == [
        (0, 2),
        (1, 2),
        (0, 2),
        (1, 2),
    ]
    assert shape.group_name(1) == "prefill-dp1"


def test_request_bytes_count_every_decode_rank() -> None:
    """What a check must compare is the bytes of a token on all decode ranks together, times the tokens."""
    per_token = sum(rank_token_bytes(WIDE.decode_layout(rank)) for rank in range(8))
    assert WIDE.request_bytes(10) == 10 * per_token
    assert per_token == 4 * 2 * 8 * 32, "eight decode ranks hold the whole tiny model once"


def test_a_ring_that_was_left_open_is_sized_in_chunks() -> None:
    """One and a half chunks make a full chunk larger than half of the ring; a size that was given stays."""
    shape = WIDE.with_ring_chunks(1.5)
    assert shape.ring_bytes == 96 * 256
    assert shape.chunk_bytes(64) > shape.ring_bytes / 2
    assert replace(WIDE, ring_bytes=20_000).with_ring_chunks(1.5).ring_bytes == 20_000


def test_a_grant_counts_heads_that_several_prefill_ranks_send() -> None:
    """With replicated heads a chunk takes more bytes of the ring than of the pages."""
    replicated = replace(WIDE, prefill_ranks=16, decode_ranks=1)
    assert replicated.chunk_bytes(1) == 2 * rank_token_bytes(replicated.decode_layout(0))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"prefill_groups": 3}, "4 prefill ranks cannot form 3 groups"),
        ({"decode_ranks": 3}, "decode"),
        ({"prefill_ranks": 2, "decode_ranks": 1, "ring_bytes": 4096}, "smaller than one chunk of 64 tokens"),
    ],
)
def test_a_deployment_that_cannot_exist_is_refused(change: dict[str, int], said: str) -> None:
    """Groups that do not divide, heads that do not divide and a ring below one chunk are named."""
    with pytest.raises(ShapeError, match=said):
        replace(WIDE, **change)  # type: ignore[arg-type]  # only integer fields are changed
