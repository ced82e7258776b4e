"""The decode side as an engine sees it: expect a room, wait for its KV, give it up.

The same commands go to a daemon over its unix socket (``DecodeEngineClient``) or to a ``DecodeStagingServer`` in the engine's
own process (``server.engine``). Every answer is a future; every refusal is an ``EngineError``.
"""

from collections.abc import Callable
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


class DecodeEngine:
    """Commands to one decode daemon. Any thread; nothing blocks."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def ping(self) -> "Future[dict[str, Any]]":
        """Which daemon this is: service, version, process, ranks, and which of them have their pool."""
        return self._call("ping")

    def register_pool(self, rank: int, pool: PoolDescriptor) -> "Future[dict[str, Any]]":
        """Serve this pool at that rank; the answer names the rank's endpoint. Comes before any room."""
        return self._call("register_pool", rank=rank, pool=pool.to_map())

    def register_room(
        self,
        room: str,
        rank: int,
        group: str,
        num_tokens: int,
        destination: PageRun,
        deadline_s: float | None = None,
    ) -> "Future[dict[str, Any]]":
        """Expect ``num_tokens`` tokens from that prefill group, to be put into ``destination``.

        The pages belong to the daemon until ``wait_room`` says that the room has ended.
        """
        body = {"room": room, "rank": rank, "group": group, "num_tokens": num_tokens, "deadline_s": deadline_s}
        return self._call("register_room", **body, pages=list(destination.pages), first_token=destination.first_token)

    def wait_room(self, room: str, rank: int, timeout_s: float | None = None) -> "Future[RoomOutcome]":
        """How the room ended, once it has. After ``timeout_s`` the refusal ``timeout``; the room lives on."""
        return then(self._call("wait_room", room=room, rank=rank, timeout_s=timeout_s), RoomOutcome.from_body)

    def abort_room(self, room: str, rank: int, reason: str = "") -> "Future[dict[str, Any]]":
        """Give a live room up. Its pages are free once ``wait_room`` says that it has failed."""
        return self._call("abort_room", room=room, rank=rank, reason=reason)

    def inspect(self, rank: int | None = None) -> "Future[dict[str, Any]]":
        """Ring, grants, sessions and rooms of every rank or of one, as plain values under ``ranks``."""
        return self._call("inspect", rank=rank)

    def explain(self, room: str | None = None, chunk: int | None = None, rank: int | None = None) -> "Future[dict[str, Any]]":
        """Why chunks do not move, under ``explanations``: of a room, or without one whatever holds up this side."""
        return self._call("explain", room=room, chunk=chunk, rank=rank)

    def history(self, rank: int | None = None) -> "Future[dict[str, Any]]":
        """What became of the latest grants, under ``ranks``: each as a box in the ring's space and time."""
        return self._call("history", rank=rank)


class DecodeEngineClient(DecodeEngine):
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


class EmbeddedDecodeEngine(DecodeEngine):
    """Commands to a server in this process, which may also take a pool over memory that nobody else can open."""

    def attach_pool(self, rank: int, pool: KvPool) -> "Future[dict[str, Any]]":
        """Serve this very pool at that rank. The server closes it when it stops.

        Raises ``PoolError`` at once for a pool that brings its own copies, but no scatter.
        """
        if isinstance(pool, ForeignPool):
            _ = pool.scatter
        return self._call("register_pool", rank=rank, pool=pool)
