"""Where a KV pool keeps each byte: a declarative physical layout, its checks, and builders for the common arrangements.

For each tensor of each layer that a rank holds, the bytes of head ``h`` of token ``t`` of page ``p`` are::

    [offset + p * page_stride + t * token_stride + h * head_stride, + width)

Strides say the axis order, so K and V apart, K and V fused, tokens before heads or heads before tokens are all one form. Heads,
width and dtype come from the rank's ``RankLayout``. All numbers are bytes.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate

import numpy as np

from protocol.errors import LayoutError
from protocol.layout import RankLayout, TensorSpec, layer_range, local_heads, validate_layout

_SHOWN_PROBLEMS = 20


class PoolError(ValueError):
    """A KV pool that cannot be used as described. ``problems`` lists every reason found, in plain words."""

    def __init__(self, problems: Sequence[str]) -> None:
        shown = list(problems[:_SHOWN_PROBLEMS])
        if len(problems) > _SHOWN_PROBLEMS:
            shown.append(f"and {len(problems) - _SHOWN_PROBLEMS} more")
        super().__init__("; ".join(shown))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class PoolTensor:
    """Place of one tensor: ``layer`` is the global layer index, ``tensor`` the index within the layer."""

    layer: int
    tensor: int
    offset: int
    page_stride: int
    token_stride: int
    head_stride: int


@dataclass(frozen=True, slots=True)
class PoolLayout:
    """A rank's whole pool: ``num_pages`` pages of ``page_size`` tokens, one ``PoolTensor`` for each tensor of its layers."""

    rank: RankLayout
    page_size: int
    num_pages: int
    tensors: tuple[PoolTensor, ...]
    total_bytes: int

    def spec(self, place: PoolTensor) -> TensorSpec:
        """What the model says about the tensor at ``place``."""
        return self.rank.model.layers[place.layer][place.tensor]


class Arrangement(StrEnum):
    """Axis orders that engines use, outermost first."""

    TOKEN_MAJOR = "token_major"  # noqa: S105  a token of text
    """Each tensor apart: page, token, head, width (often called NHD)."""
    HEAD_MAJOR = "head_major"
    """Each tensor apart: page, head, token, width (often called HND)."""
    FUSED_PAGES = "fused_pages"
    """One allocation for each layer: page, tensor, token, head, width."""
    FUSED_HEADS = "fused_heads"
    """One allocation for each layer: page, token, tensor, head, width."""


def arrange_pool(rank: RankLayout, page_size: int, num_pages: int, order: Arrangement = Arrangement.TOKEN_MAJOR) -> PoolLayout:
    """Lay a pool out without gaps, layer after layer. Raises ``PoolError`` if the rank or the sizes make no sense."""
    problems = [*_rank_problems(rank), *_size_problems(page_size, num_pages)]
    if problems:
        raise PoolError(problems)
    tensors: list[PoolTensor] = []
    offset = 0
    for layer in layer_range(rank):
        rows = [(local_heads(spec, rank.tp_size) * spec.width, spec.width) for spec in rank.model.layers[layer]]
        tensors.extend(_place_layer(layer, rows, page_size, num_pages, order, offset))
        offset += num_pages * page_size * sum(row for row, _ in rows)
    return PoolLayout(rank, page_size, num_pages, tuple(tensors), offset)


def _place_layer(
    layer: int, rows: Sequence[tuple[int, int]], page_size: int, num_pages: int, order: Arrangement, offset: int
) -> Iterator[PoolTensor]:
    """Places of one layer's tensors; ``rows`` are ``(bytes of a token, bytes of a head)`` for each of them."""
    layer_row = sum(row for row, _ in rows)
    starts = accumulate((row for row, _ in rows), initial=0)
    for tensor, ((row, width), before) in enumerate(zip(rows, starts, strict=False)):
        page = page_size * row
        match order:
            case Arrangement.TOKEN_MAJOR:
                yield PoolTensor(layer, tensor, offset + num_pages * page_size * before, page, row, width)
            case Arrangement.HEAD_MAJOR:
                yield PoolTensor(layer, tensor, offset + num_pages * page_size * before, page, width, page_size * width)
            case Arrangement.FUSED_PAGES:
                yield PoolTensor(layer, tensor, offset + page_size * before, page_size * layer_row, row, width)
            case Arrangement.FUSED_HEADS:
                yield PoolTensor(layer, tensor, offset + before, page_size * layer_row, layer_row, width)


def validate_pool_layout(layout: PoolLayout) -> None:
    """Raise ``PoolError`` with every reason why this is not a layout of that rank's pool."""
    problems = [*_rank_problems(layout.rank), *_size_problems(layout.page_size, layout.num_pages)]
    problems += [] if problems else _tensor_problems(layout)
    problems += [] if problems else _overlap_problems(layout)
    if problems:
        raise PoolError(problems)


def _rank_problems(rank: RankLayout) -> tuple[str, ...]:
    try:
        validate_layout(rank)
    except LayoutError as error:
        return error.problems
    return ()


def _size_problems(page_size: int, num_pages: int) -> Iterator[str]:
    if page_size < 1:
        yield f"page_size is {page_size}, expected at least 1 token"
    if num_pages < 1:
        yield f"num_pages is {num_pages}, expected at least 1"


def _tensor_problems(layout: PoolLayout) -> Iterator[str]:
    model = layout.rank.model.layers
    wanted = {(layer, tensor) for layer in layer_range(layout.rank) for tensor in range(len(model[layer]))}
    given = Counter((place.layer, place.tensor) for place in layout.tensors)
    yield from (f"layer {layer} tensor {tensor} is missing" for layer, tensor in sorted(wanted - given.keys()))
    yield from (f"layer {layer} tensor {tensor} is not held by this rank" for layer, tensor in sorted(given.keys() - wanted))
    yield from (f"layer {key[0]} tensor {key[1]} is listed {times} times" for key, times in given.items() if times > 1)
    for place in layout.tensors:
        if (place.layer, place.tensor) in wanted:
            yield from _place_problems(layout, place)


def _place_problems(layout: PoolLayout, place: PoolTensor) -> Iterator[str]:
    """What is wrong with one tensor alone: out of the pool, or rows on top of each other."""
    label = f"layer {place.layer} tensor {place.tensor}"
    extent = layout.spec(place).width
    for stride, count, name in _axes(layout, place):
        if stride < extent:
            yield f"{label}: {name}_stride {stride} is less than the {extent} bytes it must step over, so rows overlap"
        extent += (count - 1) * stride
    if place.offset < 0 or place.offset + extent > layout.total_bytes:
        yield f"{label}: bytes {place.offset} to {place.offset + extent} are outside the pool of {layout.total_bytes} bytes"


def _axes(layout: PoolLayout, place: PoolTensor) -> list[tuple[int, int, str]]:
    """``(stride, count, name)`` of the axes longer than one, innermost first."""
    heads = local_heads(layout.spec(place), layout.rank.tp_size)
    axes = (
        (place.page_stride, layout.num_pages, "page"),
        (place.token_stride, layout.page_size, "token"),
        (place.head_stride, heads, "head"),
    )
    return sorted(axis for axis in axes if axis[1] > 1)


def _overlap_problems(layout: PoolLayout) -> Iterator[str]:
    """Tensors that share bytes. Only those whose extents meet (fused ones) are looked at row by row."""
    cluster: list[PoolTensor] = []
    end = 0
    for place in sorted(layout.tensors, key=lambda place: place.offset):
        if place.offset >= end and cluster:
            yield from _cluster_problems(layout, cluster)
            cluster = []
        cluster.append(place)
        end = max(end, place.offset + _extent(layout, place))
    yield from _cluster_problems(layout, cluster)


def _extent(layout: PoolLayout, place: PoolTensor) -> int:
    return layout.spec(place).width + sum((count - 1) * stride for stride, count, _ in _axes(layout, place))


def _cluster_problems(layout: PoolLayout, cluster: Sequence[PoolTensor]) -> Iterator[str]:
    """Compare the byte runs of interleaved tensors; of one page only, where all of them repeat with the same outermost page."""
    if len(cluster) < 2:
        return
    period = cluster[0].page_stride
    periodic = all(place.page_stride == period and (_axes(layout, place) or [(0, 0, "")])[-1][2] == "page" for place in cluster)
    starts, sizes, owners = (np.concatenate(column) for column in zip(*_cluster_runs(layout, cluster, periodic), strict=True))
    if periodic:
        starts %= period
    order = np.argsort(starts, kind="stable")
    starts, sizes, owners = starts[order], sizes[order], owners[order]
    following = np.append(starts[1:], starts[0] + period if periodic else np.iinfo(np.int64).max)
    clashes = np.flatnonzero(starts + sizes > following)
    pairs = {tuple(sorted((int(owners[at]), int(owners[(at + 1) % len(owners)])))) for at in clashes[:_SHOWN_PROBLEMS]}
    for first, second in sorted(pairs):
        one, other = cluster[first], cluster[second]
        yield f"layer {one.layer} tensor {one.tensor} and layer {other.layer} tensor {other.tensor} share bytes"


def _cluster_runs(
    layout: PoolLayout, cluster: Sequence[PoolTensor], one_page: bool
) -> Iterator[tuple[np.ndarray[tuple[int], np.dtype[np.int64]], ...]]:
    """``(starts, sizes, owner index)`` of each tensor's gapless byte runs."""
    for owner, place in enumerate(cluster):
        size = layout.spec(place).width
        starts = np.array([place.offset], np.int64)
        for stride, count, name in _axes(layout, place):
            if one_page and name == "page":
                continue
            if len(starts) == 1 and stride == size:
                size *= count
            else:
                starts = (starts[:, None] + stride * np.arange(count, dtype=np.int64)).ravel()
        yield starts, np.full(len(starts), size, np.int64), np.full(len(starts), owner, np.int64)
