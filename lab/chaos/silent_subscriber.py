"""A prefill that subscribes, goes on saying that it lives, and reads nothing, so that its queue at the decode rank fills."""

import asyncio
import contextlib
import time
from itertools import count
from types import TracebackType
from typing import Self

import zmq

from protocol import PROTOCOL_VERSION
from protocol.codec import decode_to_prefill, encode
from protocol.identifiers import make_incarnation
from protocol.layout import RankLayout
from protocol.messages import Heartbeat, Subscribe, Subscribed
from protocol.watermark import START
from runtime.endpoint import SendOutcome, open_context, send_frames

PREFILL_ID = "silent-0"
_RECEIVE_BYTES = 4096
"""Of the kernel's buffer: with a queue of one message behind it, next to nothing waits on this side."""


class SilentSubscriber:
    """A session with one decode rank that takes in nothing after ``SUBSCRIBED``. An async context manager."""

    def __init__(self, endpoint: str, layout: RankLayout, chunk_tokens: int, heartbeat_s: float) -> None:
        self._context = open_context(1, 16)
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.rcvhwm = 1
        self._socket.set(zmq.RCVBUF, _RECEIVE_BYTES)
        self._socket.connect(endpoint)
        self._layout = layout
        self._chunk_tokens = chunk_tokens
        self._heartbeat_s = heartbeat_s
        self._beating: asyncio.Task[None] | None = None
        self.session = ""

    async def __aenter__(self) -> Self:
        incarnation = make_incarnation(time.time_ns(), 1)
        numbers = (1, (PROTOCOL_VERSION, PROTOCOL_VERSION), (), PREFILL_ID, "silent", incarnation, None, self._chunk_tokens)
        send_frames(self._socket, encode(Subscribe(*numbers, self._layout, ("zmq",), "elsewhere")))
        answer = await self._answer()
        self.session = answer.session
        self._beating = asyncio.create_task(self._beat())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.fall_silent()
        self._socket.close()
        self._context.term()

    async def fall_silent(self) -> None:
        """Say nothing any more, like a process that was stopped."""
        if self._beating is not None:
            self._beating.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._beating

    async def _answer(self) -> Subscribed:
        while not self._socket.poll(0):  # noqa: ASYNC110 - a zmq socket has no event of asyncio
            await asyncio.sleep(0.01)
        message = decode_to_prefill(self._socket.recv_multipart())
        assert isinstance(message, Subscribed), message
        return message

    async def _beat(self) -> None:
        for number in count(1):
            outcome = send_frames(self._socket, encode(Heartbeat(self.session, number, START)))
            assert outcome is SendOutcome.SENT, "the decode rank does not read"
            await asyncio.sleep(self._heartbeat_s)
