"""How large chunks and rings must be, and what happens where they are not.

*Chunk*: one round trip, one gate and one scatter per chunk, so it should be large enough for those not to count; a ring holds
whole chunks, so it should not be larger than that. ``CHUNK_TARGET_BYTES`` on a decode rank is the middle.

*Ring*: a grant lives from its first byte to the end of its scatter. To have ``concurrency`` chunks on their way at the same
time a ring needs room for as many; one more, since a grant never runs over the ring's end and what is left there is lost
until the ring has turned; and at least enough for the wire to be busy while a chunk is scattered, which takes
``1 + scatter time / write time`` chunks.
"""

import math
from dataclasses import asdict, dataclass

from lab.shape import PairShape
from protocol.layout import ModelLayout, expected_writers

CHUNK_TARGET_BYTES = 16 << 20
MIN_CHUNK_TOKENS = 64
MAX_CHUNK_TOKENS = 8192
_ROUND_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class SizeQuestion:
    """What an operator knows. Times in seconds, rates in bytes per second; zero is "not given"."""

    model: ModelLayout
    prefill_tp: int
    decode_tp: int
    concurrency: int
    """Chunks that should be on their way into one decode rank at the same time: rooms in flight, or writers that take turns."""
    chunk_tokens: int = 0
    scatter_s: float = 0.0
    """How long a full chunk takes to be scattered."""
    write_bytes_per_s: float = 0.0
    """What one decode rank receives per second."""
    ring_bytes: int = 0
    """A ring that somebody has already, to be judged."""


@dataclass(frozen=True, slots=True)
class Tier:
    """What a ring of at least ``from_bytes`` and less than the next tier's does."""

    from_bytes: int
    effect: str


@dataclass(frozen=True, slots=True)
class SizeAnswer:
    """Sizes of one decode rank, in bytes, and what smaller rings do."""

    token_bytes: int
    """Staged bytes of one token, over all writers."""
    writers: int
    chunk_tokens: int
    chunk_bytes: int
    ring_chunks: int
    minimum_ring_bytes: int
    ring_bytes: int
    """Recommended."""
    total_ring_bytes: int
    """On all decode ranks together."""
    bytes_per_s: float
    """What the recommended ring lets through, by its size alone; 0 if neither time was given."""
    tiers: tuple[Tier, ...]
    given_ring_bytes: int = 0
    verdict: str = ""
    """What the given ring does."""

    @property
    def is_enough(self) -> bool:
        """Whether the given ring, if there is one, can hold a chunk at all."""
        return not self.given_ring_bytes or self.given_ring_bytes >= self.minimum_ring_bytes

    def to_json(self) -> dict[str, object]:
        """The answer as plain values."""
        return {**asdict(self), "is_enough": self.is_enough}


def answer(question: SizeQuestion) -> SizeAnswer:
    """Sizes for this deployment. Raises ``ShapeError`` for layouts that cannot be matched."""
    shape = PairShape(question.model, question.prefill_tp, 1, question.decode_tp, "zmq", chunk_tokens=1, ring_bytes=0)
    token_bytes = shape.chunk_bytes(1)
    tokens = question.chunk_tokens or suggested_chunk_tokens(token_bytes)
    chunk = token_bytes * tokens
    write_s = chunk / question.write_bytes_per_s if question.write_bytes_per_s else 0.0
    chunks = _chunks_in_flight(question, write_s)
    ring = _rounded((chunks + 1) * chunk)
    tiers = _tiers(chunk, chunks, ring)
    busy_s = question.scatter_s + write_s
    through = chunks * chunk / busy_s if busy_s else 0.0
    given = question.ring_bytes
    return SizeAnswer(
        token_bytes=token_bytes,
        writers=len(expected_writers(shape.prefill_layout(0), shape.decode_layout(0))),
        chunk_tokens=tokens,
        chunk_bytes=chunk,
        ring_chunks=chunks,
        minimum_ring_bytes=chunk,
        ring_bytes=ring,
        total_ring_bytes=ring * question.decode_tp,
        bytes_per_s=min(through, question.write_bytes_per_s or through),
        tiers=tiers,
        given_ring_bytes=given,
        verdict=[tier.effect for tier in tiers if tier.from_bytes <= given][-1] if given else "",
    )


def suggested_chunk_tokens(token_bytes: int) -> int:
    """The power of two that brings a chunk nearest to ``CHUNK_TARGET_BYTES`` without exceeding it, within the limits."""
    fitting = max(1, CHUNK_TARGET_BYTES // token_bytes)
    return min(MAX_CHUNK_TOKENS, max(MIN_CHUNK_TOKENS, 1 << (fitting.bit_length() - 1)))


def _chunks_in_flight(question: SizeQuestion, write_s: float) -> int:
    busy = 1 + math.ceil(question.scatter_s / write_s) if write_s else 1
    return max(question.concurrency, busy)


def _tiers(chunk: int, chunks: int, ring: int) -> tuple[Tier, ...]:
    tiers = [
        Tier(
            0, "no full chunk fits: the daemon refuses the KV pool (ring_too_small), as each such room would fail (oversized)"
        ),
        Tier(
            chunk, "one chunk at a time: each waits until the one before it is scattered, and a slow writer holds up all others"
        ),
    ]
    if chunks > 1:
        text = f"writing overlaps with scattering, but fewer than {chunks} chunks are on their way; the rest waits for its turn"
        tiers.append(Tier(2 * chunk, text))
    tiers.append(
        Tier(max(ring, 2 * chunk), f"{chunks} chunks are on their way at the same time, whatever is lost at the ring's end")
    )
    return tuple(tiers)


def _rounded(size: int) -> int:
    return -(-size // _ROUND_BYTES) * _ROUND_BYTES
