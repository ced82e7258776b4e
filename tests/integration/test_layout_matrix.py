"""Every parallel layout on every plane: real KV through the daemons' own machinery, each byte against an independent model.

``TEST_PLANES`` in the environment names the planes; without it these are the two that need nothing but this package.
"""

import os
from pathlib import Path

import pytest

from protocol.layout import ModelLayout, TensorSpec, rank_token_bytes
from runtime.pool_layout import Arrangement
from tests.integration.layouts import CHUNK_TOKENS, Case, EmbeddedPair, Parallel, grouped, page_runs

PLANES = tuple(os.environ.get("TEST_PLANES", "shm,zmq").split(","))

LATENT = ModelLayout(((TensorSpec("latent", 1, 36, "bfloat16", sharded=False),),) * 3)
LATENT_AND_INDEX = ModelLayout(
    ((TensorSpec("latent", 1, 36, "bfloat16", sharded=False), TensorSpec("index", 1, 9, "float8_e4m3", sharded=False)),) * 2
)
UNEQUAL_WIDTHS = ModelLayout(
    (
        (TensorSpec("k", 4, 24, "bfloat16"), TensorSpec("v", 4, 16, "bfloat16")),
        (TensorSpec("k", 4, 12, "int8"), TensorSpec("v", 4, 40, "float16"), TensorSpec("scale", 4, 4, "float32")),
        (TensorSpec("k", 8, 6, "float8_e5m2"), TensorSpec("v", 8, 2, "float8_e5m2")),
    )
)
MIXED = ModelLayout(((TensorSpec("k", 2, 8, "int8"), TensorSpec("shared", 1, 20, "float16", sharded=False)),) * 2)
FUSED = Arrangement.FUSED_PAGES
HEADS_FIRST = Arrangement.HEAD_MAJOR
INTERLEAVED = Arrangement.FUSED_HEADS

CASES = {
    "prefill TP below decode TP": Case(grouped(), Parallel(2), Parallel(4)),
    "prefill TP above decode TP": Case(grouped(), Parallel(4), Parallel(2)),
    "prefill TP 4 into one decode rank": Case(grouped(), Parallel(4), Parallel(1)),
    "equal TP": Case(grouped(), Parallel(2), Parallel(2)),
    "one rank each, equal pages": Case(grouped(), Parallel(), Parallel(), source_first_token=0),
    "heads replicated on the prefill side": Case(grouped(heads=2), Parallel(4), Parallel(1)),
    "heads replicated on the decode side": Case(grouped(heads=2), Parallel(1), Parallel(8)),
    "heads replicated on both sides, prefill above": Case(grouped(heads=2), Parallel(8), Parallel(4)),
    "heads replicated on both sides, decode above": Case(grouped(heads=2), Parallel(4), Parallel(8)),
    "pipeline into one decode rank": Case(grouped(layers=5), Parallel(pp=3), Parallel()),
    "pipeline with uneven stages and TP": Case(grouped(layers=4), Parallel(2, pp=2, stage_bounds=(0, 1, 4)), Parallel(4)),
    "pipeline on both sides": Case(grouped(layers=3), Parallel(2, pp=2), Parallel(1, pp=2)),
    "latent, one writer of prefill TP 4": Case(LATENT, Parallel(4), Parallel(2)),
    "latent, TP sizes that do not divide": Case(LATENT, Parallel(2), Parallel(3)),
    "latent, pipeline": Case(LATENT, Parallel(2, pp=3), Parallel(2)),
    "two unsharded tensors": Case(LATENT_AND_INDEX, Parallel(2), Parallel(4)),
    "sharded and unsharded together": Case(MIXED, Parallel(4), Parallel(2)),
    "data-parallel prefill": Case(grouped(), Parallel(1, dp=3, page_size=16), Parallel(4), num_tokens=CHUNK_TOKENS + 3),
    "data-parallel groups of TP 2": Case(grouped(), Parallel(2, dp=2, page_size=16), Parallel(4), num_tokens=CHUNK_TOKENS),
    "cached prefix of two decode pages": Case(grouped(), Parallel(2), Parallel(4), cached_tokens=16, source_first_token=16),
    "cached prefix, smaller decode pages": Case(
        grouped(), Parallel(4, page_size=16), Parallel(2, page_size=4), 2 * CHUNK_TOKENS - 1, 12, 12
    ),
    "one token": Case(grouped(), Parallel(2), Parallel(4), num_tokens=1),
    "whole pages and chunks": Case(grouped(), Parallel(2), Parallel(4), num_tokens=2 * CHUNK_TOKENS, source_first_token=0),
    "larger decode pages": Case(grouped(), Parallel(2, page_size=4), Parallel(4, page_size=16)),
    "smaller decode pages": Case(grouped(), Parallel(2, page_size=16), Parallel(4, page_size=4)),
    "pages of one token": Case(grouped(), Parallel(2, page_size=8), Parallel(4, page_size=2)),
    "float16": Case(grouped(dtype="float16"), Parallel(2), Parallel(4)),
    "float8": Case(grouped(dtype="float8_e4m3", item_bytes=1), Parallel(2), Parallel(4)),
    "int8": Case(grouped(dtype="int8", item_bytes=1, head_dim=7), Parallel(4), Parallel(2)),
    "widths and heads that differ by layer": Case(UNEQUAL_WIDTHS, Parallel(2), Parallel(4)),
    "widths that differ, through a pipeline": Case(UNEQUAL_WIDTHS, Parallel(4, pp=3), Parallel(2)),
    "fused pages into heads first": Case(grouped(), Parallel(2, order=FUSED), Parallel(4, order=HEADS_FIRST)),
    "heads first into interleaved": Case(grouped(), Parallel(4, order=HEADS_FIRST), Parallel(2, order=INTERLEAVED)),
}


@pytest.mark.parametrize("plane", PLANES)
@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_every_byte_arrives_and_no_other_changes(tmp_path: Path, case: Case, plane: str) -> None:
    """Each decode rank holds exactly its heads of its layers, cached prefixes and foreign pages are as they were."""
    rooms = {f"room-{group}": (group, *page_runs(case, group)) for group in range(case.prefill.dp)}
    expected = case.num_tokens * sum(rank_token_bytes(rank) for rank in case.decode.ranks(case.model))
    with EmbeddedPair(case, tmp_path, plane) as pair:
        for room, (group, source, destination) in rooms.items():
            assert pair.carry(room, group, source, destination) == []
            found = pair.compared(room, destination)
            assert (found.bytes_checked, found.mismatched_bytes) == (expected, 0), found.first_mismatch
        assert pair.bytes_outside([destination for _, _, destination in rooms.values()]) == 0
    assert list((tmp_path / "shm").iterdir()) == []
