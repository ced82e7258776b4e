"""Cells to token-major rows and back: any order, any block size, any run of tokens, and nothing beside them."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from integrations.vllm.cell_order import CellOrder
from integrations.vllm.cells import CellCache, CellCopies, Elements, spans
from protocol.layout import PageRun, expected_writers, part_offsets
from tests.unit.integrations.vllm.cell_orders import ORDERS
from tests.unit.integrations.vllm.shapes import SHAPE


def cache_of(order: CellOrder, blocks: int, heads: int, seed: int | None) -> CellCache:
    """A cache of both layers, zeroed or filled."""
    shape = (blocks, heads, 2, order.block_size * order.head_size)
    draw = np.random.default_rng(seed)
    layers = [np.zeros(shape, np.uint16) if seed is None else draw.integers(1, 60_000, shape, np.uint16) for _ in range(2)]
    return CellCache(layers, order)


def rows_of(cache: CellCache, pages: tuple[int, ...], count: int) -> Elements:
    """What the first tokens of these pages hold, straight from the map: ``[layer, tensor, token, head, dim]``."""
    found = []
    for layer in cache.layers:
        for tensor in range(2):
            half = layer[list(pages)][:, :, tensor][:, :, cache.order.half(tensor).index]
            found.append(half.transpose(0, 2, 1, 3).reshape(-1, half.shape[1], half.shape[3])[:count])
    return np.stack(found).reshape(2, 2, count, -1, cache.order.head_size)


@settings(max_examples=60, deadline=None)
@given(
    block=st.sampled_from([1, 4, 16]), first=st.integers(0, 40), start=st.integers(0, 40), count=st.integers(0, 60)
)  # fmt: skip
def test_spans_cover_each_token_once(block: int, first: int, start: int, count: int) -> None:
    """Partly covered first and last blocks, whole ones in between, rows without gap or overlap."""
    run = PageRun(tuple(range(100, 250)), first)
    places, row = [], 0
    for span in spans(run, block, start, count):
        assert span.row == row
        assert span.last - span.first == block or len(span.pages) == 1
        for page in span.pages:
            places += [(page - 100) * block + slot for slot in range(span.first, span.last)]
            row += span.last - span.first
    assert places == list(range(first + start, first + start + count))
    assert all(b == a + 1 for a, b in pairwise(places))


@pytest.mark.parametrize("source", list(ORDERS))
@pytest.mark.parametrize("destination", list(ORDERS))
@pytest.mark.parametrize(("prefill_tp", "decode_tp"), [(1, 1), (2, 1), (1, 2), (4, 1), (1, 4), (4, 4)])
@pytest.mark.parametrize("scattered", [False, True])
def test_tokens_arrive_in_another_order(
    source: str, destination: str, prefill_tp: int, decode_tp: int, scattered: bool
) -> None:
    """From every order to every other one, over unequal TP and replicated heads, between blocks of 16 and of 32 tokens."""
    tokens, chunk = 77, 80 if scattered else 40
    theirs, ours = ORDERS[source](16, 16), ORDERS[destination](32, 16)
    pages, into = ((3, 0, 5, 1, 4), (2, 0, 3)) if scattered else ((3, 4, 5, 1, 0), (2, 3, 0))
    whole = cache_of(theirs, 6, 2, seed=1)
    for decode_rank in range(decode_tp):
        decode = SHAPE.rank(decode_rank, decode_tp)
        target = cache_of(ours, 4, max(1, 2 // decode_tp), seed=None)
        for writer in expected_writers(SHAPE.rank(0, prefill_tp), decode):
            held = max(1, 2 // prefill_tp)
            first = writer.writer.tp_rank * 2 // prefill_tp
            gather = CellCopies(CellCache([layer[:, first : first + held] for layer in whole.layers], theirs)).gather
            for start in range(0, tokens, chunk):
                count = min(chunk, tokens - start)
                block = memoryview(bytearray(count * writer.token_bytes))
                gather(writer, PageRun(pages), start, count, block)
                CellCopies(target).scatter(writer, PageRun(into), start, count, block)
        own = decode_rank * 2 // decode_tp
        expected = rows_of(whole, pages, tokens)[:, :, :, own : own + target.layers[0].shape[1]]
        assert np.array_equal(rows_of(target, into, tokens), expected)
        # The rest of the last block, and the block that is not listed, were not touched.
        assert not rows_of(target, (1,), 32).any()
        assert not rows_of(target, into, 96)[:, :, tokens:].any()


def test_first_token_within_a_block() -> None:
    """A run may begin in the middle of a block, on both sides at different places."""
    order = ORDERS["plain"](8, 16)
    whole, target = cache_of(order, 6, 2, seed=2), cache_of(order, 6, 2, seed=None)
    (writer,) = expected_writers(SHAPE.rank(0, 1), SHAPE.rank(0, 1))
    block = memoryview(bytearray(20 * writer.token_bytes))
    CellCopies(whole).gather(writer, PageRun((5, 1, 2, 0), first_token=3), 2, 20, block)
    CellCopies(target).scatter(writer, PageRun((0, 3, 4, 1), first_token=6), 1, 20, block)
    arrived = rows_of(target, (0, 3, 4, 1), 32)
    assert np.array_equal(arrived[:, :, 7:27], rows_of(whole, (5, 1, 2, 0), 32)[:, :, 5:25])
    assert not arrived[:, :, :7].any()
    assert not arrived[:, :, 27:].any()


@pytest.mark.parametrize("into", [(9, 1, 10), (1, 9, 3), (9, 10, 11), (1, 2, 9)])
def test_pages_that_do_not_exist_are_written_to_nowhere(into: tuple[int, ...]) -> None:
    """Tokens of discard pages are dropped; the others arrive where they belong."""
    order = ORDERS["tiled"](16, 16)
    whole, target = cache_of(order, 6, 2, seed=4), cache_of(order, 6, 2, seed=None)
    (writer,) = expected_writers(SHAPE.rank(0, 1), SHAPE.rank(0, 1))
    block = memoryview(bytearray(44 * writer.token_bytes))
    CellCopies(whole).gather(writer, PageRun((0, 1, 2)), 0, 44, block)
    CellCopies(target).scatter(writer, PageRun(into), 0, 44, block)
    sent = rows_of(whole, (0, 1, 2), 44)
    for at, page in enumerate(into):
        last = min(16, 44 - at * 16)
        if page < 6:
            assert np.array_equal(rows_of(target, (page,), last), sent[:, :, at * 16 : at * 16 + last])
    kept = {page for page in into if page < 6}
    assert not any(rows_of(target, (page,), 16).any() for page in range(6) if page not in kept)


def test_block_holds_part_after_part() -> None:
    """The staged block is that of the protocol: parts one after the other, each token by token, head by head."""
    order = ORDERS["plain"](4, 16)
    whole = cache_of(order, 3, 2, seed=5)
    (writer,) = expected_writers(SHAPE.rank(0, 1), SHAPE.rank(0, 1))
    block = memoryview(bytearray(6 * writer.token_bytes))
    CellCopies(whole).gather(writer, PageRun((2, 0)), 0, 6, block)
    rows = rows_of(whole, (2, 0), 6)
    for part, offset in zip(writer.parts, part_offsets(writer.parts, 6), strict=True):
        found = np.frombuffer(block[offset : offset + 6 * part.row_bytes], np.uint16)
        assert np.array_equal(found.reshape(6, 2, 16), rows[part.layer, part.tensor])
