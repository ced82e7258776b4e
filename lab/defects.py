"""What the laboratory takes away from the product, or breaks in it, as subclasses: the product has no switch for any of it.

* *restart*: ``ParkedAllocator`` leaves the head where it was when the ring drains, and recomputes the watermark only when
  something is freed. A grant that fits neither behind the head nor in front of it then waits for a free that never comes.
* *snapshot*: ``SilentRegistration`` and ``SubscribingInSilence`` open a session without telling it the current watermark; it
  believes ``(0, 0)`` until the next free.
* *repair*: ``GrantingInSilence`` and ``HearingInSilence`` answer requests and heartbeats without the watermark, and
  ``NoProbes`` never asks for it. Heartbeats still renew leases. A watermark is then told once, after a free, as in the design
  that this protocol started from.
* ``CorruptingScatter`` flips one byte between the check of a slice and its way to the pages.
"""

import threading
from collections.abc import Callable
from dataclasses import fields, replace
from random import Random
from typing import Any, TypeVar

from decode_service.allocator import StagingAllocator
from decode_service.fanout import WatermarkFanout
from decode_service.granting import Granting
from decode_service.grants import Grant
from decode_service.handler import DecodeStagingHandler
from decode_service.handler_settings import DecodeHandlerSettings
from decode_service.hearing import Hearing
from decode_service.outputs import Output, Send
from decode_service.scatter import scatter
from decode_service.sessions import Session
from decode_service.subscribing import Subscribing
from prefill_service.handler import PrefillStagingHandler
from prefill_service.handler_settings import PrefillHandlerSettings
from prefill_service.heartbeats import Heartbeats
from prefill_service.sessions import Session as PrefillSession
from protocol.layout import PageRun, SlicePart, WriterSlice
from protocol.messages import GrantStatus, Heartbeat, HeartbeatAck, StagingRsp, Subscribe, WatermarkUpdate
from protocol.watermark import START, Watermark
from runtime.pool import KvPool

P = TypeVar("P")


class ParkedAllocator(StagingAllocator):
    """A ring that never restarts. Its watermark moves on frees alone and stays at the parked head when nothing is live."""

    def __init__(self, total_size: int) -> None:
        super().__init__(total_size)
        self._told = START

    def free(self, alloc_id: int) -> bool:
        """Take a region back and recompute the watermark."""
        freed = super().free(alloc_id)
        if freed:
            self._told = super().get_watermark()
        return freed

    def get_watermark(self) -> Watermark:
        """What the last free computed, which may be far behind the truth."""
        return self._told

    def _restart(self) -> None:
        """Nothing happens when the ring drains: that is the defect."""


class SilentRegistration(WatermarkFanout):
    """A fan-out that takes a new session for up to date, so that its first watermark is that of the next free."""

    def register(self, session: str) -> bool:
        """Register without owing a snapshot."""
        if session in self:
            return False
        self._current[session] = None
        return True


class SubscribingInSilence(Subscribing):
    """Repeats the answer to a repeated ``SUBSCRIBE`` without the snapshot that should follow it."""

    def _repeat(self, session: Session, route: bytes, message: Subscribe) -> None:
        self.state.routes[session.id] = route
        session.answer = replace(session.answer, attempt=message.attempt)
        self.state.send(session, session.answer)


class GrantingInSilence(Granting):
    """Answers staging requests with the watermark that everybody knows from the start."""

    def _respond(
        self, session: Session, room: str, chunk: int, status: GrantStatus, grant: Grant | None = None, message: str = ""
    ) -> None:
        part = grant.slice_of(session.writer) if grant is not None else None
        self.state.send(session, StagingRsp(session.id, room, chunk, status, START, part, message[:512]))


class HearingInSilence(Hearing):
    """Acknowledges heartbeats, which renews the lease, without the watermark that should follow."""

    def _answer_heartbeat(self, session: Session, message: Heartbeat) -> None:
        session.seen, session.blocked = message.seen, message.blocked
        self.state.send(session, HeartbeatAck(session.id, message.seq))


def rebuilt(part: Any, kind: Callable[..., P]) -> P:  # noqa: ANN401 - any dataclass
    """A part of another kind with the same fields; ``kind`` adds none to those of the part's own class."""
    return kind(**{field.name: getattr(part, field.name) for field in fields(part) if field.init})


class AlteredDecodeHandler(DecodeStagingHandler):
    """A decode machine without some of its three defences against a session that knows too little."""

    def __init__(
        self,
        settings: DecodeHandlerSettings,
        allocator: StagingAllocator,
        random: Random,
        *,
        restart: bool,
        snapshot: bool,
        repair: bool,
    ) -> None:
        super().__init__(settings, allocator if restart else ParkedAllocator(allocator.total_size), random)
        self._told: dict[str, Watermark] = {}
        if not snapshot:
            self.state.fanout = SilentRegistration(settings.watermark_retry_s, settings.retry_limit_s)
            self._subscribing = rebuilt(self._subscribing, SubscribingInSilence)
        if not repair:
            self._granting = self._watching.granting = rebuilt(self._granting, GrantingInSilence)
            self._hearing = replace(rebuilt(self._hearing, HearingInSilence), granting=self._granting)

    def snapshot(self) -> dict[str, object]:
        """As the product's, with ``told``: for each session the largest watermark that was sent in it."""
        return super().snapshot() | {"told": {session: list(watermark) for session, watermark in self._told.items()}}

    def _collect(self, budget: int = 0) -> tuple[Output, ...]:
        outputs = super()._collect(budget)
        for output in outputs:
            if isinstance(output, Send) and isinstance(output.message, WatermarkUpdate | StagingRsp):
                session, watermark = output.message.session, output.message.watermark
                self._told[session] = max(watermark, self._told.get(session, START))
        return outputs


class NoProbes(Heartbeats):
    """Heartbeats that renew the lease and never ask for a watermark."""

    def blocked(self, session: PrefillSession) -> None:
        """A grant waits at the gate, and nobody asks why."""


class PrefillWithoutRepair(PrefillStagingHandler):
    """A prefill machine that waits for its watermark and does nothing about it."""

    def __init__(self, settings: PrefillHandlerSettings, random: Random) -> None:
        super().__init__(settings, random)
        self._transfers.heartbeats = NoProbes(self.state)


class CorruptingScatter:
    """Copies like the product's scatter, but with one byte of the first slice it sees flipped.

    Where several writers send the same heads, the same byte is flipped in each of their copies: else the last one would
    repair it.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._target: tuple[PageRun, int, tuple[tuple[int, int, int, int], ...]] | None = None

    def __call__(
        self, pool: KvPool, writer: WriterSlice, destination: PageRun, token_start: int, num_tokens: int, block: memoryview
    ) -> None:
        """Copy, or corrupt and copy."""
        with self._guard:
            place = (destination, token_start, tuple(_destination(part) for part in writer.parts))
            self._target = self._target or place
            flip = place == self._target
        if flip:
            altered = bytearray(block)
            altered[len(altered) // 2] ^= 0x01
            block = memoryview(altered)
        scatter(pool, writer, destination, token_start, num_tokens, block)


def _destination(part: SlicePart) -> tuple[int, int, int, int]:
    return part.layer, part.tensor, part.destination_head, part.head_count
