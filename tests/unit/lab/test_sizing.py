"""Sizes that are promised, against the allocator that must keep the promise."""

from collections import deque
from random import Random

import pytest

from decode_service.allocator import Allocation, StagingAllocator
from lab.presets import PRESETS
from lab.shape import ShapeError
from lab.sizing import CHUNK_TARGET_BYTES, SizeQuestion, answer, suggested_chunk_tokens
from protocol.watermark import is_watermark_ready

LLAMA = PRESETS["llama3-70b"].model
QUESTION = SizeQuestion(LLAMA, prefill_tp=4, decode_tp=8, concurrency=4, chunk_tokens=256)


def ready(ring: StagingAllocator, grant: Allocation, num_bytes: int) -> bool:
    """Whether the grant may be written now."""
    return is_watermark_ready(ring.get_watermark(), grant.round, grant.offset + num_bytes)


def given(ring: StagingAllocator, num_bytes: int) -> Allocation:
    """A grant; whatever fits the ring gets one."""
    grant = ring.assign(num_bytes)
    assert isinstance(grant, Allocation)
    return grant


@pytest.mark.parametrize("concurrency", [1, 2, 3, 7])
def test_the_recommended_ring_keeps_its_promise(concurrency: int) -> None:
    """With as many chunks on their way as promised, of any size up to a full chunk, the next one never waits."""
    found = answer(SizeQuestion(LLAMA, 4, 8, concurrency, 256))
    ring, random = StagingAllocator(found.ring_bytes), Random(concurrency)
    live: deque[Allocation] = deque()
    for _ in range(2000):
        if len(live) == concurrency:
            ring.free(live.popleft().alloc_id)
        size = random.choice((found.chunk_bytes, random.randint(1, found.chunk_bytes)))
        live.append(given(ring, size))
        assert ready(ring, live[-1], size)


def test_the_smallest_ring_moves_one_chunk_at_a_time() -> None:
    """In a ring of one chunk the second grant waits for the first one's end; a byte less holds no chunk at all."""
    chunk = answer(QUESTION).minimum_ring_bytes
    ring = StagingAllocator(chunk)
    first, second = given(ring, chunk), given(ring, chunk)
    assert (ready(ring, first, chunk), ready(ring, second, chunk)) == (True, False)
    ring.free(first.alloc_id)
    assert ready(ring, second, chunk)
    assert not isinstance(StagingAllocator(chunk - 1).assign(chunk), Allocation)


def test_bytes_are_those_of_the_layout() -> None:
    """Llama 70B on eight decode ranks: one head of 80 layers, K and V of 128 values of two bytes, from one prefill rank."""
    found = answer(QUESTION)
    assert (found.token_bytes, found.writers, found.chunk_bytes) == (80 * 2 * 256, 1, 256 * 80 * 2 * 256)
    assert found.total_ring_bytes == 8 * found.ring_bytes
    assert answer(SizeQuestion(LLAMA, 8, 4, 1, 1)).writers == 2


def test_the_wire_stays_busy_while_chunks_are_scattered() -> None:
    """A scatter of three writes' length needs four chunks in the ring, however few were asked for."""
    write_s = answer(QUESTION).chunk_bytes / 1e9
    slow = SizeQuestion(LLAMA, 4, 8, 1, 256, scatter_s=2.5 * write_s, write_bytes_per_s=1e9)
    found = answer(slow)
    assert found.ring_chunks == 4
    assert found.bytes_per_s == pytest.approx(1e9)
    assert answer(SizeQuestion(LLAMA, 4, 8, 1, 256, scatter_s=0.01)).bytes_per_s == found.chunk_bytes / 0.01


@pytest.mark.parametrize(
    ("ring_bytes", "words", "enough"),
    [
        (1, "no full chunk fits", False),
        (10_485_759, "no full chunk fits", False),
        (10_485_760, "one chunk at a time", True),
        (20_971_520, "fewer than 4 chunks", True),
        (10_485_760 * 5, "4 chunks are on their way", True),
    ],
)
def test_a_given_ring_is_judged(ring_bytes: int, words: str, *, enough: bool) -> None:
    """Each ring is told what it does, from the smallest that holds a chunk upwards."""
    found = answer(SizeQuestion(LLAMA, 4, 8, 4, 256, ring_bytes=ring_bytes))
    assert words in found.verdict
    assert found.is_enough is enough
    assert answer(QUESTION).verdict == ""


@pytest.mark.parametrize("token_bytes", [1, 4096, 40_960, 70_272, 327_680, 1 << 26])
def test_a_suggested_chunk_is_near_the_target(token_bytes: int) -> None:
    """A power of two within the limits, at most the target and more than half of it where the limits allow."""
    tokens = suggested_chunk_tokens(token_bytes)
    assert tokens & (tokens - 1) == 0
    assert 64 <= tokens <= 8192
    if 64 < tokens < 8192:
        assert CHUNK_TARGET_BYTES / 2 < tokens * token_bytes <= CHUNK_TARGET_BYTES


def test_layouts_that_cannot_be_matched_are_refused() -> None:
    """Eight heads do not split over three ranks, and the reason says so."""
    with pytest.raises(ShapeError, match="3"):
        answer(SizeQuestion(LLAMA, 3, 8, 1))
