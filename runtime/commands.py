"""The one way in which an engine commands a daemon, whether it sits at the unix socket or in the same process."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from threading import Lock
from typing import Any

from runtime.engine_protocol import Body, EngineError
from runtime.loop import EventLoop

Command = Callable[[Body], "Body | Future[Body]"]
"""Carries out one command on the loop's thread: its answer, or a future of it. Refuses with ``EngineError``."""


class Commands:
    """Commands by name."""

    def __init__(self, commands: Mapping[str, Command]) -> None:
        self._commands = commands

    def execute(self, op: str, body: Body) -> "Future[Body]":
        """Carry out one command. Loop thread; refusals come through the future."""
        future: Future[Body] = Future()
        try:
            answer = self._find(op)(body)
        except EngineError as error:
            future.set_exception(error)
            return future
        if isinstance(answer, Future):
            return answer
        future.set_result(answer)
        return future

    def _find(self, op: str) -> Command:
        command = self._commands.get(op)
        if command is None:
            raise EngineError("unknown_op", f"op: expected one of {', '.join(sorted(self._commands))}, got {op!r}", "op")
        return command


class InProcessCalls:
    """The same commands from any thread of the daemon's own process, bounded like those of the socket."""

    def __init__(self, loop: EventLoop, commands: Commands, max_in_flight: int) -> None:
        self._loop = loop
        self._commands = commands
        self._max_in_flight = max_in_flight
        self._guard = Lock()
        self._in_flight: set[Future[dict[str, Any]]] = set()
        self._closed = False

    def call(self, op: str, **body: Any) -> "Future[dict[str, Any]]":  # noqa: ANN401 - a command's body is open
        """Carry out one command; the future holds the answer's body, or raises ``EngineError``. Never blocks."""
        outer: Future[dict[str, Any]] = Future()
        with self._guard:
            if self._closed:
                raise EngineError("closed", "the daemon has stopped")
            if len(self._in_flight) >= self._max_in_flight:
                raise EngineError("busy", "too many requests are in flight; wait for one", None, self._max_in_flight)
            self._in_flight.add(outer)
        outer.add_done_callback(self._forget)
        self._loop.call_soon_threadsafe(partial(self._execute, op, body, outer))
        return outer

    def close(self) -> None:
        """The daemon has stopped: fail what is open."""
        with self._guard:
            self._closed = True
            open_calls = tuple(self._in_flight)
        for outer in open_calls:
            if not outer.done() and outer.set_running_or_notify_cancel():
                outer.set_exception(EngineError("closed", "the daemon stopped before it answered"))

    def _execute(self, op: str, body: Body, outer: "Future[dict[str, Any]]") -> None:
        self._commands.execute(op, body).add_done_callback(partial(self._finish, outer))

    def _finish(self, outer: "Future[dict[str, Any]]", inner: "Future[Body]") -> None:
        if outer.done() or not outer.set_running_or_notify_cancel():
            return
        error = inner.exception()
        if error is None:
            outer.set_result(dict(inner.result()))
        else:
            outer.set_exception(error)

    def _forget(self, outer: "Future[dict[str, Any]]") -> None:
        with self._guard:
            self._in_flight.discard(outer)
