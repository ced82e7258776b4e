"""The unix socket on which an engine commands its daemon: many requests in flight, answers whenever they are ready.

Whoever may open the socket commands the daemon, so its directory is private (0700) and so is the socket (0600). A lock file
beside it tells a daemon that lives from a socket file that a killed one left behind.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from runtime.endpoint import Context, RouterEndpoint, SendOutcome, Socket, SocketLimits
from runtime.engine_protocol import MAX_ENGINE_MESSAGE_BYTES, Body, EngineError, pack, unpack
from runtime.errors import StartError
from runtime.locks import FileLock
from runtime.logs import logger
from runtime.rate_limit import RateLimit
from runtime.runtime_directory import MAX_UNIX_PATH_BYTES, prepare_runtime_dir

Execute = Callable[[str, Body], "Future[Body]"]
"""Carries out one command on the loop's thread. The future may complete at once or much later, always on that thread."""


class EngineEndpoint:
    """Serves one socket. ``read`` belongs into the loop of the thread that made it."""

    def __init__(self, context: Context, path: Path, max_in_flight: int, execute: Execute) -> None:
        self.path = path
        self._max_in_flight = max_in_flight
        self._execute = execute
        self._in_flight = 0
        self._log = logger(engine_socket=str(path))
        self._limit = RateLimit()
        self._lock = _lock_path(path)
        try:
            limits = SocketLimits(max_in_flight + 1000, max_in_flight + 1000, MAX_ENGINE_MESSAGE_BYTES)
            self._router = RouterEndpoint(context, f"ipc://{path}", limits)
        except StartError:
            self._lock.close()
            raise
        path.chmod(0o600)

    @property
    def socket(self) -> Socket:
        """What the loop polls."""
        return self._router.socket

    @property
    def in_flight(self) -> int:
        """Requests that have not been answered yet."""
        return self._in_flight

    def read(self, limit: int) -> bool:
        """Take at most ``limit`` requests; true if more may be waiting."""
        for _ in range(limit):
            message = self._router.receive()
            if message is None:
                return False
            route, frames = message
            self._serve(route, frames)
        return True

    def close(self, linger_ms: int = 0) -> None:
        """Close the socket and remove its file; answers still owed are never sent."""
        self._router.close(linger_ms)
        self.path.unlink(missing_ok=True)
        self._lock.close()

    def _serve(self, route: bytes, frames: list[bytes]) -> None:
        request: dict[str, Any] = {}
        try:
            request = _read_request(frames)
            self._start(route, request)
        except EngineError as error:
            self._answer(route, request.get("id"), error.to_body())

    def _start(self, route: bytes, request: Body) -> None:
        if self._in_flight >= self._max_in_flight:
            raise EngineError("busy", f"{self._in_flight} requests are in flight; wait for one", None, self._max_in_flight)
        self._in_flight += 1
        body = {key: value for key, value in request.items() if key not in {"id", "op"}}
        future = self._execute(request["op"], body)
        future.add_done_callback(lambda done: self._finish(route, request.get("id"), done))

    def _finish(self, route: bytes, request_id: object, done: "Future[Body]") -> None:
        self._in_flight -= 1
        error = done.exception()
        if error is None:
            self._answer(route, request_id, {"ok": True, **done.result()})
        elif isinstance(error, EngineError):
            self._answer(route, request_id, error.to_body())
        else:
            # A fault of ours: the loop lives on, the engine hears of it, and the log has the trace.
            self._log.error("engine_command_failed", exc_info=error)
            self._answer(route, request_id, EngineError("internal", f"{type(error).__name__}: {error}").to_body())

    def _answer(self, route: bytes, request_id: object, body: Body) -> None:
        if self._router.socket.closed:
            return
        outcome = self._router.send(route, [pack({"id": request_id, **body})])
        if outcome is SendOutcome.SENT:
            return
        suppressed = self._limit.admit((route, outcome), time.monotonic())
        if suppressed is not None:
            self._log.warning("engine_answer_dropped", reason=outcome.value, suppressed=suppressed)


def _read_request(frames: list[bytes]) -> dict[str, Any]:
    if len(frames) != 1:
        raise EngineError("malformed", f"expected one frame, not {len(frames)}")
    request = unpack(frames[0])
    if not isinstance(request.get("op"), str):
        raise EngineError("malformed", "op: expected the name of a command", "op")
    return request


def _lock_path(path: Path) -> FileLock:
    wanted = f"listen on {path}"
    length = len(bytes(path))
    if length > MAX_UNIX_PATH_BYTES:
        limit = f"a unix socket path has at most {MAX_UNIX_PATH_BYTES} bytes, this one has {length}"
        raise StartError(wanted, limit, "choose a shorter runtime directory or id")
    prepare_runtime_dir(path.parent)
    try:
        lock = FileLock.take(path.with_name(f"{path.name}.lock"))
    except OSError as error:
        raise StartError(wanted, error.strerror or str(error), "choose another runtime directory") from error
    if lock is None:
        raise StartError(wanted, "a daemon with this id is running", "stop it, or choose another id or runtime directory")
    return lock
