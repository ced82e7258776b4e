"""What an engine may ask of a decode daemon, and the checks each request passes first."""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future

from decode_service.rank import DecodeRank
from decode_service.rooms import RoomRefused
from protocol import PROTOCOL_VERSION
from protocol.limits import MAX_DURATION_S, MAX_ROOM_TOKENS
from runtime import engine_fields as fields
from runtime.commands import Command, Commands
from runtime.engine_pool import read_pool
from runtime.engine_protocol import Body, EngineError
from runtime.page_runs import PageRunError
from runtime.room_waiters import RoomKey, RoomOutcome, RoomWaiters


class DecodeCommands:
    """Commands of one daemon. Every method runs on the loop's thread."""

    def __init__(self, ranks: Mapping[int, DecodeRank], waiters: RoomWaiters, clock: Callable[[], float]) -> None:
        self._ranks = ranks
        self._waiters = waiters
        self._clock = clock

    def table(self, more: Mapping[str, Command]) -> Commands:
        """The commands by the names that the engine uses, and ``more`` of those who only look on."""
        return Commands(
            {
                "ping": self._ping,
                "register_pool": self._register_pool,
                "register_room": self._register_room,
                "wait_room": self._wait_room,
                "abort_room": self._abort_room,
                "inspect": self._inspect,
                **more,
            }
        )

    def _ping(self, body: Body) -> Body:  # noqa: ARG002 - a command's signature
        pools = sorted(number for number, rank in self._ranks.items() if rank.pool is not None)
        who = {"service": "decode", "version": PROTOCOL_VERSION, "pid": os.getpid()}
        return {**who, "ranks": sorted(self._ranks), "pools": pools}

    def _register_pool(self, body: Body) -> Body:
        rank = self._rank(body)
        pool = read_pool(body)
        try:
            rank.register_pool(pool)
        except EngineError:
            pool.close()
            raise
        return {"rank": rank.rank, "endpoint": rank.control.address, "ring_bytes": rank.region.size}

    def _register_room(self, body: Body) -> Body:
        rank = self._rank(body)
        room, group = fields.identifier(body, "room"), fields.identifier(body, "group")
        num_tokens = fields.integer(body, "num_tokens", 1, MAX_ROOM_TOKENS)
        deadline_s = fields.optional_seconds(body, "deadline_s", MAX_DURATION_S)
        try:
            rank.register_room(room, group, num_tokens, fields.page_run(body), deadline_s)
        except PageRunError as error:
            raise EngineError("invalid", f"pages: {error}", "pages") from error
        except RoomRefused as refused:
            raise EngineError(refused.code, refused.message, None, refused.limit) from refused
        return {}

    def _wait_room(self, body: Body) -> "Body | Future[Body]":
        rank = self._rank(body)
        room = fields.identifier(body, "room")
        timeout_s = fields.optional_seconds(body, "timeout_s", MAX_DURATION_S)
        if rank.handler is None:
            raise EngineError("unknown_room", f"rank {rank.rank} has no pool and so no rooms", "room")
        try:
            end = rank.handler.room_end(room)
        except RoomRefused as refused:
            raise EngineError(refused.code, refused.message, "room") from refused
        if end is not None:
            return RoomOutcome(room, rank.rank, end.done, end.code, end.message).to_body()
        future: Future[Body] = Future()
        self._waiters.add(RoomKey(rank.rank, room), future, None if timeout_s is None else self._clock() + timeout_s)
        return future

    def _abort_room(self, body: Body) -> Body:
        try:
            self._rank(body).abort_room(fields.identifier(body, "room"), fields.reason(body) or "aborted by the engine")
        except RoomRefused as refused:
            raise EngineError(refused.code, refused.message, "room") from refused
        return {}

    def _inspect(self, body: Body) -> Body:
        chosen = [self._rank(body)] if body.get("rank") is not None else list(self._ranks.values())
        return {"ranks": [rank.snapshot() for rank in chosen]}

    def _rank(self, body: Body) -> DecodeRank:
        number = fields.rank(body)
        rank = self._ranks.get(number)
        if rank is None:
            raise EngineError("unknown_rank", f"rank: this daemon hosts {sorted(self._ranks)}, not {number}", "rank")
        return rank
