"""Verify first, copy then: a slice with wrong bytes keeps every slice of its chunk out of the pages."""

from collections.abc import Callable

import xxhash

from decode_service.outputs import ReadySlice, ScatterChunk
from decode_service.scatter import scatter
from decode_service.scatter_job import scatter_chunk
from prefill_service.gather import gather
from protocol.layout import WriterKey, writer_slice
from tests.unit.embedded import LAYOUT, RUN, TOKEN_BYTES, private_pool

SLICE = writer_slice(LAYOUT, LAYOUT)
TOKENS = 6
OFFSET = 128


def staged() -> tuple[bytearray, Callable[[int | None], ScatterChunk]]:
    """A ring that holds six staged tokens, and the chunk with a given checksum."""
    ring = bytearray(OFFSET + TOKENS * TOKEN_BYTES)
    gather(private_pool(seed=1), SLICE, RUN, 0, TOKENS, memoryview(ring)[OFFSET:])

    def chunk(checksum: int | None) -> ScatterChunk:
        ready = ReadySlice(SLICE, OFFSET, TOKENS * TOKEN_BYTES, checksum)
        return ScatterChunk(1, "room", 0, 0, TOKENS, RUN, (ready,))

    return ring, chunk


def test_intact_slices_reach_the_pages() -> None:
    """With the right checksum the pages hold what was sent, and no writer is bad."""
    ring, chunk = staged()
    pool, sent = private_pool(), private_pool(seed=1)
    checksum = xxhash.xxh3_64_intdigest(memoryview(ring)[OFFSET:])
    assert scatter_chunk(pool, memoryview(ring), chunk(checksum), scatter, verify=True) == ()
    assert (pool.view(1, 1).reshape(-1, 2, 32)[:TOKENS] == sent.view(1, 1).reshape(-1, 2, 32)[:TOKENS]).all()


def test_a_wrong_slice_is_named_and_nothing_is_copied() -> None:
    """One flipped bit: the writer is named, and the pages are untouched."""
    ring, chunk = staged()
    pool = private_pool()
    checksum = xxhash.xxh3_64_intdigest(memoryview(ring)[OFFSET:])
    ring[OFFSET] ^= 1
    assert scatter_chunk(pool, memoryview(ring), chunk(checksum), scatter, verify=True) == (WriterKey(0, 0),)
    assert not pool.memory.any()


def test_without_checksums_nothing_is_verified() -> None:
    """A slice without a checksum, and any slice where verifying is off, is copied as it is."""
    ring, chunk = staged()
    for checksum, verify in ((None, True), (12345, False)):
        pool = private_pool()
        assert scatter_chunk(pool, memoryview(ring), chunk(checksum), scatter, verify=verify) == ()
        assert pool.memory.any()
