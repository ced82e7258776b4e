"""The prefill side as an engine sees it: hand over tokens as they are computed, say when there are no more, wait for the end.

The same commands go to a daemon over its unix socket (``PrefillEngineClient``) or to a ``PrefillStagingClient`` in the engine's
own process (``client.engine``). Every answer is a future; every refusal is an ``EngineError``.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from protocol.layout import PageRun
from runtime.engine_client import EngineClient
from runtime.engine_futures import then
from runtime.foreign_pool import ForeignPool
from runtime.pool import KvPool
from runtime.pool_descriptor import PoolDescriptor
from runtime.room_waiters import RoomOutcome

Call = Callable[..., "Future[dict[str, Any]]"]


class PrefillEngine:
    """Commands to one prefill daemon. Any thread; nothing blocks."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def ping(self) -> "Future[dict[str, Any]]":
        """Which daemon this is: service, version, process, ranks, and which of them have their pool."""
        return self._call("ping")

    def register_pool(
        self, rank: int, pool: PoolDescriptor, group: str | None = None, prefill_id: str | None = None
    ) -> "Future[dict[str, Any]]":
        """Serve this pool at that rank; ``group`` and ``prefill_id`` replace what the daemon's settings say."""
        return self._call("register_pool", rank=rank, pool=pool.to_map(), group=group, prefill_id=prefill_id)

    def submit_chunk(
        self,
        room: str,
        rank: int,
        decode: Sequence[str],
        token_start: int,
        num_tokens: int,
        source: PageRun,
        traceparent: str | None = None,
    ) -> "Future[dict[str, Any]]":
        """Room tokens ``[token_start, + num_tokens)`` are computed; ``source`` lists the pages of the whole room so far.

        ``decode`` are the control endpoints of the room's decode ranks. The pages belong to the daemon until ``wait_room`` says
        that the room has ended.
        """
        body = {"room": room, "rank": rank, "decode": list(decode), "token_start": token_start, "num_tokens": num_tokens}
        pages = {"pages": list(source.pages), "first_token": source.first_token}
        return self._call("submit_chunk", **body, **pages, traceparent=traceparent)

    def finish_room(self, room: str, rank: int) -> "Future[dict[str, Any]]":
        """No more tokens will come; the last chunk may be short."""
        return self._call("finish_room", room=room, rank=rank)

    def wait_room(self, room: str, rank: int, timeout_s: float | None = None) -> "Future[RoomOutcome]":
        """How the room ended, once it has. After ``timeout_s`` the refusal ``timeout``; the room lives on."""
        return then(self._call("wait_room", room=room, rank=rank, timeout_s=timeout_s), RoomOutcome.from_body)

    def abort_room(self, room: str, rank: int, reason: str = "") -> "Future[dict[str, Any]]":
        """Give a live room up. Its pages are free once ``wait_room`` says that it has failed."""
        return self._call("abort_room", room=room, rank=rank, reason=reason)

    def add_peer(self, rank: int, endpoint: str, decode_rank: int | None = None) -> "Future[dict[str, Any]]":
        """Keep a session with the decode rank at ``endpoint`` before any room names it."""
        return self._call("add_peer", rank=rank, endpoint=endpoint, decode_rank=decode_rank)

    def remove_peer(self, rank: int, endpoint: str) -> "Future[dict[str, Any]]":
        """Leave the decode rank at ``endpoint``; rooms that go there fail."""
        return self._call("remove_peer", rank=rank, endpoint=endpoint)

    def inspect(self, rank: int | None = None) -> "Future[dict[str, Any]]":
        """Peers, rooms and writes of every rank or of one, as plain values under ``ranks``."""
        return self._call("inspect", rank=rank)

    def explain(self, room: str | None = None, chunk: int | None = None, rank: int | None = None) -> "Future[dict[str, Any]]":
        """Why chunks do not move, under ``explanations``: of a room, or without one whatever holds up this side."""
        return self._call("explain", room=room, chunk=chunk, rank=rank)


class PrefillEngineClient(PrefillEngine):
    """Commands to a daemon over its unix socket. Close it."""

    def __init__(self, path: Path | str) -> None:
        self._client = EngineClient(path)
        super().__init__(self._client.call)

    def close(self) -> None:
        """End the connection; open futures fail."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class EmbeddedPrefillEngine(PrefillEngine):
    """Commands to a client in this process, which may also take a pool over memory that nobody else can open."""

    def attach_pool(
        self, rank: int, pool: KvPool, group: str | None = None, prefill_id: str | None = None
    ) -> "Future[dict[str, Any]]":
        """Serve this very pool at that rank. The client closes it when it stops.

        Raises ``PoolError`` at once for a pool that brings its own copies, but no gather.
        """
        if isinstance(pool, ForeignPool):
            _ = pool.gather
        return self._call("register_pool", rank=rank, pool=pool, group=group, prefill_id=prefill_id)
