"""Decode ranks that lack one rule about requests, grants and rooms."""

from typing import Any

import pytest

from decode_service import subscribing
from decode_service.closing import Closing
from decode_service.granting import Granting
from decode_service.grants import GrantState
from decode_service.rooms import Room, RoomTable
from protocol.layout import expected_writers
from protocol.messages import GrantStatus
from tests.simulation.mutants import Register, nothing

requests = Register()


@requests.without("any number of requests, one grant")
def repeated_request_grants_anew(patch: pytest.MonkeyPatch) -> None:
    """A repeat looks like a new request."""
    shipped = Granting._join

    def join(self: Granting, room: Room, session: Any, message: Any) -> None:
        chunk = room.chunks.get(message.chunk)
        if chunk is not None and chunk.grant is not None and chunk.grant.state is GrantState.OPEN:
            chunk.grant = None
        shipped(self, room, session, message)

    patch.setattr(Granting, "_join", join)


@requests.without("a scattered chunk is never granted again")
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


@requests.without("a request that comes before its room waits for it")
def early_request_is_refused(patch: pytest.MonkeyPatch) -> None:
    """A fast prefill hears that nobody knows the room."""

    def park(self: Granting, session: Any, message: Any) -> None:
        self._answer(session, message, GrantStatus.UNKNOWN_ROOM)

    patch.setattr(Granting, "_park", park)


@requests.without("a request for a room that nobody registers is answered in bounded time")
def parked_for_ever(patch: pytest.MonkeyPatch) -> None:
    """It waits without end, and its memory with it."""
    patch.setattr(Granting, "park_expired", nothing)


@requests.without("a grant is given when the last writer has asked")
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


@requests.without("joining an existing request is always allowed")
def joining_counts_as_opening(patch: pytest.MonkeyPatch) -> None:
    """Two writers full of each other's chunks wait for ever."""
    shipped = Granting._join

    def join(self: Granting, room: Room, session: Any, message: Any) -> None:
        if (room.id, message.chunk) not in session.open_chunks and self._is_full(session):
            self._answer(session, message, GrantStatus.BUSY)
        else:
            shipped(self, room, session, message)

    patch.setattr(Granting, "_join", join)


@requests.without("a chunk's request names exactly its tokens, on the grid and within the room")
def any_index_is_taken(patch: pytest.MonkeyPatch) -> None:
    """The index from a frame sizes the record."""

    def tokens_of(self: Room, chunk: int) -> tuple[int, int]:
        if chunk >= len(self.scattered):
            self.scattered.extend(bytes(min(chunk, 1000) + 1 - len(self.scattered)))
        start = chunk * self.chunk_tokens
        return start, min(self.chunk_tokens, self.num_tokens - start)

    patch.setattr(Room, "tokens_of", tokens_of)


@requests.without("every pipeline stage is a writer")
def counts_writers_by_tensor_rank(patch: pytest.MonkeyPatch) -> None:
    """Stages after the first are not waited for."""

    def writers(prefill: Any, decode: Any) -> Any:
        return tuple(part for part in expected_writers(prefill, decode) if part.writer.pp_rank == 0)

    patch.setattr(subscribing, "expected_writers", writers)


@requests.without("an id that is live or was used lately is refused")
def ids_are_taken_twice(patch: pytest.MonkeyPatch) -> None:
    """The second registration replaces the first."""

    def add(self: RoomTable, room: Room) -> None:
        self._live[room.id] = room

    patch.setattr(RoomTable, "add", add)


@requests.without("a room that is over is remembered")
def no_tombstones(patch: pytest.MonkeyPatch) -> None:
    """Who asks late asks for a room that nobody knows."""

    def bury(self: RoomTable, room: Room, *_: Any) -> None:
        del self._live[room.id]

    patch.setattr(RoomTable, "bury", bury)


@requests.without("what was gathered for a room ends with it")
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


@requests.without("the abort of a room that is not registered yet is remembered")
def early_abort_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The room waits for a prefill that has given it up."""
    patch.setattr("decode_service.parking.Parking.abort_early", nothing)
