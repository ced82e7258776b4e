"""Head slices, staged bytes and the readable diff, against the published table and worked examples."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from protocol.errors import LayoutError
from protocol.layout import (
    MAX_DIFFERENCES,
    LayoutDifference,
    ModelLayout,
    RankLayout,
    SlicePart,
    TensorSpec,
    WriterKey,
    WriterSlice,
    chunk_bytes,
    even_stage_bounds,
    expected_writers,
    layer_range,
    layout_differences,
    local_heads,
    part_offsets,
    rank_token_bytes,
    validate_layout,
    writer_offsets,
    writer_slice,
)

MIB = 1 << 20


def kv_model(layers: int, heads: int, width: int = 256, dtype: str = "bfloat16") -> ModelLayout:
    """``layers`` equal layers with K and V."""
    return ModelLayout(((TensorSpec("k", heads, width, dtype), TensorSpec("v", heads, width, dtype)),) * layers)


def rank(model: ModelLayout, tp: int, tp_rank: int = 0, pp: int = 1, pp_rank: int = 0) -> RankLayout:
    """A rank with evenly shared layers."""
    return RankLayout(model, tp_rank, tp, pp_rank, pp, even_stage_bounds(len(model.layers), pp))


def head_map(prefill_tp: int, decode_tp: int, heads: int, d: int) -> list[tuple[int, int, int, int]]:
    """``(p, source_head, head_count, destination_head)`` of every writer of decode rank ``d``."""
    model = kv_model(1, heads)
    writers = expected_writers(rank(model, prefill_tp), rank(model, decode_tp, d))
    return [(w.writer.tp_rank, w.parts[0].source_head, w.parts[0].head_count, w.parts[0].destination_head) for w in writers]


TABLE = [
    pytest.param(4, 8, 8, [[(d // 2, d % 2, 1, 0)] for d in range(8)], id="4to8-8heads"),
    pytest.param(1, 8, 8, [[(0, d, 1, 0)] for d in range(8)], id="1to8-8heads"),
    pytest.param(8, 4, 8, [[(2 * d, 0, 1, 0), (2 * d + 1, 0, 1, 1)] for d in range(4)], id="8to4-8heads"),
    pytest.param(4, 1, 8, [[(0, 0, 2, 0), (1, 0, 2, 2), (2, 0, 2, 4), (3, 0, 2, 6)]], id="4to1-8heads"),
    pytest.param(4, 2, 8, [[(0, 0, 2, 0), (1, 0, 2, 2)], [(2, 0, 2, 0), (3, 0, 2, 2)]], id="4to2-8heads"),
    pytest.param(1, 4, 2, [[(0, 0, 1, 0)], [(0, 0, 1, 0)], [(0, 1, 1, 0)], [(0, 1, 1, 0)]], id="1to4-2heads"),
    pytest.param(4, 1, 2, [[(0, 0, 1, 0), (1, 0, 1, 0), (2, 0, 1, 1), (3, 0, 1, 1)]], id="4to1-2heads"),
    pytest.param(8, 1, 4, [[(p, 0, 1, p // 2) for p in range(8)]], id="8to1-4heads"),
    pytest.param(2, 8, 4, [[(d // 4, d // 2 % 2, 1, 0)] for d in range(8)], id="2to8-4heads"),
]


@pytest.mark.parametrize(("prefill_tp", "decode_tp", "heads", "expected"), TABLE)
def test_head_slices_follow_the_table(
    prefill_tp: int, decode_tp: int, heads: int, expected: list[list[tuple[int, int, int, int]]]
) -> None:
    """Each row of the table of unequal TP sizes gives exactly its writers, source heads and destination heads."""
    assert [head_map(prefill_tp, decode_tp, heads, d) for d in range(decode_tp)] == expected


@pytest.mark.parametrize(("prefill_tp", "decode_tp", "heads", "expected"), TABLE)
def test_a_writer_and_the_decode_rank_derive_the_same_slice(
    prefill_tp: int, decode_tp: int, heads: int, expected: list[list[tuple[int, int, int, int]]]
) -> None:
    """What a prefill rank computes for itself is what the decode rank expects of it; everyone else sends nothing."""
    model = kv_model(2, heads)
    for d, writers in enumerate(expected):
        decode = rank(model, decode_tp, d)
        by_writer = {found.writer: found for found in expected_writers(rank(model, prefill_tp), decode)}
        assert [key.tp_rank for key in by_writer] == [writer[0] for writer in writers]
        for p in range(prefill_tp):
            own = writer_slice(rank(model, prefill_tp, p), decode)
            assert own == by_writer.get(WriterKey(p, 0), WriterSlice(WriterKey(p, 0), (), 0))


@pytest.mark.parametrize(
    ("prefill_tp", "decode_tp", "heads", "writers", "mebibytes"),
    [(4, 8, 8, 1, 144), (1, 8, 8, 1, 144), (8, 4, 8, 2, 288), (2, 1, 8, 2, 1152), (4, 1, 2, 4, 576)],
)
def test_a_chunk_of_qwen3_8b_has_the_worked_size(
    prefill_tp: int, decode_tp: int, heads: int, writers: int, mebibytes: int
) -> None:
    """8192 tokens of 36 layers of 128 bf16 values per head take the published number of bytes on a decode rank."""
    model = kv_model(36, heads)
    found = expected_writers(rank(model, prefill_tp), rank(model, decode_tp))
    assert len(found) == writers
    assert chunk_bytes(found, 8192) == mebibytes * MIB
    assert writer_offsets(found, 8192) == tuple(index * mebibytes * MIB // writers for index in range(writers))


def test_qwen3_8b_takes_147456_bytes_per_token_over_all_heads() -> None:
    """A rank of TP 1 holds the whole token."""
    assert rank_token_bytes(rank(kv_model(36, 8), 1)) == 147_456


def test_equal_tp_goes_through_with_one_writer_each() -> None:
    """Rank d of the prefill side feeds rank d of the decode side with all its heads."""
    assert [head_map(4, 4, 8, d) for d in range(4)] == [[(d, 0, 2, 0)] for d in range(4)]


def test_replication_on_both_sides_keeps_to_the_right_head() -> None:
    """Eight prefill and four decode ranks over two heads: both writers of a decode rank hold its very head."""
    assert [head_map(8, 4, 2, d) for d in range(4)] == [[(2 * d, 0, 1, 0), (2 * d + 1, 0, 1, 0)] for d in range(4)]


def test_each_pipeline_stage_writes_only_its_layers_at_their_global_index() -> None:
    """Two stages of three layers each into one decode stage: disjoint global layers, blocks of 64 bytes, stage-major order."""
    model = kv_model(6, 1, width=16)
    decode = rank(model, 1)
    first, second = expected_writers(rank(model, 1, pp=2), decode)
    assert [(part.layer, part.tensor) for part in first.parts] == [(layer, t) for layer in (0, 1, 2) for t in (0, 1)]
    assert [(part.layer, part.tensor) for part in second.parts] == [(layer, t) for layer in (3, 4, 5) for t in (0, 1)]
    assert part_offsets(first.parts, 4) == (0, 64, 128, 192, 256, 320)
    assert writer_offsets((first, second), 4) == (0, 384)
    assert second == writer_slice(rank(model, 1, pp=2, pp_rank=1), decode)


def test_writers_are_ordered_by_stage_and_then_by_tp_rank() -> None:
    """TP 2 times PP 2 into one decode rank is four writers, stage-major."""
    model = kv_model(4, 8)
    found = expected_writers(rank(model, 2, pp=2), rank(model, 1))
    assert [writer.writer for writer in found] == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_a_decode_stage_hears_only_from_the_stage_that_holds_its_layers() -> None:
    """With equal pipeline depth the other stage's slice is empty and is not expected."""
    model = kv_model(5, 8)
    decode = rank(model, 8, 3, pp=2, pp_rank=1)
    assert [writer.writer for writer in expected_writers(rank(model, 4, pp=2), decode)] == [(1, 1)]
    assert writer_slice(rank(model, 4, 1, pp=2, pp_rank=0), decode).token_bytes == 0
    assert layer_range(decode) == range(3, 5)


@pytest.mark.parametrize(("prefill_tp", "decode_tp"), [(8, 1), (1, 8), (4, 8), (8, 4), (6, 4), (2, 2)])
def test_a_latent_has_one_writer_whatever_the_tp(prefill_tp: int, decode_tp: int) -> None:
    """Every rank holds an MLA latent whole, so one prefill rank sends it, and no TP sizes are refused."""
    model = ModelLayout(((TensorSpec("latent", 1, 1152, "bfloat16", sharded=False),),) * 3)
    for d in range(decode_tp):
        (writer,) = expected_writers(rank(model, prefill_tp), rank(model, decode_tp, d))
        assert writer.parts == tuple(SlicePart(layer, 0, 0, 0, 1, 1152) for layer in range(3))


def test_layers_of_different_widths_and_kinds_share_a_slice() -> None:
    """Mixed layers lie one after another at the offsets that their own rows add up to; the latent only in its one writer."""
    wide = (TensorSpec("k", 8, 256, "bfloat16"), TensorSpec("v", 8, 128, "bfloat16"))
    narrow = (TensorSpec("kv", 2, 64, "float8_e4m3"),)
    latent = (TensorSpec("latent", 1, 100, "uint8", sharded=False),)
    model = ModelLayout((wide, narrow, latent))
    first, second = expected_writers(rank(model, 4), rank(model, 2))
    assert [part.row_bytes for part in first.parts] == [512, 256, 64, 100]
    assert [part.row_bytes for part in second.parts] == [512, 256, 64]
    assert part_offsets(first.parts, 10) == (0, 5120, 7680, 8320)
    assert (first.token_bytes, second.token_bytes) == (932, 832)
    assert part_offsets((), 10) == ()


def test_tp_sizes_that_do_not_divide_are_refused_with_sizes_and_heads() -> None:
    """6 against 4 names both TP sizes and what 8 heads would come to on each side; asking for a slice raises the same."""
    model = kv_model(2, 8)
    rule = "neither is a multiple of the other"
    shares = (f"8 heads over tp_size 6: {rule}", "8 heads over tp_size 4: 2 each")
    assert layout_differences(rank(model, 6), rank(model, 4)) == (
        LayoutDifference("tp_size", f"6 ({rule})", f"4 ({rule})"),
        LayoutDifference("layers[0..1].k.heads per rank", *shares),
        LayoutDifference("layers[0..1].v.heads per rank", *shares),
    )
    with pytest.raises(LayoutError, match=r"tp_size: prefill 6 .*, decode 4"):
        writer_slice(rank(model, 6), rank(model, 4))
    with pytest.raises(LayoutError, match="heads per rank"):
        expected_writers(rank(model, 6), rank(model, 4))


def test_a_dtype_of_another_name_and_the_same_width_is_a_difference() -> None:
    """bfloat16 and float16 are both two bytes and must not be mixed."""
    found = layout_differences(rank(kv_model(3, 8), 2), rank(kv_model(3, 8, dtype="float16"), 2))
    assert found == (
        LayoutDifference("layers[0..2].k.dtype", "bfloat16", "float16"),
        LayoutDifference("layers[0..2].v.dtype", "bfloat16", "float16"),
    )


def test_every_difference_is_listed_at_once() -> None:
    """Layer count, pipeline depth, tensor names, heads and widths each get their own row."""
    prefill = rank(kv_model(4, 8), 2, pp=2)
    decode = rank(ModelLayout(((TensorSpec("kv", 4, 512, "bfloat16"),),) * 3), 2, pp=3)
    assert layout_differences(prefill, decode) == (
        LayoutDifference("pp_size", "2", "3 (expected 1 or 2)"),
        LayoutDifference("layers", "4", "3"),
        LayoutDifference("layers[0..2].tensors", "['k', 'v']", "['kv']"),
        LayoutDifference("layers[0..2].k.name", "k", "kv"),
        LayoutDifference("layers[0..2].k.heads", "8", "4"),
        LayoutDifference("layers[0..2].k.width", "256", "512"),
    )


def test_decode_pipeline_of_an_unstaged_prefill_is_refused() -> None:
    """The decode side may not be split deeper than the prefill side."""
    model = kv_model(4, 8)
    assert layout_differences(rank(model, 1), rank(model, 1, pp=2)) == (LayoutDifference("pp_size", "1", "2 (expected 1)"),)


def test_a_diff_is_bounded_and_counts_what_it_leaves_out() -> None:
    """A model that differs in hundreds of ways, with long names, still fits one control message."""
    prefill = ModelLayout(tuple((TensorSpec("k" * 128, 8, width, "bfloat16"),) for width in range(1, 401)))
    decode = ModelLayout(tuple((TensorSpec("v" * 128, 8, width + 1, "bfloat16"),) for width in range(1, 401)))
    found = layout_differences(rank(prefill, 1), rank(decode, 1))
    assert len(found) == MAX_DIFFERENCES
    assert found[-1] == LayoutDifference("...", "769 more differences", "769 more differences")
    assert sum(len(row.field) + len(row.prefill) + len(row.decode) for row in found) < 32_000


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"tp_size": 0}, "tp_size is 0"),
        ({"tp_rank": 2}, "tp_rank is 2, expected 0 to 1"),
        ({"pp_rank": -1}, "pp_rank is -1, expected 0 to 0"),
        ({"stage_bounds": (0, 1, 2)}, "stage_bounds has 3 entries, expected 2"),
        ({"stage_bounds": (0, 3)}, "stage_bounds run from 0 to 3, expected 0 to 2"),
        ({"pp_size": 2, "stage_bounds": (0, 2, 2)}, "do not rise"),
        ({"model": ModelLayout(((), ()))}, "model has no tensors"),
        ({"tp_size": 3}, "8 heads over tp_size 3: neither is a multiple of the other"),
        ({"model": ModelLayout(((TensorSpec("k", 2, 0, "x"),),) * 2)}, "2 heads of 0 bytes"),
        ({"model": ModelLayout(((TensorSpec("k", 2, 4, "x"), TensorSpec("k", 2, 4, "x")),) * 2)}, "names ['k', 'k'] repeat"),
    ],
)
def test_a_layout_that_cannot_exist_says_why(change: dict[str, object], problem: str) -> None:
    """Each impossible rank is refused with the field, its value and what was expected."""
    good = rank(kv_model(2, 8), 2)
    validate_layout(good)
    with pytest.raises(LayoutError) as caught:
        validate_layout(replace(good, **change))  # type: ignore[arg-type]
    assert any(problem in text for text in caught.value.problems), caught.value.problems


def test_all_problems_of_a_layout_are_reported_together() -> None:
    """One refusal lists the rank, the stage bounds and the heads."""
    with pytest.raises(LayoutError) as caught:
        validate_layout(RankLayout(kv_model(2, 8), 9, 3, 0, 1, (0, 7)))
    assert len(caught.value.problems) == 4


SIZES = st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16])


@settings(max_examples=150, deadline=None)
@given(prefill_tp=SIZES, decode_tp=SIZES, heads=SIZES, pp=st.integers(1, 3), decode_staged=st.booleans())
def test_writers_cover_every_head_of_every_decode_rank(
    prefill_tp: int, decode_tp: int, heads: int, pp: int, decode_staged: bool
) -> None:
    """Each decode head of each of its layers is written with its own global head; exactly once unless prefill replicates."""
    model = kv_model(pp + 2, heads)
    decode_pp = pp if decode_staged else 1
    assume(not layout_differences(rank(model, prefill_tp, pp=pp), rank(model, decode_tp, pp=decode_pp)))
    for d in range(decode_tp):
        for stage in range(decode_pp):
            decode = rank(model, decode_tp, d, decode_pp, stage)
            written: Counter[tuple[int, int, int]] = Counter()
            for writer in expected_writers(rank(model, prefill_tp, pp=pp), decode):
                for part in writer.parts:
                    for head in range(part.head_count):
                        source = writer.writer.tp_rank * heads // prefill_tp + part.source_head + head
                        assert source == d * heads // decode_tp + part.destination_head + head
                        written[part.layer, part.tensor, part.destination_head + head] += 1
            own = local_heads(model.layers[0][0], decode_tp)
            assert set(written) == {(layer, t, h) for layer in layer_range(decode) for t in (0, 1) for h in range(own)}
            replicas = max(1, prefill_tp // max(heads, decode_tp))
            assert set(written.values()) == {replicas}
