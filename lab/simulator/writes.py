"""Writes of a prefill rank in the simulator, in steps: torn by a pause, half done, landing after their sender's death."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from lab.simulator.memory import RingMemory, checksum_of
from lab.simulator.network import DATA
from prefill_service.outputs import WriteChunk
from protocol import codec
from protocol.messages import DataPiece

if TYPE_CHECKING:
    from lab.simulator.prefill_process import PrefillProcess

PIECE_BYTES = 5
LANDS_WITHIN_S = 8.0
"""How late the bytes of a failed one-sided write may still land."""


@dataclass(frozen=True, slots=True)
class OpenedPlane:
    """One session's way into a ring."""

    plane: str
    memory: RingMemory
    rank: int
    """The decode rank whose slice is written."""


class Writes:
    """Every write of one life that runs. ``end`` is told the write, its checksum, and why it failed."""

    def __init__(self, process: "PrefillProcess", end: Callable[[WriteChunk, int, str | None], None]) -> None:
        self._process = process
        self._world = process.world
        self._end = end
        self._life = process.life
        self.running: dict[int, WriteChunk] = {}

    def start(self, write: WriteChunk, opened: OpenedPlane, payload: bytes) -> None:
        """Begin a write whose slice must be ``payload`` in the end."""
        self.running[write.write_id] = write
        steps = self._over_wire(write, payload) if opened.plane == "zmq" else self._into_ring(write, opened, payload)
        fails = self._world.fails_write()
        self._advance(write, opened, steps, checksum_of(payload), fails=fails, first=True)

    def _advance(
        self,
        write: WriteChunk,
        opened: OpenedPlane,
        steps: Iterator[Callable[[], None]],
        checksum: int,
        *,
        fails: bool,
        first: bool,
    ) -> None:
        def go_on() -> None:
            if fails and not first:
                self._fail(write, opened, steps, checksum)
                return
            step = next(steps, None)
            if step is None:
                self._finish(write, checksum, None)
                return
            self._count_torn(write, opened, first=first)
            step()
            if first and self._world.tears(self._process):
                self._world.results["torn_writes"] += 1
            self._advance(write, opened, steps, checksum, fails=fails, first=False)

        if opened.plane == "nixl":
            # The network card needs no process.
            self._world.events.after(self._world.write_duration(), go_on)
        else:
            self._process.after(self._world.write_duration(), go_on)

    def _finish(self, write: WriteChunk, checksum: int, failure: str | None) -> None:
        def report() -> None:
            del self.running[write.write_id]
            self._end(write, checksum, failure)

        self._process.deliver(report, self._life)

    def _fail(self, write: WriteChunk, opened: OpenedPlane, steps: Iterator[Callable[[], None]], checksum: int) -> None:
        """A failed write is over, except on a one-sided plane: there its bytes may come at any time."""
        self._world.faults["writes_failed"] += 1
        if opened.plane == "nixl" and self._world.options.faults.late_landings:
            for step in steps:
                self._world.results["late_landings"] += 1
                self._world.events.after(LANDS_WITHIN_S * self._world.random.random(), step)
        self._finish(write, checksum, "the write ended in error")

    def _count_torn(self, write: WriteChunk, opened: OpenedPlane, *, first: bool) -> None:
        """A write goes on: note it if its session or its region is not what it was."""
        decode = self._world.decodes[write.peer]
        if first or opened.plane != "shm" or not decode.alive:
            return
        if opened.memory is not decode.memory:
            self._world.results["torn_into_old_region"] += opened.memory.key.startswith(f"{decode.name}.{decode.life}.")
        elif decode.handler.state.sessions.current(write.session) is None:
            self._world.results["torn_into_pinned_grant"] += 1

    def _into_ring(self, write: WriteChunk, opened: OpenedPlane, payload: bytes) -> Iterator[Callable[[], None]]:
        half = len(payload) // 2
        put = opened.memory.write_by_address if opened.plane == "nixl" else opened.memory.write
        for start, stop in ((0, half), (half, len(payload))):
            part = payload[start:stop]
            if part:
                yield partial(put, write.alloc_id, write.offset + start, part)
        if self._world.corrupts():
            yield lambda: opened.memory.flip(write.offset)

    def _over_wire(self, write: WriteChunk, payload: bytes) -> Iterator[Callable[[], None]]:
        if self._world.corrupts():
            payload = bytes([payload[0] ^ 0x5A]) + payload[1:]
        target = self._world.decodes[write.peer]
        for offset in range(0, len(payload), PIECE_BYTES):
            part = payload[offset : offset + PIECE_BYTES]
            piece = DataPiece(write.session, write.room, write.chunk, write.alloc_id, write.attempt, offset, len(part))
            frames = codec.encode_data(piece)
            yield partial(self._world.send_to_decode, self._process, target, DATA, frames, part)
