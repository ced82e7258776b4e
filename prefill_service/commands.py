"""What an engine may ask of a prefill daemon, and the checks each request passes first."""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING

from prefill_service.config import PrefillServiceConfig
from prefill_service.outputs import RoomDone, RoomFailed
from prefill_service.rank import PrefillRank
from prefill_service.rooms import RoomRefused, UnknownRoomError
from prefill_service.surroundings import Identity
from protocol import PROTOCOL_VERSION
from protocol.limits import MAX_DURATION_S, MAX_RANKS, MAX_ROOM_TOKENS
from runtime import engine_fields as fields
from runtime.commands import Command, Commands
from runtime.engine_pool import read_pool
from runtime.engine_protocol import Body, EngineError
from runtime.page_runs import PageRunError
from runtime.room_waiters import RoomKey, RoomOutcome, RoomWaiters

if TYPE_CHECKING:
    from collections.abc import Iterator

_TRACEPARENT_CHARACTERS = 55


@contextmanager
def _refusals() -> "Iterator[None]":
    """Turn the machine's refusals into the engine's."""
    try:
        yield
    except PageRunError as error:
        raise EngineError("invalid", f"pages: {error}", "pages") from error
    except RoomRefused as refused:
        raise EngineError(refused.code, refused.message, None, refused.limit) from refused


class PrefillCommands:
    """Commands of one daemon. Every method runs on the loop's thread."""

    def __init__(
        self,
        config: PrefillServiceConfig,
        ranks: Mapping[int, PrefillRank],
        waiters: RoomWaiters,
        clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._ranks = ranks
        self._waiters = waiters
        self._clock = clock

    def table(self, more: Mapping[str, Command]) -> Commands:
        """The commands by the names that the engine uses, and ``more`` of those who only look on."""
        return Commands(
            {
                "ping": self._ping,
                "register_pool": self._register_pool,
                "submit_chunk": self._submit_chunk,
                "finish_room": self._finish_room,
                "wait_room": self._wait_room,
                "abort_room": self._abort_room,
                "add_peer": self._add_peer,
                "remove_peer": self._remove_peer,
                "inspect": self._inspect,
                **more,
            }
        )

    def _ping(self, body: Body) -> Body:  # noqa: ARG002 - a command's signature
        pools = sorted(number for number, rank in self._ranks.items() if rank.pool is not None)
        who = {"service": "prefill", "version": PROTOCOL_VERSION, "pid": os.getpid()}
        return {**who, "ranks": sorted(self._ranks), "pools": pools}

    def _register_pool(self, body: Body) -> Body:
        rank = self._rank(body)
        identity = Identity(
            fields.optional_identifier(body, "prefill_id") or self._config.rank_id(rank.rank),
            fields.optional_identifier(body, "group") or self._config.group_of(rank.rank),
        )
        pool = read_pool(body)
        try:
            rank.register_pool(pool, identity)
        except EngineError:
            pool.close()
            raise
        return {"rank": rank.rank, "prefill_id": identity.prefill_id, "group": identity.group}

    def _submit_chunk(self, body: Body) -> Body:
        rank, room = self._rank(body), fields.identifier(body, "room")
        decode = fields.endpoints(body, "decode")
        token_start = fields.integer(body, "token_start", 0, MAX_ROOM_TOKENS)
        num_tokens = fields.integer(body, "num_tokens", 1, MAX_ROOM_TOKENS)
        traceparent = fields.optional_text(body, "traceparent", _TRACEPARENT_CHARACTERS)
        with _refusals():
            rank.submit_chunk(room, decode, token_start, num_tokens, fields.page_run(body), traceparent)
        return {}

    def _finish_room(self, body: Body) -> Body:
        with _refusals():
            self._rank(body).finish_room(fields.identifier(body, "room"))
        return {}

    def _wait_room(self, body: Body) -> "Body | Future[Body]":
        rank, room = self._rank(body), fields.identifier(body, "room")
        timeout_s = fields.optional_seconds(body, "timeout_s", MAX_DURATION_S)
        handler, _ = rank.serving()
        try:
            result = handler.room_result(room)
        except UnknownRoomError as error:
            raise EngineError("unknown_room", f"room {room!r} is not known on rank {rank.rank}", "room") from error
        if isinstance(result, RoomDone):
            return RoomOutcome(room, rank.rank, done=True).to_body()
        if isinstance(result, RoomFailed):
            return RoomOutcome(room, rank.rank, False, result.code, result.message).to_body()
        future: Future[Body] = Future()
        self._waiters.add(RoomKey(rank.rank, room), future, None if timeout_s is None else self._clock() + timeout_s)
        return future

    def _abort_room(self, body: Body) -> Body:
        with _refusals():
            self._rank(body).abort_room(fields.identifier(body, "room"), fields.reason(body) or "aborted by the engine")
        return {}

    def _add_peer(self, body: Body) -> Body:
        decode_rank = None
        if body.get("decode_rank") is not None:
            decode_rank = fields.integer(body, "decode_rank", 0, MAX_RANKS - 1)
        with _refusals():
            self._rank(body).add_peer(fields.endpoint(body.get("endpoint"), "endpoint"), decode_rank)
        return {}

    def _remove_peer(self, body: Body) -> Body:
        self._rank(body).remove_peer(fields.endpoint(body.get("endpoint"), "endpoint"))
        return {}

    def _inspect(self, body: Body) -> Body:
        chosen = [self._rank(body)] if body.get("rank") is not None else list(self._ranks.values())
        return {"ranks": [rank.snapshot() for rank in chosen]}

    def _rank(self, body: Body) -> PrefillRank:
        number = fields.rank(body)
        rank = self._ranks.get(number)
        if rank is None:
            raise EngineError("unknown_rank", f"rank: this daemon hosts {sorted(self._ranks)}, not {number}", "rank")
        return rank
