"""A process that serves an engine's commands on a unix socket: coroutines carry them out, one thread computes.

The socket is the daemons' own engine endpoint, so whoever commands this process uses the client that it uses for the daemons.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import zmq

from runtime.commands import Commands
from runtime.endpoint import Socket
from runtime.engine_endpoint import EngineEndpoint
from runtime.engine_protocol import Body
from runtime.loop import EventLoop
from runtime.loop_thread import LoopThread

T = TypeVar("T")

MAX_IN_FLIGHT = 4096

Operation = Callable[[Body], Awaitable[dict[str, Any]]]
"""Carries out one command; refuses with ``EngineError``."""


class EngineService:
    """Serves ``operations`` at ``path`` until its process is ended. Made and run in one asyncio loop."""

    def __init__(self, path: Path, operations: Mapping[str, Operation]) -> None:
        self._asyncio = asyncio.get_running_loop()
        self._loop = EventLoop()
        self._context: zmq.Context[Socket] = zmq.Context(io_threads=1)
        commands = Commands({name: partial(self._begin, operation) for name, operation in operations.items()})
        self._endpoint = EngineEndpoint(self._context, path, MAX_IN_FLIGHT, commands.execute)
        self._loop.add_reader(self._endpoint.socket, self._endpoint.read)
        self._thread = LoopThread(self._loop, "engine-service", self._clean_up)

    def start(self) -> None:
        """Serve from now on, in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; unanswered commands stay so."""
        self._loop.stop()
        self._thread.join()

    def _begin(self, operation: Operation, body: Body) -> "Future[Body]":
        """Start the coroutine in the asyncio loop; its result comes back to the endpoint's thread."""
        answer: Future[Body] = Future()
        running = asyncio.run_coroutine_threadsafe(_run(operation, body), self._asyncio)
        running.add_done_callback(lambda done: self._loop.call_soon_threadsafe(partial(_hand_over, done, answer)))
        return answer

    def _clean_up(self) -> None:
        self._endpoint.close()
        self._context.term()
        self._loop.close()


class ComputeThread:
    """The one thread in which an engine computes, one step after the other."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compute")

    async def run(self, step: Callable[[], T]) -> T:
        """The result of ``step``, once every step before it is over."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, step)

    async def barrier(self) -> None:
        """Return once every step before this call is over."""
        await self.run(lambda: None)


async def _run(operation: Operation, body: Body) -> Body:
    return await operation(body)


def _hand_over(done: "Future[Body]", answer: "Future[Body]") -> None:
    error = done.exception()
    if error is None:
        answer.set_result(done.result())
    else:
        answer.set_exception(error)
