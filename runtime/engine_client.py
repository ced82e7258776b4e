"""An engine's side of the unix socket: commands from any thread, each answered through a future.

A daemon that is not there yet is waited for: requests queue here (boundedly) until it listens. A daemon that goes away fails
every request it had accepted, since nobody will answer them.
"""

import threading
from collections import deque
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from typing import Any, Self

import zmq

from runtime.connection import Connection
from runtime.dealer_endpoint import DealerEndpoint
from runtime.endpoint import SendOutcome, Socket, SocketLimits, open_context
from runtime.engine_protocol import MAX_ENGINE_MESSAGE_BYTES, EngineError, pack, unpack
from runtime.loop import EventLoop
from runtime.monitor import ConnectionEvent

MAX_QUEUED = 65_536
"""Requests that may wait for the daemon; one more is refused with ``busy``."""


class EngineClient:
    """A connection to one daemon, served by a thread of its own. Close it; futures still open then fail."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._context = open_context(1, 16)
        limits = SocketLimits(MAX_QUEUED, MAX_QUEUED, MAX_ENGINE_MESSAGE_BYTES)
        self._dealer = DealerEndpoint(self._context, f"ipc://{self.path}", limits, self._connect)
        self._loop = EventLoop()
        self._numbers = count(1)
        self._guard = threading.Lock()
        self._queued: deque[int] = deque()
        self._frames: dict[int, bytes] = {}
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self._closed = False
        self._loop.add_reader(self._dealer.socket, self._read)
        self._loop.add_reader(self._dealer.connection.source, self._dealer.connection.read)
        self._thread = threading.Thread(target=self._run, name="engine-client", daemon=True)
        self._thread.start()

    def call(self, op: str, **body: Any) -> "Future[dict[str, Any]]":  # noqa: ANN401 - a command's body is open
        """Send one command; the future holds the answer's body, or raises ``EngineError``. Any thread; never blocks."""
        future: Future[dict[str, Any]] = Future()
        number = next(self._numbers)
        frame = pack({"id": number, "op": op, **body})
        with self._guard:
            if self._closed:
                raise EngineError("closed", "this client is closed")
            if len(self._frames) >= MAX_QUEUED:
                raise EngineError("busy", "too many requests wait for the daemon", None, MAX_QUEUED)
            self._waiting[number] = future
            self._frames[number] = frame
            self._queued.append(number)
        self._loop.call_soon_threadsafe(self._send_queued)
        return future

    def close(self) -> None:
        """Fail what is unanswered and end the thread."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
        self._loop.stop()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        try:
            self._loop.run()
        finally:
            with self._guard:
                self._closed = True
            self._dealer.close()
            self._context.term()
            self._loop.close()
            self._fail(tuple(self._waiting), EngineError("closed", "the client was closed before the answer came"))

    def _connect(self, socket: Socket, address: str) -> Connection:
        # A request that has failed with its connection must not be carried out by the next daemon. Answers have one frame.
        socket.set(zmq.IMMEDIATE, 1)
        return Connection(socket, address, self._changed)

    def _send_queued(self) -> None:
        while self._queued and self._dealer.connection.connected:
            number = self._queued[0]
            if self._dealer.send([self._frames[number]]) is not SendOutcome.SENT:
                self._loop.add_writer(self._dealer.socket, self._send_queued)
                return
            self._queued.popleft()
            with self._guard:
                del self._frames[number]
        self._loop.remove_writer(self._dealer.socket)

    def _read(self, limit: int) -> bool:
        for _ in range(limit):
            frames = self._dealer.receive()
            if frames is None:
                return False
            self._answered(unpack(frames[0]))
        return True

    def _answered(self, body: dict[str, Any]) -> None:
        number = body.pop("id", None)
        with self._guard:
            future = self._waiting.pop(number, None) if isinstance(number, int) else None
        if future is None or not future.set_running_or_notify_cancel():
            return
        if body.pop("ok", False):
            future.set_result(body)
        else:
            future.set_exception(EngineError.from_body(body))

    def _changed(self, event: ConnectionEvent) -> None:
        if event.name == "HANDSHAKE_SUCCEEDED":
            # Until the socket is asked what goes, it may write into the former connection's queue, which nobody reads.
            self._dealer.socket.get(zmq.EVENTS)
            self._send_queued()
        elif event.name == "DISCONNECTED":
            self._disconnected()

    def _disconnected(self) -> None:
        # Answers that arrived before the end are still in the socket; what is then unanswered never will be.
        while self._read(1):
            pass
        accepted = [number for number in self._waiting if number not in self._frames]
        self._fail(tuple(accepted), EngineError("disconnected", f"the daemon at {self.path} went away before it answered"))

    def _fail(self, numbers: tuple[int, ...], error: EngineError) -> None:
        for number in numbers:
            with self._guard:
                future = self._waiting.pop(number, None)
            if future is not None and future.set_running_or_notify_cancel():
                future.set_exception(error)
