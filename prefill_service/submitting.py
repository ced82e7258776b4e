"""What the engine hands over: progress of a room, cut on the grid.

Progress may come in any portions. A grid chunk is offered once all its tokens exist, the last and perhaps shorter one when the
engine says that no more will come; so a chunk never crosses an edge of the grid and never exists twice. Everything is checked
before anything changes: a refused call leaves no trace.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from prefill_service.attempts import Attempts
from prefill_service.closing import Closing
from prefill_service.outputs import RoomFailed
from prefill_service.rooms import Room, RoomRefused, Target
from prefill_service.state import PrefillState
from prefill_service.transfers import Transfers
from protocol.identifiers import ID_EXPECTED, is_id
from protocol.layout import PageRun
from protocol.limits import MAX_ROOM_TOKENS


@dataclass(slots=True, eq=False)
class Submitting:
    """Takes rooms from the engine, or refuses them with a code and a reason."""

    state: PrefillState
    closing: Closing
    transfers: Transfers
    attempts: Attempts

    def submit(
        self,
        room_id: str,
        decode: Sequence[str],
        token_start: int,
        num_tokens: int,
        source: PageRun,
        traceparent: str | None,
    ) -> None:
        """Take tokens ``[token_start, + num_tokens)`` of a room. Raises ``RoomRefused``."""
        self.state.rooms.expire(self.state.now)
        room = self._continued(room_id, decode) or self._new(room_id, decode, source)
        self._check_tokens(room, token_start, num_tokens, source)
        self._check_size(room.tokens + num_tokens)
        if self.state.rooms.live(room_id) is None:
            self._admit(room)
        room.source, room.progress_at = source, self.state.now
        room.traceparent = traceparent or room.traceparent
        room.tokens += num_tokens
        room.offered = room.tokens // self.state.settings.chunk_tokens
        self.transfers.offer(room)

    def finish(self, room_id: str) -> None:
        """No more tokens will come; said twice it changes nothing. Raises ``RoomRefused`` for a failed or unknown room."""
        room = self.state.rooms.live(room_id)
        if room is None:
            self._refuse_over(room_id)
            return
        if room.failure is not None:
            raise _refusal_of(room.failure)
        if not room.finished:
            room.finished, room.progress_at = True, self.state.now
            room.offered = -(-room.tokens // self.state.settings.chunk_tokens)
            self.transfers.offer(room)

    def _refuse_over(self, room_id: str) -> None:
        result = self.state.rooms.result(room_id)
        if isinstance(result, RoomFailed):
            raise _refusal_of(result)
        if result is None:
            raise RoomRefused("unknown_room", f"room {room_id!r} is not known on this rank: submit its tokens first")

    def _continued(self, room_id: str, decode: Sequence[str]) -> Room | None:
        room, result = self.state.rooms.live(room_id), self.state.rooms.result(room_id)
        failure = room.failure if room is not None else result
        if isinstance(failure, RoomFailed):
            raise _refusal_of(failure)
        if result is not None or (room is not None and room.finished):
            raise RoomRefused(
                "room_over", f"room {room_id!r} was finished: its id can be used again later, and for another room"
            )
        if room is not None and set(decode) != set(room.targets):
            expected = ", ".join(sorted(room.targets))
            raise RoomRefused("invalid", f"decode: expected the endpoints the room began with ({expected})")
        return room

    def _new(self, room_id: str, decode: Sequence[str], source: PageRun) -> Room:
        if self.state.over is not None:
            raise RoomRefused(*self.state.over)
        if self.state.draining:
            raise RoomRefused("draining", "this prefill rank is draining and takes no new rooms")
        if not is_id(room_id):
            raise RoomRefused("invalid", f"room: expected {ID_EXPECTED}")
        if not decode or len(set(decode)) != len(decode):
            raise RoomRefused("invalid", "decode: expected at least one endpoint, each once")
        self._check_tables(decode)
        for endpoint in decode:
            self._check_peer(endpoint, room_id)
        now = self.state.now
        return Room(room_id, {peer: Target(peer) for peer in decode}, source, submitted_at=now, progress_at=now)

    def _check_tables(self, decode: Sequence[str]) -> None:
        settings, rooms = self.state.settings, self.state.rooms
        strangers = sum(endpoint not in self.state.peers for endpoint in decode)
        for what, count, limit in (
            ("live rooms", len(rooms) + 1, settings.max_rooms),
            ("rooms live or remembered", rooms.remembered + 1, settings.max_tombstones),
            ("decode endpoints", len(self.state.peers) + strangers, settings.max_peers),
        ):
            if count > limit:
                raise RoomRefused("busy", f"{what}: limit {limit} is reached, try again later", limit)

    def _check_peer(self, endpoint: str, room_id: str) -> None:
        peer = self.state.peers.get(endpoint)
        if peer is None:
            return
        if peer.leaving:
            raise RoomRefused("peer_leaving", f"{endpoint} is being left")
        if peer.refusal is not None and peer.refusal.final:
            raise RoomRefused(peer.refusal.code, f"{endpoint}: {peer.refusal.message}")
        if room_id in peer.aborts:
            raise RoomRefused("room_over", f"{endpoint} has not heard yet that the former room {room_id!r} is over")
        aborted = peer.session.aborted_rooms.get(room_id) if peer.session is not None else None
        if aborted is not None and aborted[1] > self.state.now:
            raise RoomRefused("aborted_by_decode", f"{endpoint}: {aborted[0]}")

    def _check_tokens(self, room: Room, token_start: int, num_tokens: int, source: PageRun) -> None:
        if token_start != room.tokens:
            raise RoomRefused("invalid", f"token_start: expected {room.tokens}, where the room ended, got {token_start}")
        if num_tokens < 1:
            raise RoomRefused("invalid", f"num_tokens: expected at least 1, got {num_tokens}")
        if source.first_token < 0 or any(page < 0 for page in source.pages):
            raise RoomRefused("invalid", "source: pages and first_token must not be negative")
        covered = len(source.pages) * self.state.settings.page_size - source.first_token
        if covered < token_start + num_tokens:
            needed = token_start + num_tokens
            raise RoomRefused("invalid", f"source: its pages hold {covered} tokens of the room, expected at least {needed}")

    def _check_size(self, tokens: int) -> None:
        settings = self.state.settings
        if tokens > MAX_ROOM_TOKENS:
            raise RoomRefused("too_long", f"{tokens} tokens in one room", MAX_ROOM_TOKENS)
        if -(-tokens // settings.chunk_tokens) > settings.max_chunks_per_room:
            text = f"{tokens} tokens are more than {settings.max_chunks_per_room} chunks of {settings.chunk_tokens} tokens"
            raise RoomRefused("too_long", text, settings.max_chunks_per_room)

    def _admit(self, room: Room) -> None:
        self.state.rooms.add(room)
        self.closing.watch(room)
        for endpoint in room.targets:
            if endpoint not in self.state.peers:
                self.attempts.join(endpoint)


def _refusal_of(failure: RoomFailed) -> RoomRefused:
    return RoomRefused(failure.code, failure.message)
