"""A prefill that took the whole ring of a decode rank and writes nothing, though it goes on saying that it lives."""

import asyncio
import contextlib
import time
from itertools import count
from types import TracebackType
from typing import Self, TypeVar

import zmq

from lab.chaos.cluster import WAIT_S, Cluster
from protocol import PROTOCOL_VERSION
from protocol.codec import decode_to_prefill, encode
from protocol.identifiers import make_incarnation
from protocol.layout import PageRun
from protocol.messages import GrantStatus, Heartbeat, StagingReq, StagingRsp, Subscribe, Subscribed, ToDecode, ToPrefill
from protocol.watermark import START
from runtime.endpoint import SendOutcome, open_context, send_frames
from runtime.host import shared_memory_host_id

GROUP = "holder"
HEARTBEAT_S = 1.0

M = TypeVar("M")


class HeldRing:
    """Holds rank 0's ring while entered. An async context manager; the oldest grant is its own all the time."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._context = open_context(1, 16)
        self._dealer = self._context.socket(zmq.DEALER)
        self._beating: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._dealer.linger = 0
        self._dealer.connect(self._cluster.endpoints[0])
        shape = self._cluster.shape
        incarnation = make_incarnation(time.time_ns(), 1)
        versions = (PROTOCOL_VERSION, PROTOCOL_VERSION)
        layout = shape.prefill_layout(0)
        fields = (1, versions, (), "holder-0", GROUP, incarnation, None, shape.chunk_tokens, layout, ("zmq", "shm"))
        host = shared_memory_host_id(self._cluster.segments)
        self._say(Subscribe(*fields, host))
        session = (await self._hear(Subscribed)).session
        decode = (await self._cluster.decode.available()).client
        await asyncio.wrap_future(decode.register_room("held", 0, GROUP, shape.chunk_tokens, PageRun(tuple(range(8)))))
        self._say(StagingReq(session, "held", 0, 0, shape.chunk_tokens))
        answer = await self._hear(StagingRsp)
        assert answer.status is GrantStatus.GRANTED, answer
        self._beating = asyncio.create_task(self._beat(session))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._beating is not None:
            self._beating.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._beating
        self._dealer.close()
        self._context.term()

    async def check(self) -> None:
        """Raise ``RuntimeError`` unless nothing has moved."""
        ring = (await self._cluster.inspect_decode())[0]["ring"]
        if tuple(ring["watermark"]) != tuple(START):
            raise RuntimeError(f"the ring was not held: its watermark is {ring['watermark']}")

    def _say(self, message: ToDecode) -> None:
        outcome = send_frames(self._dealer, encode(message))
        assert outcome is SendOutcome.SENT

    async def _hear(self, kind: type[M]) -> M:
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            if not self._dealer.poll(0):
                await asyncio.sleep(0.01)
                continue
            message: ToPrefill = decode_to_prefill(self._dealer.recv_multipart())
            if isinstance(message, kind):
                return message
        raise TimeoutError(f"no {kind.__name__} within {WAIT_S:g} s")

    async def _beat(self, session: str) -> None:
        for number in count(1):
            while self._dealer.poll(0):
                self._dealer.recv_multipart()
            self._say(Heartbeat(session, number, START))
            await asyncio.sleep(HEARTBEAT_S)
