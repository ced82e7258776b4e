"""Waiting for a room on every rank of an engine."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from runtime.engine_protocol import EngineError
from runtime.room_waiters import RoomOutcome

WaitRoom = Callable[[str, int], "Future[RoomOutcome]"]
AbortRoom = Callable[[str, int, str], "Future[dict[str, Any]]"]


async def all_done(room: str, side: str, ranks: Sequence[int], wait: WaitRoom) -> None:
    """Return once the room is done on every rank. Raises ``EngineError`` with the first rank's reason why it is not."""
    for outcome in await asyncio.gather(*(asyncio.wrap_future(wait(room, rank)) for rank in ranks)):
        if not outcome.done:
            raise EngineError(outcome.code, f"{side} {outcome.rank}: {outcome.message}")


async def all_ended(room: str, ranks: Iterable[int], abort: AbortRoom, wait: WaitRoom, reason: str) -> None:
    """Give the room up and return once it has ended everywhere. Ranks that do not know it have nothing to end."""

    async def end(rank: int) -> None:
        with contextlib.suppress(EngineError):
            await asyncio.wrap_future(abort(room, rank, reason))
        with contextlib.suppress(EngineError):
            await asyncio.wrap_future(wait(room, rank))

    await asyncio.gather(*(end(rank) for rank in ranks))
