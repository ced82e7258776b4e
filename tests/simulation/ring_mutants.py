"""Mutants of the ring, the gate and the watermark's way from the one to the other."""

from dataclasses import replace
from typing import Any

import pytest

from decode_service.allocator import Allocation, Oversized, StagingAllocator
from decode_service.fanout import WatermarkFanout
from decode_service.granting import Granting
from decode_service.grants import Grant, GrantState, GrantTable
from decode_service.hearing import Hearing
from decode_service.outputs import Send
from decode_service.state import DecodeState
from decode_service.subscribing import Subscribing as DecodeSubscribing
from lab.simulator.process import Process
from prefill_service import gate
from prefill_service.gate import WatermarkGate
from prefill_service.handler import PrefillStagingHandler
from prefill_service.losing import Losing
from prefill_service.subscribing import Subscribing
from prefill_service.transfers import Transfers
from protocol.messages import Heartbeat, HeartbeatAck, StagingRsp, WatermarkUpdate
from protocol.watermark import Watermark
from tests.simulation.mutants import Register, nothing

ring = Register()


@ring.without("an empty ring starts over")
def ring_parks_its_head(patch: pytest.MonkeyPatch) -> None:
    """The head stays where the last grant ended."""
    patch.setattr(StagingAllocator, "_restart", nothing)


@ring.without("a new session is told the current watermark at once")
def no_snapshot(patch: pytest.MonkeyPatch) -> None:
    """A newcomer hears of the next change, whenever that comes."""

    def register(self: WatermarkFanout, session: str) -> bool:
        self._current[session] = None
        return True

    patch.setattr(WatermarkFanout, "register", register)


@ring.without("a repeated answer to a subscription brings the watermark again")
def no_second_snapshot(patch: pytest.MonkeyPatch) -> None:
    """Who comes back on the same address is answered early and told nothing."""

    def repeat(self: DecodeSubscribing, session: Any, route: bytes, message: Any) -> None:
        self.state.heard_from(session, route)
        self.state.send(session, replace(session.answer, attempt=message.attempt))

    patch.setattr(DecodeSubscribing, "_repeat", repeat)


@ring.without("a region as large as the ring is granted")
def whole_ring_is_oversized(patch: pytest.MonkeyPatch) -> None:
    """Off by one at the largest size."""
    shipped = StagingAllocator.assign

    def assign(self: StagingAllocator, n: int) -> Allocation | Oversized:
        return Oversized(n, self.total_size) if n >= self.total_size else shipped(self, n)

    patch.setattr(StagingAllocator, "assign", assign)


@ring.without("a region larger than the ring is refused for good")
def oversized_is_busy(patch: pytest.MonkeyPatch) -> None:
    """The writer is told to come again."""
    patch.setattr(Granting, "_refuse_oversized", nothing)


@ring.without("the watermark is the place of the oldest live grant")
def watermark_follows_the_head(patch: pytest.MonkeyPatch) -> None:
    """A free moves the watermark past grants that still live."""
    patch.setattr(StagingAllocator, "get_watermark", lambda self: Watermark(self.round, self.head))


@ring.without("a grant waits until the round before has passed its end")
def gate_forgets_the_end(patch: pytest.MonkeyPatch) -> None:
    """Only rounds are compared."""
    patch.setattr(gate, "is_watermark_ready", lambda mark, round, _end: round <= mark.round + 1)


@ring.without("a write needs a ready grant at all")
def gate_is_open(patch: pytest.MonkeyPatch) -> None:
    """Whatever is granted may be written."""
    patch.setattr(gate, "is_watermark_ready", lambda *_: True)


@ring.without("a smaller watermark changes nothing")
def gate_takes_any_watermark(patch: pytest.MonkeyPatch) -> None:
    """The latest to arrive counts, not the largest."""
    shipped = Transfers.watermark_heard

    def heard(self: Transfers, session: Any, watermark: Watermark) -> None:
        if watermark < session.gate.watermark:
            session.gate._watermark = watermark
        shipped(self, session, watermark)

    patch.setattr(Transfers, "watermark_heard", heard)


@ring.without("a chunk that must wait never holds up one that need not")
def gate_is_a_queue(patch: pytest.MonkeyPatch) -> None:
    """What comes after a held grant is held, too."""
    shipped = WatermarkGate.admit

    def admit(self: WatermarkGate[Any], key: Any, round: int, end: int) -> bool:
        return shipped(self, key, round, end) if not len(self) else shipped(self, key, round + 1, end)

    patch.setattr(WatermarkGate, "admit", admit)


@ring.without("a watermark of another session is dropped")
def foreign_watermarks_count(patch: pytest.MonkeyPatch) -> None:
    """What a former epoch says opens gates of this one."""
    shipped = PrefillStagingHandler._hear_in_session

    def hear(self: PrefillStagingHandler, peer: Any, message: Any) -> None:
        if isinstance(message, WatermarkUpdate) and peer.session is not None:
            self._transfers.watermark_heard(peer.session, message.watermark)
        else:
            shipped(self, peer, message)

    patch.setattr(PrefillStagingHandler, "_hear_in_session", hear)


@ring.without("a stored watermark dies with its session")
def watermark_outlives_its_session(patch: pytest.MonkeyPatch) -> None:
    """The next session at that endpoint begins with it."""
    shipped = Subscribing._adopt
    stored: dict[int, Watermark] = {}

    def adopt(self: Subscribing, peer: Any, message: Any) -> None:
        shipped(self, peer, message)
        peer.session.gate._watermark = stored.get(id(peer), Watermark(0, 0))

    heard = Transfers.watermark_heard

    def watermark_heard(self: Transfers, session: Any, watermark: Watermark) -> None:
        heard(self, session, watermark)
        peer = self.state.peers[session.peer]
        stored[id(peer)] = max(stored.get(id(peer), Watermark(0, 0)), session.gate.watermark)

    patch.setattr(Subscribing, "_adopt", adopt)
    patch.setattr(Transfers, "watermark_heard", watermark_heard)


@ring.without("an answer of another session is dropped")
def foreign_answers_count(patch: pytest.MonkeyPatch) -> None:
    """A grant of a former session is written in this one."""
    shipped = PrefillStagingHandler._hear_in_session

    def hear(self: PrefillStagingHandler, peer: Any, message: Any) -> None:
        if isinstance(message, StagingRsp) and peer.is_current:
            self._transfers.answered(peer, peer.session, message)
        else:
            shipped(self, peer, message)

    patch.setattr(PrefillStagingHandler, "_hear_in_session", hear)


@ring.without("the answer to a heartbeat brings the watermark")
def heartbeat_brings_no_watermark(patch: pytest.MonkeyPatch) -> None:
    """A probe proves life and nothing else."""

    def answer(self: Hearing, session: Any, message: Heartbeat) -> None:
        self.state.send(session, HeartbeatAck(session.id, message.seq))

    patch.setattr(Hearing, "_answer_heartbeat", answer)


@ring.without("a watermark that leaves is the current one")
def watermark_is_queued(patch: pytest.MonkeyPatch) -> None:
    """Each session is sent every value in turn, so it is always one behind."""
    last: dict[str, Watermark] = {}

    def send(self: DecodeState, session_id: str) -> None:
        current = self.grants.allocator.get_watermark()
        old = last.get(session_id, current)
        last[session_id] = current
        self.fanout.sent(session_id)
        self.emit(Send(self.routes[session_id], WatermarkUpdate(old.round, old.tail, session_id)))

    patch.setattr(DecodeState, "send_watermark", send)


@ring.without("nobody is sent what belongs to a session that is over")
def dead_subscribers_stay(patch: pytest.MonkeyPatch) -> None:
    """The fan-out never forgets a session."""
    patch.setattr(WatermarkFanout, "remove", nothing)


@ring.without("a grant is freed only with proof from every writer that was told of it")
def closed_is_free(patch: pytest.MonkeyPatch) -> None:
    """A room that failed gives its memory back at once."""
    patch.setattr(Grant, "is_releasable", property(lambda self: self.state is GrantState.CLOSED and not self.has_copies))
    _free_without_asking(patch)


@ring.without("the proof of one writer says nothing about another")
def one_proof_is_enough(patch: pytest.MonkeyPatch) -> None:
    """The first writer's word frees the grant of all."""

    def releasable(self: Grant) -> bool:
        quiet = any(slot.quiet for slot in self.slots.values())
        return self.state is GrantState.CLOSED and not self.has_copies and quiet

    patch.setattr(Grant, "is_releasable", property(releasable))
    _free_without_asking(patch)


@ring.without("a grant into which a failed write may still land is never freed")
def taint_is_forgiven(patch: pytest.MonkeyPatch) -> None:
    """A later word frees a tainted grant."""

    def releasable(self: Grant) -> bool:
        return self.state is GrantState.CLOSED and not self.has_copies

    patch.setattr(Grant, "is_releasable", property(lambda self: releasable(self) if self.tainted else _shipped(self)))
    _free_without_asking(patch)


@ring.without("a process that was stopped hears its peers before it judges their silence")
def judges_before_it_listens(patch: pytest.MonkeyPatch) -> None:
    """After a pause the clock is looked at first."""
    shipped = Process._resume

    def resume(self: Process) -> None:
        if self.alive and not self.is_paused:
            self.tick()
        shipped(self)

    patch.setattr(Process, "_resume", resume)


@ring.without("a lapsed lease stops writing")
def lease_never_lapses(patch: pytest.MonkeyPatch) -> None:
    """A prefill that was cut off goes on writing."""
    patch.setattr(Losing, "lose_if_lapsed", lambda *_: False)
    patch.setattr(Losing, "lease_due", nothing)


def _shipped(grant: Grant) -> bool:
    return grant.state is GrantState.CLOSED and not grant.has_copies and all(slot.quiet for slot in grant.slots.values())


def _free_without_asking(patch: pytest.MonkeyPatch) -> None:
    """The table asserts the same proofs once more: a mutant must get past that as well."""

    def end(self: GrantTable, grant: Grant) -> None:
        grant.ended = True
        del self._by_id[grant.alloc_id]
        self._unready.pop(grant.alloc_id, None)
        self.allocator.free(grant.alloc_id)

    patch.setattr(GrantTable, "end", end)
