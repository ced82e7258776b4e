"""KV layout, head slices for unequal TP and PP, bytes of a chunk and of a writer's slice, and the readable diff.

Two questions are answered here and nowhere else: *which heads of which layers travel from this prefill rank to that decode
rank*, and *where each byte of them lies in the staged block*. Gather and scatter ask the same functions.

The staged block of one chunk (``tokens`` tokens) is writer-major, then layer, then tensor, then token, then head, then width::

    grant  | writer 0 ................................. | writer 1 ...
    slice  | layer a: K [tokens, heads, width] | V [...] | layer a+1: K | V | ...

so it is independent of either side's page size, axis order and strides.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from typing import Final, NamedTuple, TypeVar

from protocol.errors import LayoutError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of one layer. ``heads`` counts the whole model's KV heads, never one rank's share times TP.

    ``width`` is the bytes of one head of one token. ``sharded`` is false for a latent (MLA) that every rank holds whole.
    """

    name: str
    heads: int
    width: int
    dtype: str
    sharded: bool = True


@dataclass(frozen=True, slots=True)
class ModelLayout:
    """The KV cache of a whole model: for each layer, its tensors in staging order."""

    layers: tuple[tuple[TensorSpec, ...], ...]


@dataclass(frozen=True, slots=True)
class RankLayout:
    """What one rank holds: the model, and its place in tensor and pipeline parallelism.

    ``stage_bounds`` are the global layer indices at which pipeline stages begin, with the layer count at the end: stage ``s``
    holds layers ``[stage_bounds[s], stage_bounds[s + 1])``.
    """

    model: ModelLayout
    tp_rank: int
    tp_size: int
    pp_rank: int
    pp_size: int
    stage_bounds: tuple[int, ...]


class WriterKey(NamedTuple):
    """A writer of a room within its prefill group."""

    tp_rank: int
    pp_rank: int


@dataclass(frozen=True, slots=True)
class SlicePart:
    """One tensor of one layer within a writer's slice: ``head_count`` heads starting at these local heads of each side."""

    layer: int
    """Global layer index."""
    tensor: int
    """Index into the layer's tensors."""
    source_head: int
    """First head within the prefill rank's own heads."""
    destination_head: int
    """First head within the decode rank's own heads."""
    head_count: int
    row_bytes: int
    """Bytes of one token: ``head_count * width``."""


@dataclass(frozen=True, slots=True)
class WriterSlice:
    """Everything one writer sends of each token. ``token_bytes`` is the sum of its parts' ``row_bytes``."""

    writer: WriterKey
    parts: tuple[SlicePart, ...]
    token_bytes: int


@dataclass(frozen=True, slots=True)
class PageRun:
    """Where a room's tokens live in one pool: token ``t`` of the room is token ``first_token + t`` of the listed pages."""

    pages: tuple[int, ...]
    first_token: int = 0


@dataclass(frozen=True, slots=True)
class LayoutDifference:
    """One row of a readable diff: the field, and what each side has."""

    field: str
    prefill: str
    decode: str


def even_stage_bounds(layers: int, pp_size: int) -> tuple[int, ...]:
    """Stage bounds that share ``layers`` as evenly as can be; the earlier stages take the remainder."""
    share, extra = divmod(layers, pp_size)
    return tuple(stage * share + min(stage, extra) for stage in range(pp_size + 1))


def layer_range(layout: RankLayout) -> range:
    """Global indices of the layers that this rank's pipeline stage holds."""
    return range(layout.stage_bounds[layout.pp_rank], layout.stage_bounds[layout.pp_rank + 1])


def local_heads(spec: TensorSpec, tp_size: int) -> int:
    """Heads of this tensor on one rank: its share, one where ranks outnumber heads (GQA replication), all if not sharded."""
    return max(1, spec.heads // tp_size) if spec.sharded else spec.heads


def rank_token_bytes(layout: RankLayout) -> int:
    """Bytes of one token in this rank's pool, over all its layers and tensors."""
    layers = (layout.model.layers[layer] for layer in layer_range(layout))
    return sum(local_heads(spec, layout.tp_size) * spec.width for layer in layers for spec in layer)


def writer_slice(prefill: RankLayout, decode: RankLayout) -> WriterSlice:
    """What this prefill rank sends to this decode rank; no parts where the two share nothing.

    Raises ``LayoutError`` if the layouts cannot be matched. Pure and not cheap: ask once per pair and keep the answer.
    """
    _require_match(prefill, decode)
    return _slice_of(prefill, decode, WriterKey(prefill.tp_rank, prefill.pp_rank))


def expected_writers(prefill: RankLayout, decode: RankLayout) -> tuple[WriterSlice, ...]:
    """Every prefill rank with something to send to this decode rank, in the order of their slices in a grant.

    ``prefill`` may be any rank of the group. The order is by pipeline stage, then by TP rank. Together the slices cover every
    head of every layer that the decode rank holds; twice, if the prefill side replicates heads. Raises ``LayoutError``.
    """
    _require_match(prefill, decode)
    tp_ranks = _tp_writers(prefill.tp_size, decode.tp_size, decode.tp_rank)
    keys = (WriterKey(tp_rank, pp_rank) for pp_rank in range(prefill.pp_size) for tp_rank in tp_ranks)
    slices = (_slice_of(prefill, decode, key) for key in keys)
    return tuple(found for found in slices if found.parts)


def chunk_bytes(writers: Sequence[WriterSlice], num_tokens: int) -> int:
    """Bytes of the grant that holds ``num_tokens`` tokens of all these writers."""
    return num_tokens * sum(writer.token_bytes for writer in writers)


def writer_offsets(writers: Sequence[WriterSlice], num_tokens: int) -> tuple[int, ...]:
    """First byte of each writer's slice within a grant of ``num_tokens`` tokens."""
    return _starts(tuple(writer.token_bytes for writer in writers), num_tokens)


def part_offsets(parts: Sequence[SlicePart], num_tokens: int) -> tuple[int, ...]:
    """First byte of each part's token-major block within the writer's slice of ``num_tokens`` tokens."""
    return _starts(tuple(part.row_bytes for part in parts), num_tokens)


def _starts(token_bytes: tuple[int, ...], num_tokens: int) -> tuple[int, ...]:
    return tuple(num_tokens * before for before in accumulate(token_bytes[:-1], initial=0)) if token_bytes else ()


def _require_match(prefill: RankLayout, decode: RankLayout) -> None:
    differences = layout_differences(prefill, decode)
    if differences:
        raise LayoutError(tuple(f"{row.field}: prefill {row.prefill}, decode {row.decode}" for row in differences))


def _tp_writers(prefill_tp: int, decode_tp: int, decode_rank: int) -> range:
    """TP ranks of the prefill group whose heads meet those of this decode rank."""
    first = decode_rank * prefill_tp // decode_tp
    return range(first, first + max(1, prefill_tp // decode_tp))


def _slice_of(prefill: RankLayout, decode: RankLayout, writer: WriterKey) -> WriterSlice:
    stage = range(prefill.stage_bounds[writer.pp_rank], prefill.stage_bounds[writer.pp_rank + 1])
    wanted = layer_range(decode)
    parts = tuple(
        SlicePart(layer, index, *heads, heads[2] * spec.width)
        for layer in range(max(stage.start, wanted.start), min(stage.stop, wanted.stop))
        for index, spec in enumerate(prefill.model.layers[layer])
        if (heads := _head_slice(spec, writer.tp_rank, prefill.tp_size, decode.tp_rank, decode.tp_size))
    )
    return WriterSlice(writer, parts, sum(part.row_bytes for part in parts))


def _head_slice(spec: TensorSpec, p: int, prefill_tp: int, d: int, decode_tp: int) -> tuple[int, int, int] | None:
    """``(source_head, destination_head, head_count)`` that prefill rank ``p`` sends to decode rank ``d``, or ``None``.

    A rank's place in the head order is its rank divided by the replication factor (0, 0, 1, 1, never 0, 1, 0, 1): ranks that
    hold the same head are neighbours.
    """
    writers = _tp_writers(prefill_tp, decode_tp, d)
    if not spec.sharded:
        return (0, 0, spec.heads) if p == writers.start else None
    if p not in writers:
        return None
    source = local_heads(spec, prefill_tp)
    destination = local_heads(spec, decode_tp)
    if prefill_tp > decode_tp:
        return 0, p // max(1, prefill_tp // spec.heads) * source % destination, source
    return d // max(1, decode_tp // spec.heads) * destination % source, 0, destination


def heads_divide(spec: TensorSpec, tp_size: int) -> bool:
    """Say whether ranks hold whole heads: ``tp_size`` divides the heads, or is a multiple of them (each head replicated)."""
    return not spec.sharded or spec.heads % tp_size == 0 or tp_size % spec.heads == 0


def validate_layout(layout: RankLayout) -> None:
    """Raise ``LayoutError`` with every reason why no such rank can exist."""
    problems = [*_place_problems(layout), *_stage_problems(layout), *_tensor_problems(layout)]
    if problems:
        raise LayoutError(tuple(problems))


def _place_problems(layout: RankLayout) -> Iterator[str]:
    for name, rank, size in (("tp", layout.tp_rank, layout.tp_size), ("pp", layout.pp_rank, layout.pp_size)):
        if size < 1:
            yield f"{name}_size is {size}, expected at least 1"
        elif not 0 <= rank < size:
            yield f"{name}_rank is {rank}, expected 0 to {size - 1}"


def _stage_problems(layout: RankLayout) -> Iterator[str]:
    bounds, layers = layout.stage_bounds, len(layout.model.layers)
    if len(bounds) != layout.pp_size + 1:
        yield f"stage_bounds has {len(bounds)} entries, expected {layout.pp_size + 1} for pp_size {layout.pp_size}"
    elif bounds[0] != 0 or bounds[-1] != layers:
        yield f"stage_bounds run from {bounds[0]} to {bounds[-1]}, expected 0 to {layers}, the number of layers"
    if any(later <= earlier for earlier, later in pairwise(bounds)):
        yield f"stage_bounds {bounds} do not rise: every stage needs a layer"


def _tensor_problems(layout: RankLayout) -> Iterator[str]:
    if not any(layout.model.layers):
        yield "model has no tensors, expected at least one layer with KV"
    for label, specs in _runs(layout.model.layers):
        if len({spec.name for spec in specs}) != len(specs):
            yield f"{label}: tensor names {[spec.name for spec in specs]} repeat"
        for spec in specs:
            if spec.heads < 1 or spec.width < 1:
                yield f"{label}.{spec.name}: {spec.heads} heads of {spec.width} bytes, expected at least 1 of each"
            elif layout.tp_size >= 1 and not heads_divide(spec, layout.tp_size):
                yield f"{label}.{spec.name}: {_share(spec, layout.tp_size)}"


MAX_DIFFERENCES: Final = 32
"""Rows of a diff; a last row counts the rest, so a refusal always fits one control message."""
_MAX_CELL = 200


def layout_differences(prefill: RankLayout, decode: RankLayout) -> tuple[LayoutDifference, ...]:
    """Every reason why KV cannot move between these two, one row each; empty if it can.

    TP sizes must divide one another and share out whole heads on both sides (where anything is sharded); the decode side has
    one pipeline stage or as many as the prefill side; the models must be equal to the dtype's name.
    """
    rows = [_clipped(row) for row in (*_parallel_differences(prefill, decode), *_model_differences(prefill, decode))]
    if len(rows) > MAX_DIFFERENCES:
        rest = f"{len(rows) - MAX_DIFFERENCES + 1} more differences"
        rows[MAX_DIFFERENCES - 1 :] = [LayoutDifference("...", rest, rest)]
    return tuple(rows)


def _clipped(row: LayoutDifference) -> LayoutDifference:
    return LayoutDifference(row.field[:_MAX_CELL], row.prefill[:_MAX_CELL], row.decode[:_MAX_CELL])


def _parallel_differences(prefill: RankLayout, decode: RankLayout) -> Iterator[LayoutDifference]:
    small, large = sorted((prefill.tp_size, decode.tp_size))
    sharded = any(spec.sharded for layer in prefill.model.layers for spec in layer)
    if sharded and large % small:
        rule = "neither is a multiple of the other"
        yield LayoutDifference("tp_size", f"{prefill.tp_size} ({rule})", f"{decode.tp_size} ({rule})")
    if decode.pp_size not in (1, prefill.pp_size):
        expected = "1" if prefill.pp_size == 1 else f"1 or {prefill.pp_size}"
        yield LayoutDifference("pp_size", str(prefill.pp_size), f"{decode.pp_size} (expected {expected})")


def _model_differences(prefill: RankLayout, decode: RankLayout) -> Iterator[LayoutDifference]:
    models = prefill.model.layers, decode.model.layers
    if len(models[0]) != len(models[1]):
        yield LayoutDifference("layers", str(len(models[0])), str(len(models[1])))
    for label, (left, right) in _runs(tuple(zip(*models, strict=False))):
        if len(left) != len(right):
            yield LayoutDifference(f"{label}.tensors", str([spec.name for spec in left]), str([spec.name for spec in right]))
        for ours, theirs in zip(left, right, strict=False):
            yield from _tensor_differences(f"{label}.{ours.name}", ours, theirs, prefill.tp_size, decode.tp_size)


def _tensor_differences(label: str, p: TensorSpec, d: TensorSpec, p_tp: int, d_tp: int) -> Iterator[LayoutDifference]:
    for name in ("name", "heads", "width", "dtype", "sharded"):
        left, right = getattr(p, name), getattr(d, name)
        if left != right:
            yield LayoutDifference(f"{label}.{name}", str(left), str(right))
    if p.heads == d.heads and not (heads_divide(p, p_tp) and heads_divide(d, d_tp)):
        yield LayoutDifference(f"{label}.heads per rank", _share(p, p_tp), _share(d, d_tp))


def _share(spec: TensorSpec, tp_size: int) -> str:
    if heads_divide(spec, tp_size):
        return f"{spec.heads} heads over tp_size {tp_size}: {local_heads(spec, tp_size)} each"
    return f"{spec.heads} heads over tp_size {tp_size}: neither is a multiple of the other"


def _runs(layers: Sequence[T]) -> Iterator[tuple[str, T]]:
    """Equal consecutive layers as one: a label such as ``layers[0..35]`` and what they have in common."""
    first = 0
    for value, same in groupby(layers):
        last = first + sum(1 for _ in same) - 1
        yield (f"layers[{first}]" if first == last else f"layers[{first}..{last}]"), value
        first = last + 1
