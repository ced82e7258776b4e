"""What every KV byte must be: an independent model that fills prefill pages and judges decode pages.

The KV of a room is a formula, not a stored array. Let every head of every tensor of every layer of the *whole* model have a
serial number; then, in 64-bit arithmetic,::

    word(head, token, w) = mix(mix(key(seed, room) ^ mix(serial * odd)) + (token * words of a head + w) * odd)

so any head, token or layer that ends up in the wrong place shows. Which heads a rank holds is written here once more, on
purpose, with none of the slice arithmetic of the product: ranks that share a head are neighbours, so rank ``r`` of ``tp``
begins at head ``r * heads // tp``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from protocol.layout import PageRun, RankLayout, TensorSpec
from runtime.pool import KvPool

Words = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Outcome of one check: bytes looked at, bytes that were wrong, and where the first of them was."""

    bytes_checked: int
    mismatched_bytes: int = 0
    first_mismatch: str = ""

    def __add__(self, other: "Comparison") -> "Comparison":
        """Both checks as one; the first mismatch is the earlier one's, if it has any."""
        return Comparison(
            self.bytes_checked + other.bytes_checked,
            self.mismatched_bytes + other.mismatched_bytes,
            self.first_mismatch or other.first_mismatch,
        )


def _mixed(words: Words) -> Words:
    """Scramble each word; every bit of it matters to every byte of the result."""
    words = (words ^ (words >> _HALF)) * _MIX
    return words ^ (words >> _HALF)


def _room_key(seed: int, room: str) -> np.uint64:
    digest = blake2b(f"{seed}:{room}".encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def _held_heads(spec: TensorSpec, rank: RankLayout) -> range:
    """Global heads that a rank holds."""
    if not spec.sharded:
        return range(spec.heads)
    first = rank.tp_rank * spec.heads // rank.tp_size
    return range(first, first + max(1, spec.heads // rank.tp_size))


def _tensors(rank: RankLayout) -> Iterator[tuple[int, int, TensorSpec, range]]:
    """``(layer, tensor, spec, serial numbers of the held heads)`` of all that a rank holds."""
    serial = 0
    for layer, specs in enumerate(rank.model.layers):
        held = rank.stage_bounds[rank.pp_rank] <= layer < rank.stage_bounds[rank.pp_rank + 1]
        for tensor, spec in enumerate(specs):
            heads = _held_heads(spec, rank)
            if held:
                yield layer, tensor, spec, range(serial + heads.start, serial + heads.stop)
            serial += spec.heads


def _blocks(rank: RankLayout) -> Iterator[tuple[int, Words, list[tuple[int, int]]]]:
    """Tensors of equal shape together: ``(width, head serials [tensors, heads], [(layer, tensor), ...])``."""
    shapes: dict[tuple[int, int], list[tuple[int, int, range]]] = {}
    for layer, tensor, spec, serials in _tensors(rank):
        shapes.setdefault((spec.width, len(serials)), []).append((layer, tensor, serials))
    for (width, _), found in shapes.items():
        yield width, np.array([serials for _, _, serials in found], np.uint64), [(layer, tensor) for layer, tensor, _ in found]


def _expected(key: np.uint64, serials: Words, width: int, num_tokens: int) -> NDArray[np.uint8]:
    """Bytes of these heads, shape ``[tensors, tokens, heads, width]``."""
    per_head = -(-width // 8)
    head_keys = _mixed(key ^ _mixed((serials + np.uint64(1)) * _GOLDEN))[:, None, :, None]
    counters = np.arange(num_tokens * per_head, dtype=np.uint64).reshape(num_tokens, 1, per_head) * _GOLDEN
    return _mixed(head_keys + counters).view(np.uint8)[..., :width]


def _places(pool: KvPool, run: PageRun, num_tokens: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Page and token within the page of each room token."""
    tokens = np.arange(run.first_token, run.first_token + num_tokens)
    return np.array(run.pages, np.intp)[tokens // pool.layout.page_size], tokens % pool.layout.page_size


def fill(pool: KvPool, run: PageRun, num_tokens: int, *, seed: int, room: str) -> int:
    """Write the room's KV into this rank's pages, as its forward pass would have; return the bytes written."""
    key, (pages, slots), written = _room_key(seed, room), _places(pool, run, num_tokens), 0
    for width, serials, names in _blocks(pool.layout.rank):
        block = _expected(key, serials, width, num_tokens)
        for values, (layer, tensor) in zip(block, names, strict=True):
            pool.view(layer, tensor)[pages, slots] = values
        written += block.size
    return written


def compare(pool: KvPool, run: PageRun, num_tokens: int, *, seed: int, room: str) -> Comparison:
    """Compare every KV byte of the room in this rank's pages with what it must be."""
    key, (pages, slots), result = _room_key(seed, room), _places(pool, run, num_tokens), Comparison(0)
    for width, serials, names in _blocks(pool.layout.rank):
        block = _expected(key, serials, width, num_tokens)
        for values, (layer, tensor) in zip(block, names, strict=True):
            found = pool.view(layer, tensor)[pages, slots]
            result += _judged(values, found, pool.layout.rank, layer, tensor)
    return result


def _judged(values: NDArray[np.uint8], found: NDArray[np.uint8], rank: RankLayout, layer: int, tensor: int) -> Comparison:
    if np.array_equal(values, found):
        return Comparison(values.size)
    wrong = np.argwhere(values != found)
    token, head, byte = (int(at) for at in wrong[0])
    spec = rank.model.layers[layer][tensor]
    place = f"layer {layer}, tensor {spec.name}, head {_held_heads(spec, rank)[head]}, token {token}, byte {byte}"
    expected, actual = int(values[token, head, byte]), int(found[token, head, byte])
    return Comparison(values.size, len(wrong), f"{place}: expected {expected:#04x}, found {actual:#04x}")
