"""Decode ranks that lack one rule about words, pieces and verdicts."""

from typing import Any

import pytest

from decode_service import completing
from decode_service.completing import Completing
from decode_service.granting import Granting
from decode_service.grants import Grant, GrantState
from decode_service.pieces import Pieces
from protocol.messages import GrantStatus
from tests.simulation.mutants import Register, nothing

words = Register()


@words.without("a chunk waits for the words of all distinct writers")
def one_word_is_enough(patch: pytest.MonkeyPatch) -> None:
    """The first writer's word scatters the chunk."""
    patch.setattr(completing, "all", any, raising=False)


@words.without("a repeated word counts once")
def words_are_counted(patch: pytest.MonkeyPatch) -> None:
    """Two words of one writer complete a chunk of two."""

    def repeat(self: Completing, _session: Any, grant: Grant, _message: Any) -> None:
        if grant.state is GrantState.OPEN and not any(slot.copies for slot in grant.slots.values()):
            self._scatter(grant)

    patch.setattr(Completing, "_answer_repeat", repeat)


@words.without("a word for a lower attempt is answered from the record")
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


@words.without("the old word of a fenced session proves nothing about its next attempt")
def any_word_is_proof(patch: pytest.MonkeyPatch) -> None:
    """A rejected word that comes late frees memory that is being written."""

    def ready(self: Completing, session: Any, message: Any) -> None:
        grant = self.state.grants.get(message.alloc_id)
        if grant is not None and session.writer in grant.slots:
            self.closing.prove_grant_quiet(session, grant)

    patch.setattr(Completing, "ready_from_fenced", ready)


@words.without("a slice that arrived damaged is written again")
def damage_is_ignored(patch: pytest.MonkeyPatch) -> None:
    """The chunk counts as scattered."""

    def slices_bad(self: Completing, grant: Grant, _: Any) -> None:
        self._consumed(grant)

    patch.setattr(Completing, "_slices_bad", slices_bad)


@words.without("after too many rewrites the room fails")
def rewrites_for_ever(patch: pytest.MonkeyPatch) -> None:
    """What is damaged each time is written until the deadline."""

    def reject_all(self: Completing, grant: Grant, words: Any, code: str) -> None:
        for writer, word in words.items():
            self._reject(grant, grant.slots[writer], word, code)

    patch.setattr(Completing, "_reject_all", reject_all)


@words.without("a repeated word is answered again")
def verdicts_are_said_once(patch: pytest.MonkeyPatch) -> None:
    """A lost verdict is never repeated."""
    patch.setattr(Completing, "_answer_from_record", nothing)


@words.without("a word waits until our copies into its slice have ended")
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


@words.without("a piece is judged before a byte of it is copied")
def pieces_are_not_judged(patch: pytest.MonkeyPatch) -> None:
    """Whatever names a live grant is copied into it."""
    patch.setattr(Pieces, "_problem", lambda *_: "")


@words.without("a piece of another attempt is dropped")
def pieces_of_any_attempt(patch: pytest.MonkeyPatch) -> None:
    """A late piece of a rejected attempt is copied."""
    shipped = Pieces._problem

    def problem(self: Pieces, *args: Any) -> str:
        found = shipped(self, *args)
        return "" if found == "attempt" else found

    patch.setattr(Pieces, "_problem", problem)


@words.without("a piece for a grant that is closed or complete is dropped")
def pieces_of_closed_grants(patch: pytest.MonkeyPatch) -> None:
    """A repeated piece is copied while the slice is being scattered."""
    shipped = Pieces._problem

    def problem(self: Pieces, *args: Any) -> str:
        found = shipped(self, *args)
        return "" if found in {"grant_closed", "repeated"} else found

    patch.setattr(Pieces, "_problem", problem)


@words.without("a closed grant takes no words for the pages")
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


@words.without("a grant that is closed is given to nobody")
def closed_grant_is_joined(patch: pytest.MonkeyPatch) -> None:
    """A writer that comes back is sent into memory that waits to be freed."""

    def answer(self: Granting, session: Any, message: Any, grant: Grant) -> None:
        grant.slots[session.writer].session = session.id
        self._answer(session, message, GrantStatus.GRANTED, grant)

    patch.setattr(Granting, "_answer_from_grant", answer)


@words.without("a failed write taints its grant")
def failed_writes_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The decode side goes on as if nothing could land."""
    patch.setattr(Completing, "write_failed", nothing)
