"""A daemon that is started again when it dies, and the engine's connection to whichever life of it is the current one.

What was asked of a former life fails with that life's connection; whoever needs the daemon next waits for ``available``. Every
wait is bounded: a life must answer its first ``ping`` in time, and a daemon that dies too often is given up.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from lab.process import DaemonDied, DaemonProcess

START_TIMEOUT_S = 30.0
MAX_RESTARTS = 5


class EngineConnection(Protocol):
    """What both engine clients have in common."""

    def ping(self) -> Future[dict[str, Any]]:
        """Resolves once the daemon answers; requests wait until it listens."""

    def close(self) -> None:
        """End the connection; every outstanding request fails."""


C = TypeVar("C", bound=EngineConnection)


@dataclass(frozen=True, slots=True)
class Life(Generic[C]):
    """One life of a daemon: which one it is, counted from 0, and the connection to it."""

    number: int
    client: C


class SupervisedDaemon(Generic[C]):
    """Runs ``process``; for each life makes a connection and has ``prepare`` register what the engine must register."""

    def __init__(
        self,
        process: DaemonProcess,
        connect: Callable[[], C],
        prepare: Callable[[C], Awaitable[None]],
        say: Callable[[str], None],
    ) -> None:
        self.process = process
        self.restarts = 0
        self._connect = connect
        self._prepare = prepare
        self._say = say
        self._life: Life[C] | None = None
        self._ready = asyncio.Event()

    async def start(self) -> None:
        """Begin the first life. Raises ``DaemonDied`` if it does not answer."""
        await self._begin()

    async def available(self) -> Life[C]:
        """The current life, as soon as there is one that answers. Needs ``supervise`` to be running."""
        while True:
            await self._ready.wait()
            if self.process.exit_status is None:
                break
            # Dead already; ``supervise`` is about to notice, and nothing more should be asked of this life.
            self._ready.clear()
        assert self._life is not None
        return self._life

    async def supervise(self) -> None:
        """Start the daemon again whenever it dies, until cancelled. Raises ``DaemonDied`` once it has died too often."""
        while True:
            await self.process.exited()
            self._end()
            self._say(self.process.epitaph())
            if self.restarts >= MAX_RESTARTS:
                raise DaemonDied(f"{self.process.name} is given up after {self.restarts} restarts")
            self.restarts += 1
            self._say(f"{self.process.name}: starting it again")
            with contextlib.suppress(DaemonDied):  # one more death, which the next turn counts
                await self._begin()

    async def stop(self) -> int:
        """Drain and end the current life; the exit status."""
        self._end()
        return await self.process.stop()

    def kill(self) -> None:
        """End the current life now."""
        self._end()
        self.process.kill()

    def _end(self) -> None:
        self._ready.clear()
        if self._life is not None:
            self._life.client.close()

    async def _begin(self) -> None:
        self.process.start()
        client = self._connect()
        self._life = Life(0 if self._life is None else self._life.number + 1, client)
        await self._until_ready(client)
        self._ready.set()

    async def _until_ready(self, client: C) -> None:
        """Whichever comes first: the daemon answers and knows its pools, it dies, or the time is over."""
        ready = asyncio.create_task(self._answer(client))
        died = asyncio.create_task(self.process.exited())
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await asyncio.wait((ready, died), return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError as error:
            self.process.kill()
            raise DaemonDied(f"no answer within {START_TIMEOUT_S:g} s: {self.process.epitaph()}") from error
        finally:
            died.cancel()
            if not ready.done():
                ready.cancel()
        if not ready.done() or ready.cancelled():
            raise DaemonDied(self.process.epitaph())
        ready.result()

    async def _answer(self, client: C) -> None:
        await asyncio.wrap_future(client.ping())
        await self._prepare(client)
