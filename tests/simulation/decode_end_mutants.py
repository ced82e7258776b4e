"""Decode ranks that lack one rule about how rooms, grants and sessions end."""

from typing import Any

import pytest

from decode_service.aborting import Aborting
from decode_service.closing import Closing
from decode_service.completing import Completing
from decode_service.grants import Grant
from decode_service.hearing import Hearing
from decode_service.rooms import Room
from decode_service.watching import Watching
from tests.simulation.mutants import Register, nothing

ends = Register()


@ends.without("a room that fails closes its grants")
def failed_room_keeps_its_grants(patch: pytest.MonkeyPatch) -> None:
    """They pin the ring for ever."""
    shipped = Closing.close_grant

    def close(self: Closing, grant: Grant, reason: str) -> None:
        if not reason.startswith("room failed"):
            shipped(self, grant, reason)

    patch.setattr(Closing, "close_grant", close)


@ends.without("failed is final")
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


@ends.without("no room ends while a copy of ours runs in it")
def engine_hears_too_early(patch: pytest.MonkeyPatch) -> None:
    """Pages are given back while they are being written."""
    shipped = Closing.fail_room

    def fail(self: Closing, room: Room, code: str, message: str) -> None:
        copies, room.copies = room.copies, 0
        shipped(self, room, code, message)
        room.copies = copies

    patch.setattr(Closing, "fail_room", fail)


@ends.without("an abort is repeated until it is acknowledged")
def abort_is_said_once(patch: pytest.MonkeyPatch) -> None:
    """A lost abort leaves the grant without proof."""
    patch.setattr(Aborting, "retry", nothing)


@ends.without("the writers of a failed room are told")
def failure_is_kept_quiet(patch: pytest.MonkeyPatch) -> None:
    """No abort is sent at all."""
    patch.setattr(Aborting, "begin", nothing)


@ends.without("a lease is never proof")
def lease_is_proof(patch: pytest.MonkeyPatch) -> None:
    """A session that was silent for too long is taken for quiet."""
    shipped = Closing.end_session

    def end(self: Closing, session: Any, reason: str, **kwargs: bool) -> None:
        kwargs["quiet"] = kwargs["quiet"] or reason.startswith("silent")
        shipped(self, session, reason, **kwargs)

    patch.setattr(Closing, "end_session", end)


@ends.without("a newer life says nothing about the writes of the former one")
def new_life_is_proof(patch: pytest.MonkeyPatch) -> None:
    """Who comes back is taken for quiet in its former life."""
    shipped = Closing.end_session

    def end(self: Closing, session: Any, reason: str, **kwargs: bool) -> None:
        kwargs["quiet"] = kwargs["quiet"] or reason.startswith("a newer life")
        shipped(self, session, reason, **kwargs)

    patch.setattr(Closing, "end_session", end)


@ends.without("a changed offer says nothing about writes that run")
def new_offer_is_proof(patch: pytest.MonkeyPatch) -> None:
    """Who negotiates anew is taken for quiet."""
    shipped = Closing.end_session

    def end(self: Closing, session: Any, reason: str, **kwargs: bool) -> None:
        kwargs["quiet"] = kwargs["quiet"] or reason.startswith("it negotiates")
        shipped(self, session, reason, **kwargs)

    patch.setattr(Closing, "end_session", end)


@ends.without("a session that is silent for too long is fenced")
def silence_is_endured(patch: pytest.MonkeyPatch) -> None:
    """A dead prefill keeps its grants."""
    patch.setattr(Watching, "_check_lease", nothing)


@ends.without("a fenced session gives proof")
def proof_of_the_fenced_is_refused(patch: pytest.MonkeyPatch) -> None:
    """Only a new region helps."""
    patch.setattr(Hearing, "_take_proof", nothing)


@ends.without("the kernel is asked for the death of a silent writer")
def kernel_is_not_asked(patch: pytest.MonkeyPatch) -> None:
    """Nobody looks at the locks."""
    patch.setattr(Closing, "probe_process", nothing)


@ends.without("a prefill's rooms end with its life")
def rooms_outlive_their_prefill(patch: pytest.MonkeyPatch) -> None:
    """Their source pages are gone and nobody says so."""
    patch.setattr(Closing, "fail_rooms_of_life", nothing)
    patch.setattr(Closing, "fail_rooms_of_other_lives", nothing)


@ends.without("a room fails when its time is over")
def no_deadline(patch: pytest.MonkeyPatch) -> None:
    """It waits for ever for what never comes."""
    patch.setattr(Watching, "_check_room", nothing)


@ends.without("a room's clock stands still while none of its grants may be written")
def clock_counts_queueing(patch: pytest.MonkeyPatch) -> None:
    """Rooms fail for standing in a queue."""

    def set_clock(self: Room, now: float) -> None:
        self.clock.run(self.started, now)

    patch.setattr(Room, "set_clock", set_clock)
