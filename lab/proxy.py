"""A TCP proxy between prefill and decode sockets that harms ZeroMQ traffic the way networks and hosts do, message by message.

prefill --- 127.0.0.2:port ---> proxy ---> 127.0.0.1:port --- decode

Because it listens on the same port numbers of another loopback address, the data connections follow the control connections
through it without a setting. What befalls a message is decided by ``weather``, which may change at any time; greetings and
commands always pass. A connection is only ever cut between two messages.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from random import Random
from types import TracebackType
from typing import Any, Self

from lab.zmtp import Kind, NotZmtpError, Part, StreamSplitter

PROXY_HOST = "127.0.0.2"
_READ_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Weather:
    """Chances, between 0 and 1, of what may befall each message; ``delay_s`` holds up its whole direction."""

    drop: float = 0.0
    duplicate: float = 0.0
    delay: float = 0.0
    delay_s: float = 0.0
    cut: float = 0.0


FAIR = Weather()


class MessageProxy:
    """Passes connections to ``listen_host:port`` on to ``target_host:port``, for each port. An async context manager."""

    def __init__(
        self, ports: Iterable[int], random: Random, listen_host: str = PROXY_HOST, target_host: str = "127.0.0.1"
    ) -> None:
        self.weather = FAIR
        self.befallen: Counter[str] = Counter()
        """``passed``, ``dropped``, ``duplicated``, ``delayed`` messages and ``cut`` connections so far."""
        self._ports = tuple(ports)
        self._random = random
        self._hosts = (listen_host, target_host)
        self._servers: list[asyncio.Server] = []
        self._links: set[asyncio.Task[None]] = set()
        self._open = asyncio.Event()
        self._open.set()

    async def __aenter__(self) -> Self:
        for port in self._ports:
            self._servers.append(await asyncio.start_server(partial(self._serve, port), self._hosts[0], port))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self._servers:
            server.close()
        await self.cut()

    async def cut(self) -> None:
        """Close every connection now, between two messages; new ones are accepted."""
        links = tuple(self._links)
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)

    def hold(self) -> None:
        """Let nothing through any more, and close nothing: what a silently broken path looks like."""
        self._open.clear()

    def release(self) -> None:
        """Let everything through that was held, and what follows."""
        self._open.set()

    async def _serve(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection until either side, or the weather, ends it."""
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        far_writer: asyncio.StreamWriter | None = None
        try:
            far_reader, far_writer = await asyncio.open_connection(self._hosts[1], port)
            await _first_ended(self._pump(reader, far_writer), self._pump(far_reader, writer))
        except (OSError, NotZmtpError):
            self.befallen["broken"] += 1
        except asyncio.CancelledError:
            self.befallen["cut"] += 1
        finally:
            self._links.discard(task)
            for end in (writer, far_writer):
                if end is not None:
                    # Not close(): that would first send what is buffered, which a broken path does not do.
                    end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        splitter = StreamSplitter()
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(_READ_BYTES):
                for part in splitter.feed(data):
                    if not await self._forward(part, writer):
                        return
                await writer.drain()

    async def _forward(self, part: Part, writer: asyncio.StreamWriter) -> bool:
        """Pass one part on, or do to it what the weather wants; false to cut the connection."""
        await self._open.wait()
        if writer.is_closing():
            return False
        weather = self.weather
        if part.kind is not Kind.MESSAGE or weather == FAIR:
            self.befallen["passed"] += part.kind is Kind.MESSAGE
            writer.write(part.data)
            return True
        if self._strikes(weather.cut, "cut"):
            return False
        if self._strikes(weather.delay, "delayed"):
            await asyncio.sleep(weather.delay_s)
        if self._strikes(weather.drop, "dropped"):
            return True
        if writer.is_closing():
            return False
        self.befallen["passed"] += 1
        writer.write(part.data * (1 + self._strikes(weather.duplicate, "duplicated")))
        return True

    def _strikes(self, chance: float, what: str) -> bool:
        strikes = self._random.random() < chance
        self.befallen[what] += strikes
        return strikes


async def _first_ended(*pumps: Coroutine[Any, Any, None]) -> None:
    """Run both directions until one ends, and end the other."""
    tasks = [asyncio.create_task(pump) for pump in pumps]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
