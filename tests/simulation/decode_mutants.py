"""Mutants of the decode side: requests, words and verdicts, ends of every kind, regions, subscriptions."""

from typing import Any

import pytest

from decode_service import completing, subscribing
from decode_service.aborting import Aborting
from decode_service.closing import Closing
from decode_service.completing import Completing
from decode_service.granting import Granting
from decode_service.grants import Grant, GrantState
from decode_service.hearing import Hearing
from decode_service.pieces import Pieces
from decode_service.replacing import Replacing
from decode_service.rooms import Room, RoomTable
from decode_service.sessions import SessionTable
from decode_service.state import DecodeState
from decode_service.subscribing import Subscribing
from decode_service.watching import Watching
from protocol.layout import expected_writers
from protocol.messages import DoneStatus, GrantStatus
from tests.simulation.mutants import Register, nothing

decode = Register()

# ---- requests -----------------------------------------------------------------------------------------------------------


@decode.without("any number of requests, one grant")
def repeated_request_grants_anew(patch: pytest.MonkeyPatch) -> None:
    """A repeat looks like a new request."""
    shipped = Granting._join

    def join(self: Granting, room: Room, session: Any, message: Any) -> None:
        chunk = room.chunks.get(message.chunk)
        if chunk is not None and chunk.grant is not None and chunk.grant.state is GrantState.OPEN:
            chunk.grant = None
        shipped(self, room, session, message)

    patch.setattr(Granting, "_join", join)


@decode.without("a scattered chunk is never granted again")
def scattered_chunk_is_granted_again(patch: pytest.MonkeyPatch) -> None:
    """A late repeat of its request finds no record of it."""

    def request_in(self: Granting, room: Room, session: Any, message: Any) -> None:
        if room.end is not None:
            self._answer(session, message, GrantStatus.ABORTED, message=room.end.message)
        elif problem := self._problem(room, session, message):
            self._answer(session, message, GrantStatus.INVALID, message=problem)
        else:
            self._join(room, session, message)

    patch.setattr(Granting, "_request_in", request_in)


@decode.without("a request that comes before its room waits for it")
def early_request_is_refused(patch: pytest.MonkeyPatch) -> None:
    """A fast prefill hears that nobody knows the room."""

    def park(self: Granting, session: Any, message: Any) -> None:
        self._answer(session, message, GrantStatus.UNKNOWN_ROOM)

    patch.setattr(Granting, "_park", park)


@decode.without("a request for a room that nobody registers is answered in bounded time")
def parked_for_ever(patch: pytest.MonkeyPatch) -> None:
    """It waits without end, and its memory with it."""
    patch.setattr(Granting, "park_expired", nothing)


@decode.without("a grant is given when the last writer has asked")
def grants_before_all_have_asked(patch: pytest.MonkeyPatch) -> None:
    """The first request takes a place for everybody."""
    shipped = Granting._join

    def join(self: Granting, room: Room, session: Any, message: Any) -> None:
        shipped(self, room, session, message)
        chunk = room.chunks.get(message.chunk)
        if chunk is None or chunk.grant is not None or not chunk.asked:
            return
        others = {part.writer: self.state.sessions.of_writer(room.group, part.writer) for part in room.writers}
        if all(other is not None for other in others.values()):
            chunk.asked = {writer: other.id for writer, other in others.items() if other is not None}
            self._grant(room, chunk)

    patch.setattr(Granting, "_join", join)


@decode.without("joining an existing request is always allowed")
def joining_counts_as_opening(patch: pytest.MonkeyPatch) -> None:
    """Two writers full of each other's chunks wait for ever."""
    shipped = Granting._join

    def join(self: Granting, room: Room, session: Any, message: Any) -> None:
        if (room.id, message.chunk) not in session.open_chunks and self._is_full(session):
            self._answer(session, message, GrantStatus.BUSY)
        else:
            shipped(self, room, session, message)

    patch.setattr(Granting, "_join", join)


@decode.without("a chunk's request names exactly its tokens, on the grid and within the room")
def any_index_is_taken(patch: pytest.MonkeyPatch) -> None:
    """The index from a frame sizes the record."""

    def tokens_of(self: Room, chunk: int) -> tuple[int, int]:
        if chunk >= len(self.scattered):
            self.scattered.extend(bytes(min(chunk, 1000) + 1 - len(self.scattered)))
        start = chunk * self.chunk_tokens
        return start, min(self.chunk_tokens, self.num_tokens - start)

    patch.setattr(Room, "tokens_of", tokens_of)


@decode.without("every pipeline stage is a writer")
def counts_writers_by_tensor_rank(patch: pytest.MonkeyPatch) -> None:
    """Stages after the first are not waited for."""

    def writers(prefill: Any, decode: Any) -> Any:
        return tuple(part for part in expected_writers(prefill, decode) if part.writer.pp_rank == 0)

    patch.setattr(subscribing, "expected_writers", writers)


@decode.without("an id that is live or was used lately is refused")
def ids_are_taken_twice(patch: pytest.MonkeyPatch) -> None:
    """The second registration replaces the first."""

    def add(self: RoomTable, room: Room) -> None:
        self._live[room.id] = room

    patch.setattr(RoomTable, "add", add)


@decode.without("a room that is over is remembered")
def no_tombstones(patch: pytest.MonkeyPatch) -> None:
    """Who asks late asks for a room that nobody knows."""

    def bury(self: RoomTable, room: Room, *_: Any) -> None:
        del self._live[room.id]

    patch.setattr(RoomTable, "bury", bury)


@decode.without("what was gathered for a room ends with it")
def arrivals_outlive_their_room(patch: pytest.MonkeyPatch) -> None:
    """A room that uses the id again finds the former one's requests."""
    kept: dict[str, Any] = {}
    bury, add = RoomTable.bury, RoomTable.add

    def remember(self: RoomTable, room: Room, *rest: Any) -> None:
        bury(self, room, *rest)

    def recall(self: RoomTable, room: Room) -> None:
        add(self, room)
        room.chunks.update(kept.pop(room.id, {}))

    shipped = Closing._bury

    def close(self: Closing, room: Room, end: Any) -> None:
        kept[room.id] = dict(room.chunks)
        shipped(self, room, end)

    patch.setattr(RoomTable, "bury", remember)
    patch.setattr(RoomTable, "add", recall)
    patch.setattr(Closing, "_bury", close)


@decode.without("the abort of a room that is not registered yet is remembered")
def early_abort_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The room waits for a prefill that has given it up."""
    patch.setattr("decode_service.parking.Parking.abort_early", nothing)


# ---- words and verdicts -------------------------------------------------------------------------------------------------


@decode.without("a chunk waits for the words of all distinct writers")
def one_word_is_enough(patch: pytest.MonkeyPatch) -> None:
    """The first writer's word scatters the chunk."""
    patch.setattr(completing, "all", any, raising=False)


@decode.without("a repeated word counts once")
def words_are_counted(patch: pytest.MonkeyPatch) -> None:
    """Two words of one writer complete a chunk of two."""

    def repeat(self: Completing, _session: Any, grant: Grant, _message: Any) -> None:
        if grant.state is GrantState.OPEN and not any(slot.copies for slot in grant.slots.values()):
            self._scatter(grant)

    patch.setattr(Completing, "_answer_repeat", repeat)


@decode.without("a word for a lower attempt is answered from the record")
def old_word_is_taken_for_new(patch: pytest.MonkeyPatch) -> None:
    """A late repeat of a rejected word is believed while the next attempt is being written."""
    shipped = Completing.chunk_ready

    def chunk_ready(self: Completing, session: Any, message: Any) -> None:
        grant = self.state.grants.get(message.alloc_id)
        slot = grant.slots.get(session.writer) if grant is not None else None
        if grant is not None and slot is not None and slot.session == session.id and message.attempt <= slot.rejected:
            if slot.ready is None:
                self._judge(grant, slot, message)
        else:
            shipped(self, session, message)

    patch.setattr(Completing, "chunk_ready", chunk_ready)


@decode.without("the old word of a fenced session proves nothing about its next attempt")
def any_word_is_proof(patch: pytest.MonkeyPatch) -> None:
    """A rejected word that comes late frees memory that is being written."""

    def ready(self: Completing, session: Any, message: Any) -> None:
        grant = self.state.grants.get(message.alloc_id)
        if grant is not None and session.writer in grant.slots:
            self.closing.prove_grant_quiet(session, grant)

    patch.setattr(Completing, "ready_from_fenced", ready)


@decode.without("a slice that arrived damaged is written again")
def damage_is_ignored(patch: pytest.MonkeyPatch) -> None:
    """The chunk counts as scattered."""

    def slices_bad(self: Completing, grant: Grant, _: Any) -> None:
        self._consumed(grant)

    patch.setattr(Completing, "_slices_bad", slices_bad)


@decode.without("after too many rewrites the room fails")
def rewrites_for_ever(patch: pytest.MonkeyPatch) -> None:
    """What is damaged each time is written until the deadline."""

    def reject_all(self: Completing, grant: Grant, words: Any, code: str) -> None:
        for writer, word in words.items():
            self._reject(grant, grant.slots[writer], word, code)

    patch.setattr(Completing, "_reject_all", reject_all)


@decode.without("a repeated word is answered again")
def verdicts_are_said_once(patch: pytest.MonkeyPatch) -> None:
    """A lost verdict is never repeated."""
    patch.setattr(Completing, "_answer_from_record", nothing)


@decode.without("a word waits until our copies into its slice have ended")
def word_overtakes_copies(patch: pytest.MonkeyPatch) -> None:
    """The slice is read while its pieces are still being copied."""
    shipped = Completing.chunk_ready

    def chunk_ready(self: Completing, session: Any, message: Any) -> None:
        grant = self.state.grants.get(message.alloc_id)
        slot = grant.slots.get(session.writer) if grant is not None else None
        if grant is not None and slot is not None and slot.session == session.id and slot.copies and slot.ready is None:
            self._judge(grant, slot, message)
        else:
            shipped(self, session, message)

    patch.setattr(Completing, "chunk_ready", chunk_ready)


@decode.without("a piece is judged before a byte of it is copied")
def pieces_are_not_judged(patch: pytest.MonkeyPatch) -> None:
    """Whatever names a live grant is copied into it."""
    patch.setattr(Pieces, "_problem", lambda *_: "")


@decode.without("a piece of another attempt is dropped")
def pieces_of_any_attempt(patch: pytest.MonkeyPatch) -> None:
    """A late piece of a rejected attempt is copied."""
    shipped = Pieces._problem

    def problem(self: Pieces, *args: Any) -> str:
        found = shipped(self, *args)
        return "" if found == "attempt" else found

    patch.setattr(Pieces, "_problem", problem)


@decode.without("a piece for a grant that is closed or complete is dropped")
def pieces_of_closed_grants(patch: pytest.MonkeyPatch) -> None:
    """A repeated piece is copied while the slice is being scattered."""
    shipped = Pieces._problem

    def problem(self: Pieces, *args: Any) -> str:
        found = shipped(self, *args)
        return "" if found in {"grant_closed", "repeated"} else found

    patch.setattr(Pieces, "_problem", problem)


@decode.without("a closed grant takes no words for the pages")
def closed_grant_is_scattered(patch: pytest.MonkeyPatch) -> None:
    """A late success of a room that failed reaches its pages."""
    shipped = Completing._judge

    def judge(self: Completing, grant: Grant, slot: Any, message: Any) -> None:
        if grant.state is GrantState.CLOSED:
            self._accept(grant, slot, message)
            if all(other.ready is not None for other in grant.slots.values()):
                self._scatter(grant)
        else:
            shipped(self, grant, slot, message)

    patch.setattr(Completing, "_judge", judge)


@decode.without("a grant that is closed is given to nobody")
def closed_grant_is_joined(patch: pytest.MonkeyPatch) -> None:
    """A writer that comes back is sent into memory that waits to be freed."""

    def answer(self: Granting, session: Any, message: Any, grant: Grant) -> None:
        grant.slots[session.writer].session = session.id
        self._answer(session, message, GrantStatus.GRANTED, grant)

    patch.setattr(Granting, "_answer_from_grant", answer)


@decode.without("a failed write taints its grant")
def failed_writes_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The decode side goes on as if nothing could land."""
    patch.setattr(Completing, "write_failed", nothing)


# ---- ends ---------------------------------------------------------------------------------------------------------------


@decode.without("a room that fails closes its grants")
def failed_room_keeps_its_grants(patch: pytest.MonkeyPatch) -> None:
    """They pin the ring for ever."""
    shipped = Closing.close_grant

    def close(self: Closing, grant: Grant, reason: str) -> None:
        if not reason.startswith("room failed"):
            shipped(self, grant, reason)

    patch.setattr(Closing, "close_grant", close)


@decode.without("failed is final")
def late_success_wins(patch: pytest.MonkeyPatch) -> None:
    """The last chunk of a failed room makes it done."""

    def settle(self: Closing, room: Room) -> None:
        if room.end is None or room.copies or self.state.rooms.live(room.id) is not room:
            return
        shipped_settle(self, room)

    shipped_settle = Closing._settle_room
    shipped = Completing.scatter_finished

    def finished(self: Completing, alloc_id: int, bad: Any) -> None:
        grant = self.state.running_grant(alloc_id)
        assert grant is not None
        end, grant.room.end = grant.room.end, None
        shipped(self, alloc_id, bad)
        if end is not None and self.state.rooms.live(grant.room.id) is grant.room:
            grant.room.end = end
            shipped_settle(self.closing, grant.room)

    patch.setattr(Completing, "scatter_finished", finished)
    patch.setattr(Closing, "_settle_room", settle)


@decode.without("no room ends while a copy of ours runs in it")
def engine_hears_too_early(patch: pytest.MonkeyPatch) -> None:
    """Pages are given back while they are being written."""
    shipped = Closing.fail_room

    def fail(self: Closing, room: Room, code: str, message: str) -> None:
        copies, room.copies = room.copies, 0
        shipped(self, room, code, message)
        room.copies = copies

    patch.setattr(Closing, "fail_room", fail)


@decode.without("an abort is repeated until it is acknowledged")
def abort_is_said_once(patch: pytest.MonkeyPatch) -> None:
    """A lost abort leaves the grant without proof."""
    patch.setattr(Aborting, "retry", nothing)


@decode.without("the writers of a failed room are told")
def failure_is_kept_quiet(patch: pytest.MonkeyPatch) -> None:
    """No abort is sent at all."""
    patch.setattr(Aborting, "begin", nothing)


@decode.without("a lease is never proof")
def lease_is_proof(patch: pytest.MonkeyPatch) -> None:
    """A session that was silent for too long is taken for quiet."""
    shipped = Closing.end_session

    def end(self: Closing, session: Any, reason: str, **kwargs: bool) -> None:
        kwargs["quiet"] = kwargs["quiet"] or reason.startswith("silent")
        shipped(self, session, reason, **kwargs)

    patch.setattr(Closing, "end_session", end)


@decode.without("a newer life says nothing about the writes of the former one")
def new_life_is_proof(patch: pytest.MonkeyPatch) -> None:
    """Who comes back is taken for quiet in its former life."""
    shipped = Closing.end_session

    def end(self: Closing, session: Any, reason: str, **kwargs: bool) -> None:
        kwargs["quiet"] = kwargs["quiet"] or reason.startswith("a newer life")
        shipped(self, session, reason, **kwargs)

    patch.setattr(Closing, "end_session", end)


@decode.without("a changed offer says nothing about writes that run")
def new_offer_is_proof(patch: pytest.MonkeyPatch) -> None:
    """Who negotiates anew is taken for quiet."""
    shipped = Closing.end_session

    def end(self: Closing, session: Any, reason: str, **kwargs: bool) -> None:
        kwargs["quiet"] = kwargs["quiet"] or reason.startswith("it negotiates")
        shipped(self, session, reason, **kwargs)

    patch.setattr(Closing, "end_session", end)


@decode.without("a session that is silent for too long is fenced")
def silence_is_endured(patch: pytest.MonkeyPatch) -> None:
    """A dead prefill keeps its grants."""
    patch.setattr(Watching, "_check_lease", nothing)


@decode.without("a fenced session gives proof")
def proof_of_the_fenced_is_refused(patch: pytest.MonkeyPatch) -> None:
    """Only a new region helps."""
    patch.setattr(Hearing, "_take_proof", nothing)


@decode.without("the kernel is asked for the death of a silent writer")
def kernel_is_not_asked(patch: pytest.MonkeyPatch) -> None:
    """Nobody looks at the locks."""
    patch.setattr(Closing, "probe_process", nothing)


@decode.without("a prefill's rooms end with its life")
def rooms_outlive_their_prefill(patch: pytest.MonkeyPatch) -> None:
    """Their source pages are gone and nobody says so."""
    patch.setattr(Closing, "fail_rooms_of_life", nothing)
    patch.setattr(Closing, "fail_rooms_of_other_lives", nothing)


@decode.without("a room fails when its time is over")
def no_deadline(patch: pytest.MonkeyPatch) -> None:
    """It waits for ever for what never comes."""
    patch.setattr(Watching, "_check_room", nothing)


@decode.without("a room's clock stands still while none of its grants may be written")
def clock_counts_queueing(patch: pytest.MonkeyPatch) -> None:
    """Rooms fail for standing in a queue."""

    def set_clock(self: Room, now: float) -> None:
        self.clock.run(self.started, now)

    patch.setattr(Room, "set_clock", set_clock)


# ---- regions ------------------------------------------------------------------------------------------------------------


@decode.without("what stays pinned without proof costs the region")
def pinned_for_ever(patch: pytest.MonkeyPatch) -> None:
    """Quarantine never ends."""
    patch.setattr(Replacing, "quarantine_over", nothing)


@decode.without("what hangs on proof that cannot come fails, if there is no other memory")
def waits_for_memory_in_silence(patch: pytest.MonkeyPatch) -> None:
    """Its rooms wait for their last deadline."""

    def wait(self: Replacing, reason: str) -> None:
        self.state.stuck_reason = reason
        for grant in self.state.grants:
            if grant.state is GrantState.CLOSED:
                self.closing.watch_quarantine(grant)

    patch.setattr(Replacing, "_wait_for_proof", wait)


@decode.without("a scatter that has begun ends as consumed, also across a new region")
def scatter_dies_with_the_region(patch: pytest.MonkeyPatch) -> None:
    """Its chunk is granted again while it runs."""

    def leave(self: Replacing, epoch: int) -> None:
        for grant in self.state.grants:
            grant.retired_epoch = epoch
            self.state.retired_grants[grant.alloc_id] = grant
            self.closing._detach(grant)

    patch.setattr(Replacing, "_leave_grants", leave)


@decode.without("every session subscribes again when the region is replaced")
def sessions_survive_the_region(patch: pytest.MonkeyPatch) -> None:
    """They go on writing into the former one."""
    patch.setattr(Replacing, "_leave_sessions", nothing)


@decode.without("former regions are kept while a copy of ours runs in them or a writer can reach them")
def former_region_is_given_back(patch: pytest.MonkeyPatch) -> None:
    """Memory goes back to the host while it is in use."""
    patch.setattr(DecodeState, "has_retired_grants", lambda *_: False)
    patch.setattr(Replacing, "_is_reachable", lambda *_: False)


@decode.without("former regions are bounded")
def regions_without_end(patch: pytest.MonkeyPatch) -> None:
    """Each death costs a ring."""
    shipped = Replacing.quarantine_over

    def over(self: Replacing, alloc_id: int) -> None:
        retired, self._retired = self._retired, set()
        shipped(self, alloc_id)
        self._retired = retired

    patch.setattr(Replacing, "quarantine_over", over)


# ---- subscriptions ------------------------------------------------------------------------------------------------------


@decode.without("a newer life gets a session of its own")
def new_life_gets_the_old_session(patch: pytest.MonkeyPatch) -> None:
    """The same prefill is always the same session."""
    patch.setattr(Subscribing, "_supersede", nothing)


@decode.without("an older life is turned away")
def old_life_is_taken_back(patch: pytest.MonkeyPatch) -> None:
    """A process that was replaced takes its place again."""
    patch.setattr(SessionTable, "newest_life", lambda *_: 0)


@decode.without("a changed offer ends the session")
def offer_cannot_change(patch: pytest.MonkeyPatch) -> None:
    """A plane that does not open is offered again and again."""
    patch.setattr(Subscribing, "_same_offer", lambda *_: True)


@decode.without("what a life says has stopped is proof")
def stopped_is_ignored(patch: pytest.MonkeyPatch) -> None:
    """A lost session is given back to who gave it up."""
    patch.setattr(Subscribing, "_take_stopped", nothing)


@decode.without("only a life's own word says that it has stopped")
def anybody_stops_anybody(patch: pytest.MonkeyPatch) -> None:
    """A subscription that is late, or of another life, frees memory that is being written."""

    def take(self: Subscribing, message: Any) -> None:
        for session in self.state.sessions.all():
            if session.request.prefill_id == message.prefill_id and session.incarnation != message.incarnation:
                self.closing.prove_quiet(session)

    patch.setattr(Subscribing, "_take_stopped", take)


@decode.without("answers go to where a session was heard last")
def route_is_kept(patch: pytest.MonkeyPatch) -> None:
    """After a reconnect nobody is reached any more."""

    def heard(self: DecodeState, session: Any, _route: bytes) -> None:
        session.last_received = self.now
        self.fanout.heard_from(session.id)

    patch.setattr(DecodeState, "heard_from", heard)


@decode.without("whoever speaks in a session that is over is told so")
def strangers_are_ignored(patch: pytest.MonkeyPatch) -> None:
    """A prefill that missed the end of its session hears of it when its lease lapses."""
    patch.setattr(Hearing, "_hear_stranger", nothing)


@decode.without("a fenced session may do nothing")
def fenced_sessions_are_obeyed(patch: pytest.MonkeyPatch) -> None:
    """Its requests are answered like anybody's."""
    patch.setattr(SessionTable, "current", SessionTable.get)


@decode.without("a verdict is about what was announced")
def accepted_words_are_rejected(patch: pytest.MonkeyPatch) -> None:
    """A repeat of an accepted word is judged anew, and not in its favour."""

    def repeat(self: Completing, session: Any, _grant: Grant, message: Any) -> None:
        self._answer(session, message, DoneStatus.REJECTED, "size")

    patch.setattr(Completing, "_answer_repeat", repeat)
