"""vLLM's cache cells to and from the staged, token-major form: the gather and the scatter that the two halves are given.

Whole blocks are copied by strides, the partly covered first and last ones element by element, so that two copies may write
different tokens of one block at once. Everything large is one numpy call, which lets other threads run.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from integrations.vllm.cell_order import CellOrder, HalfOrder
from protocol.layout import PageRun, SlicePart, WriterSlice, part_offsets

Elements = NDArray[np.generic]


class Span(NamedTuple):
    """Tokens ``[first, last)`` of the block of each of these pages; their rows begin at ``row`` of the copied tokens."""

    pages: tuple[int, ...]
    first: int
    last: int
    row: int


def spans(run: PageRun, block_size: int, token_start: int, num_tokens: int) -> Iterator[Span]:
    """Cut room tokens into a partly covered first block, whole blocks, and a partly covered last one."""
    start = run.first_token + token_start
    end = start + num_tokens
    index = start // block_size
    if start % block_size:
        last = min(end - index * block_size, block_size)
        yield Span((run.pages[index],), start % block_size, last, 0)
        index += 1
    whole = end // block_size
    if whole > index:
        yield Span(tuple(run.pages[index:whole]), 0, block_size, index * block_size - start)
        index = whole
    if index * block_size < end and index * block_size >= start:
        yield Span((run.pages[index],), 0, end - index * block_size, index * block_size - start)


@dataclass(frozen=True, slots=True)
class CellCache:
    """One rank's cache: for each layer all cells ``[blocks, heads, 2, block_size * head_size]``, not copied.

    Pages from the number of blocks on are written to nowhere.
    """

    layers: Sequence[Elements]
    order: CellOrder

    @property
    def num_blocks(self) -> int:
        """Blocks that exist."""
        return int(self.layers[0].shape[0])

    def read(self, part: SlicePart, run: PageRun, token_start: int, num_tokens: int, rows: Elements) -> None:
        """Fill ``rows`` (``[tokens, heads, head_size]``) with those tokens and heads of a part."""
        half = self.order.half(part.tensor)
        cells = self._cells(part.layer, part.tensor, part.source_head, part.head_count)
        for span in spans(run, self.order.block_size, token_start, num_tokens):
            into = rows[span.row : span.row + len(span.pages) * (span.last - span.first)]
            if span.last - span.first == self.order.block_size:
                _read_whole(cells, half, span.pages, into)
            else:
                np.copyto(into, cells[span.pages[0]][:, half.index[span.first : span.last]].transpose(1, 0, 2))

    def write(self, part: SlicePart, run: PageRun, token_start: int, num_tokens: int, rows: Elements) -> None:
        """Put ``rows`` (``[tokens, heads, head_size]``) where those tokens and heads of a part belong."""
        half = self.order.half(part.tensor)
        cells = self._cells(part.layer, part.tensor, part.destination_head, part.head_count)
        for span in spans(run, self.order.block_size, token_start, num_tokens):
            for pages, row in self._kept(span):
                values = rows[row : row + len(pages) * (span.last - span.first)]
                if span.last - span.first == self.order.block_size:
                    _write_whole(cells, half, pages, values)
                else:
                    cells[pages[0]][:, half.index[span.first : span.last]] = values.transpose(1, 0, 2)

    def _cells(self, layer: int, tensor: int, head: int, count: int) -> Elements:
        return self.layers[layer][:, head : head + count, tensor]

    def _kept(self, span: Span) -> Iterator[tuple[tuple[int, ...], int]]:
        """The stretches of a span's pages that exist, each with its first row."""
        first = 0
        for at, page in enumerate((*span.pages, self.num_blocks)):
            if page >= self.num_blocks:
                if at > first:
                    yield span.pages[first:at], span.row + first * (span.last - span.first)
                first = at + 1


class CellCopies:
    """``gather`` and ``scatter`` of one rank, as the two halves call them: in worker threads, several at once."""

    def __init__(self, cache: CellCache) -> None:
        self._cache = cache

    def gather(self, writer: WriterSlice, run: PageRun, token_start: int, num_tokens: int, block: memoryview) -> None:
        """Pages to the staged block."""
        size = self._cache.order.block_size
        start = run.first_token + token_start
        pages = run.pages[start // size : -(-(start + num_tokens) // size)]
        for part, rows in self._rows(writer, num_tokens, block):
            self.before(part.layer, pages)
            self._cache.read(part, run, token_start, num_tokens, rows)

    def scatter(self, writer: WriterSlice, run: PageRun, token_start: int, num_tokens: int, block: memoryview) -> None:
        """The staged block to pages."""
        for part, rows in self._rows(writer, num_tokens, block):
            self._cache.write(part, run, token_start, num_tokens, rows)

    def before(self, layer: int, pages: tuple[int, ...]) -> None:
        """Wait until the layer of those pages may be read. Here it always may."""

    def _rows(self, writer: WriterSlice, num_tokens: int, block: memoryview) -> Iterator[tuple[SlicePart, Elements]]:
        dtype, size = self._cache.layers[0].dtype, self._cache.order.head_size
        for part, offset in zip(writer.parts, part_offsets(writer.parts, num_tokens), strict=True):
            flat = np.frombuffer(block[offset : offset + num_tokens * part.row_bytes], dtype)
            yield part, flat.reshape(num_tokens, part.head_count, size)


def _read_whole(cells: Elements, half: HalfOrder, pages: tuple[int, ...], into: Elements) -> None:
    found = _chosen(cells, pages)
    view, rows = half.view(found), into.reshape(len(pages), half.index.shape[0], *into.shape[1:])
    if view is None:
        np.copyto(rows, found[:, :, half.index].transpose(0, 2, 1, 3))
    elif half.is_transposed:
        for page, row in zip(view, rows, strict=True):
            # By way of a copy in which a head's tokens are near each other.
            near = np.ascontiguousarray(_heads_first(page)).reshape(row.shape[1], row.shape[0], row.shape[2])
            np.copyto(row, near.transpose(1, 0, 2))
    else:
        for lane, row in half.lanes(view, rows):
            np.copyto(row, lane)


def _write_whole(cells: Elements, half: HalfOrder, pages: tuple[int, ...], values: Elements) -> None:
    first, count = pages[0], len(pages)
    together = pages == tuple(range(first, first + count))
    into = cells[first : first + count] if together else np.empty((count, *cells.shape[1:]), cells.dtype)
    view, rows = half.view(into), values.reshape(count, half.index.shape[0], *values.shape[1:])
    if view is None:
        into[:, :, half.index] = rows.transpose(0, 2, 1, 3)
    elif half.is_transposed:
        for page, row in zip(view, rows, strict=True):
            # By way of a copy in which a head's tokens are near each other.
            target = _heads_first(page)
            np.copyto(target, np.ascontiguousarray(row.transpose(1, 0, 2)).reshape(target.shape))
    else:
        for lane, row in half.lanes(view, rows):
            np.copyto(lane, row)
    if not together:
        cells[list(pages)] = into


def _heads_first(page: Elements) -> Elements:
    """``[t, t', heads, d, d']`` as ``[heads, t, t', d, d']``."""
    return page.transpose(2, 0, 1, 3, 4)


def _chosen(cells: Elements, pages: tuple[int, ...]) -> Elements:
    """The cells of these pages: a view where they follow each other, else a copy."""
    first = pages[0]
    if pages == tuple(range(first, first + len(pages))):
        return cells[first : first + len(pages)]
    return cells[list(pages)]
