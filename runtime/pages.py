"""Copies between a pool's pages and a staged block: what gather and scatter share.

The slow way is one copy for each page, layer and tensor. Two merges avoid it:

* pages with consecutive indices become one *token run* (one strided copy, even across page edges where the strides allow);
* tensors of equal shape at equal distances, in the pool and in the block, become one *stack*: a single copy with a leading
  axis moves the run for all layers at once.

A ``CopyPlan`` holds the stacks of one (pool, slice) pair as ready-made strided arrays; a chunk then costs a few slices. For a
pool that wants compiled copies a stack is one call of ``runtime.compiled_copies``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.layout import PageRun, SlicePart
from runtime.compiled_copies import CopyRows, address_of, load_copy_rows
from runtime.page_runs import TokenRun, TokenRuns
from runtime.pool import KvPool

Items = NDArray[Any]

_VOID_ITEM_LIMIT = 1024
"""Rows up to this size are copied as one item each; longer ones as bytes, which numpy moves row by row without the GIL."""

_SHORT_RUN_TOKENS = 32


@dataclass(frozen=True, slots=True)
class _Row:
    """One part of a slice, as numbers: where its heads lie in the pool, and in a token of the staged slice."""

    pool_offset: int
    page_stride: int
    token_stride: int
    head_stride: int
    heads: int
    width: int
    staged_offset: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows of equal shape can be stacked."""
        return self.page_stride, self.token_stride, self.head_stride, self.heads, self.width


@dataclass(frozen=True, slots=True)
class _Stack:
    """Equal rows at equal distances. ``pool`` has ``[stack, pages, page_size, *row]``, or ``[stack, tokens, *row]``."""

    pool: Items
    flat: bool
    page_size: int
    first: _Row
    count: int
    pool_step: int
    staged_step: int

    def copy_compiled(self, copy: CopyRows, tokens: TokenRuns, block: int, *, to_pool: bool) -> None:
        """Copy all ``tokens`` between the pool and the staged block at this address."""
        row, num_tokens = self.first, tokens.num_tokens
        copy(
            to_pool,
            self.count,
            int(self.pool.ctypes.data),
            self.pool_step,
            block + num_tokens * row.staged_offset,
            num_tokens * self.staged_step,
            tokens.offsets(row.page_stride, row.token_stride),
            row.heads,
            row.head_stride,
            row.width,
        )

    def staged(self, block: memoryview, num_tokens: int) -> Items:
        """This stack's part of the staged block, shape ``[stack, tokens, *row]``."""
        row = self.pool.shape[2 if self.flat else 3 :]
        inner = self.pool.dtype.itemsize
        strides = [inner * int(np.prod(row[axis + 1 :])) for axis in range(len(row))]
        return np.ndarray(
            (self.pool.shape[0], num_tokens, *row),
            self.pool.dtype,
            block,
            num_tokens * self.first.staged_offset,
            (num_tokens * self.staged_step, self.first.heads * self.first.width, *strides),
        )

    def prefers_index(self, tokens: TokenRuns) -> bool:
        """Many short runs: one indexed copy for each tensor beats one strided copy for each run."""
        runs = tokens.count
        return self.flat and runs > self.pool.shape[0] and tokens.num_tokens < _SHORT_RUN_TOKENS * runs

    def pairs(self, staged: Items, tokens: TokenRuns) -> Iterator[tuple[Items, Items]]:
        """``(pool, staged)`` arrays of equal shape that together hold all ``tokens``."""
        for (page, first, count), done in tokens:
            if self.flat:
                start = page * self.page_size + first
                yield self.pool[:, start : start + count], staged[:, done : done + count]
            else:
                yield from self._page_pairs(staged, TokenRun(page, first, count), done)

    def _page_pairs(self, staged: Items, run: TokenRun, done: int) -> Iterator[tuple[Items, Items]]:
        """Rest of the first page, whole pages, begin of the last page."""
        page, first, tokens = run
        if first or tokens < self.page_size:
            head = min(tokens, self.page_size - first)
            yield self.pool[:, page, first : first + head], staged[:, done : done + head]
            page, done, tokens = page + 1, done + head, tokens - head
        whole, rest = divmod(tokens, self.page_size)
        if whole:
            target = staged[:, done : done + whole * self.page_size]
            yield self.pool[:, page : page + whole], target.reshape(target.shape[0], whole, self.page_size, *target.shape[2:])
        if rest:
            yield self.pool[:, page + whole, :rest], staged[:, done + whole * self.page_size : done + tokens]


class CopyPlan:
    """How one slice of one pool is copied. Safe to use from several threads: it holds no state of a copy."""

    def __init__(self, pool: KvPool, parts: Sequence[tuple[SlicePart, int]]) -> None:
        """``parts`` pairs each part of the slice with its first head in this pool."""
        rows = _rows(pool, parts)
        by_tensor = [rows[at] for at in sorted(range(len(rows)), key=lambda at: (parts[at][0].tensor, at))]
        groups = min((list(_groups(order)) for order in (rows, by_tensor)), key=len)
        self._stacks = [_stack(pool, group) for group in groups]
        self._layout = pool.layout
        self._token_bytes = sum(part.row_bytes for part, _ in parts)
        self._compiled = load_copy_rows() if pool.compiled_copies else None

    def read(self, run: PageRun, token_start: int, num_tokens: int, block: memoryview) -> None:
        """Copy pages into the block. Raises ``ValueError`` for a block of another size, ``PageRunError`` for wrong pages."""
        self._check_size(num_tokens, block)
        tokens = self._tokens(run, token_start, num_tokens)
        if self._compiled is not None:
            self._copy_compiled(self._compiled, tokens, block, to_pool=False)
            return
        for stack in self._stacks:
            staged = stack.staged(block, num_tokens)
            # An indexed read makes a copy of its own first, which long rows pay for more than for a call per run.
            if stack.prefers_index(tokens) and stack.pool.dtype.itemsize > 1:
                for index in range(len(staged)):
                    staged[index] = stack.pool[index][tokens.flat_index]
            else:
                for source, target in stack.pairs(staged, tokens):
                    target[...] = source

    def write(self, run: PageRun, token_start: int, num_tokens: int, block: memoryview) -> None:
        """Copy the block into pages. Raises as ``read`` does; nothing is written if the pages are wrong."""
        self._check_size(num_tokens, block)
        tokens = self._tokens(run, token_start, num_tokens)
        if self._compiled is not None:
            self._copy_compiled(self._compiled, tokens, block, to_pool=True)
            return
        for stack in self._stacks:
            staged = stack.staged(block, num_tokens)
            if stack.prefers_index(tokens):
                for index in range(len(staged)):
                    stack.pool[index][tokens.flat_index] = staged[index]
            else:
                for target, source in stack.pairs(staged, tokens):
                    target[...] = source

    def _tokens(self, run: PageRun, token_start: int, num_tokens: int) -> TokenRuns:
        return TokenRuns(run, self._layout.page_size, self._layout.num_pages, token_start, num_tokens)

    def _copy_compiled(self, copy: CopyRows, tokens: TokenRuns, block: memoryview, *, to_pool: bool) -> None:
        address = address_of(block)
        for stack in self._stacks:
            stack.copy_compiled(copy, tokens, address, to_pool=to_pool)

    def _check_size(self, num_tokens: int, block: memoryview) -> None:
        if block.nbytes != num_tokens * self._token_bytes:
            raise ValueError(f"block has {block.nbytes} bytes, expected {num_tokens} tokens of {self._token_bytes}")


def _rows(pool: KvPool, parts: Sequence[tuple[SlicePart, int]]) -> list[_Row]:
    rows = []
    staged = 0
    for part, head in parts:
        place = pool.place(part.layer, part.tensor)
        heads, width = part.head_count, part.row_bytes // part.head_count
        if place.head_stride == width or heads == 1:
            heads, width = 1, part.row_bytes
        strides = place.page_stride, place.token_stride, place.head_stride
        rows.append(_Row(place.offset + head * place.head_stride, *strides, heads, width, staged))
        staged += part.row_bytes
    return rows


def _groups(rows: Sequence[_Row]) -> Iterator[list[_Row]]:
    """Cut ``rows`` into groups of equal shape and equal distances, greedily."""
    group: list[_Row] = []
    for row in rows:
        if group and not _extends(group, row):
            yield group
            group = []
        group.append(row)
    if group:
        yield group


def _extends(group: Sequence[_Row], row: _Row) -> bool:
    if row.shape != group[0].shape:
        return False
    return len(group) == 1 or _distance(group[0], group[1]) == _distance(group[-1], row)


def _distance(one: _Row, other: _Row) -> tuple[int, int]:
    return other.pool_offset - one.pool_offset, other.staged_offset - one.staged_offset


def _stack(pool: KvPool, group: Sequence[_Row]) -> _Stack:
    first, page_size = group[0], pool.layout.page_size
    pool_step, staged_step = _distance(first, group[1]) if len(group) > 1 else (0, 0)
    flat = first.page_stride == page_size * first.token_stride or page_size == 1
    if flat:
        token_stride = first.token_stride if page_size > 1 else first.page_stride
        tokens = [(pool.layout.num_pages * page_size, token_stride)]
    else:
        tokens = [(pool.layout.num_pages, first.page_stride), (page_size, first.token_stride)]
    axes = [(len(group), pool_step), *tokens, *([(first.heads, first.head_stride)] if first.heads > 1 else [])]
    item: Any = np.uint8
    if first.width <= _VOID_ITEM_LIMIT:
        item = np.dtype((np.void, first.width))
    else:
        axes.append((first.width, 1))
    shape, strides = zip(*axes, strict=True)
    array = np.ndarray(shape, item, pool.memory.data, first.pool_offset, strides)
    return _Stack(array, flat, page_size, first, len(group), pool_step, staged_step)
