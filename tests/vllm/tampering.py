"""What a test does to the halves inside the ranks of an engine: hold writes, spoil staged bytes, read their accounts.

These functions run in a rank's process (``Engine.call``). What is altered is how a write fills its place in the ring: behind
the pages and behind the checksum, where a broken wire would do it.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

from prefill_service import session_plane
from prefill_service.outputs import WriteChunk
from prefill_service.session_plane import Filled
from prefill_service.writers.base import RegionWriter
from protocol.layout import WriterSlice, part_offsets
from runtime.pool import KvPool

WAIT_S = 120.0
V = 1
"""Index of V among the tensors of a layer."""

_Fill = Callable[..., Filled]


class Tampering:
    """Stands in for the function that fills a slice's place. One for each process."""

    def __init__(self, fill: _Fill) -> None:
        self._fill = fill
        self.open = threading.Event()
        self.open.set()
        self.held = threading.Event()
        self.spoil_left = 0
        self.spoiled = 0

    def __call__(self, writer: RegionWriter, pool: KvPool, layout: WriterSlice, write: WriteChunk, **named: Any) -> Filled:
        """Fill the place; before that wait at the gate, after it spoil one head."""
        if not self.open.is_set():
            self.held.set()
            if not self.open.wait(WAIT_S):
                raise TimeoutError("nobody opened the gate")
        filled = self._fill(writer, pool, layout, write, **named)
        if self.spoil_left:
            self.spoil_left -= 1
            self.spoiled += 1
            spoil_head(filled.block, layout, write.num_tokens)
        return filled


def spoil_head(block: memoryview, layout: WriterSlice, num_tokens: int) -> None:
    """Put zeros in place of the last head of every V, for every token of a staged slice."""
    for part, offset in zip(layout.parts, part_offsets(layout.parts, num_tokens), strict=True):
        if part.tensor == V:
            width = part.row_bytes // part.head_count
            for end in range(offset + part.row_bytes, offset + num_tokens * part.row_bytes + 1, part.row_bytes):
                block[end - width : end] = bytes(width)


def tampering() -> Tampering:
    """This process's, put in place at the first call."""
    current = session_plane._fill
    if not isinstance(current, Tampering):
        current = Tampering(current)
        session_plane._fill = current
    return current


def hold_writes() -> None:
    """From now on writes wait before they touch the ring."""
    state = tampering()
    state.held.clear()
    state.open.clear()


def write_is_held() -> bool:
    """Whether a write has come to the gate."""
    return tampering().held.is_set()


def release_writes() -> None:
    """Let every write go on."""
    tampering().open.set()


def spoil_writes(times: int) -> None:
    """Spoil one head in the bytes of so many writes to come, after their checksum was taken."""
    tampering().spoil_left = times


def spoiled_writes() -> int:
    """How many were spoiled so far."""
    return tampering().spoiled


def rooms_live(count: int) -> bool:
    """Whether this rank's half has so many rooms."""
    return all(rank["room_count"] >= count for rank in inspect()["ranks"])


def region_differs(epoch: str) -> bool:
    """Whether the ring of this rank is another one than that."""
    return all(rank["epoch"] != epoch for rank in inspect()["ranks"])


def chunks_scattered() -> int:
    """How many chunks have been written into this consumer's pages."""
    return sum(rank["counters"].get("chunks_scattered", 0) for rank in inspect()["ranks"])


def inspect() -> dict[str, Any]:
    """What the connector of this rank says of its half."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group  # noqa: PLC0415 - only where an engine runs

    found: dict[str, Any] = get_kv_transfer_group()._worker._half._half.engine.inspect().result(WAIT_S)
    return found


def leftovers() -> dict[str, Any]:
    """What this rank still holds though nothing is left to do; nothing if it is as it should be.

    A room may end here a moment before the last message about it has been dealt with: that moment is waited for.
    """
    deadline = time.monotonic() + WAIT_S
    while (found := _held()) and time.monotonic() < deadline:
        threading.Event().wait(0.05)
    return found


def _held() -> dict[str, Any]:
    """Everything that is not zero among what must be."""
    held: dict[str, Any] = {}
    for rank, state in enumerate(inspect()["ranks"]):
        counts = {name: state[name] for name in ("room_count", "parked_requests", "waiting_turns") if name in state}
        counts |= {name: state["ring"][name] for name in ("live_grants", "live_bytes") if "ring" in state}
        counts |= {name: state["writes"][name] for name in ("running", "queued") if "writes" in state}
        held |= {f"{rank}.{name}": count for name, count in counts.items() if count}
    return held
