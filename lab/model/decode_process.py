"""``python -m lab.model.decode_process ASSIGNMENT``: the decode instance's engine.

A sequence waits for its KV and for the first token that the prefill computed; then it joins the batch, in which every sequence
gets one token per step. Times are those at which a token leaves.
"""

import asyncio
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from decode_service.engine import DecodeEngine, DecodeEngineClient
from lab.model.assignment import Assignment, given_assignment
from lab.model.forward import Instance, Segment
from lab.model.kv import PagedKv
from lab.model.outcomes import all_done, all_ended
from lab.model.service import ComputeThread, EngineService
from protocol.limits import MAX_ROOM_TOKENS
from runtime.engine_fields import identifier, integer, page_run, reason
from runtime.engine_protocol import Body, EngineError


@dataclass(slots=True, eq=False)
class Sequence:
    """A prompt whose KV is here or on its way, and its answer so far; ``times`` in seconds of the host's monotonic clock."""

    prompt_tokens: int
    caches: list[PagedKv]
    output: int = 0
    tokens: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    aborted: bool = False

    def emit(self, token: int) -> None:
        """One more token leaves now."""
        self.tokens.append(token)
        self.times.append(time.monotonic())

    @property
    def next_segment(self) -> Segment:
        """The last token, which the cache does not hold yet."""
        return Segment(self.tokens[-1:], self.prompt_tokens + len(self.tokens) - 1, self.caches)


class DecodeProcess:
    """The ranks of the decode instance."""

    def __init__(self, assignment: Assignment, daemon: DecodeEngine) -> None:
        self._assignment = assignment
        self._daemon = daemon
        self._instance = Instance(assignment.config, assignment.seed, len(assignment.ranks))
        self._pools = assignment.open_pools()
        self._compute = ComputeThread()
        self._expected: dict[str, Sequence] = {}
        self._batch: list[Sequence] = []
        self._filled = asyncio.Event()

    async def ping(self, body: Body) -> dict[str, Any]:  # noqa: ARG002 - a command's signature
        """Say that the model is there."""
        return {}

    async def expect(self, body: Body) -> dict[str, Any]:
        """Register a room on every rank; ``pages`` hold the prompt's tokens and the answer's."""
        room, group, destination = identifier(body, "room"), identifier(body, "group"), page_run(body)
        num_tokens = integer(body, "num_tokens", 1, MAX_ROOM_TOKENS)
        self._expected[room] = Sequence(num_tokens, [PagedKv(pool, destination) for pool in self._pools])
        calls = [self._daemon.register_room(room, rank, group, num_tokens, destination) for rank in self._assignment.ranks]
        await asyncio.gather(*(asyncio.wrap_future(call) for call in calls))
        return {}

    async def generate(self, body: Body) -> dict[str, Any]:
        """The answer, of ``output`` tokens beginning with ``token``, once the room is done: tokens, times, KV digests."""
        room = identifier(body, "room")
        sequence = self._expected.get(room)
        if sequence is None:
            raise EngineError("unknown_room", f"no prompt of room {room!r} is expected")
        sequence.output = integer(body, "output", 1, MAX_ROOM_TOKENS)
        await all_done(room, "decode", self._assignment.ranks, self._daemon.wait_room)
        sequence.emit(integer(body, "token", 0, self._assignment.config.vocabulary - 1))
        if sequence.output > 1:
            self._batch.append(sequence)
            self._filled.set()
            await sequence.over.wait()
        if sequence.aborted:
            raise EngineError("aborted", "the answer was given up")
        self._expected.pop(room, None)
        # The prompt's part of the pages is as it arrived: decoding writes behind it.
        digests = await self._compute.run(lambda: [cache.digest(sequence.prompt_tokens) for cache in sequence.caches])
        return {"tokens": sequence.tokens, "times": sequence.times, "digests": digests}

    async def abort(self, body: Body) -> dict[str, Any]:
        """Give a room up; return once it has ended on every rank."""
        room = identifier(body, "room")
        sequence = self._expected.pop(room, None)
        if sequence is not None:
            sequence.aborted = True
            sequence.over.set()
            if sequence in self._batch:
                self._batch.remove(sequence)
            # No step may write into the pages once they belong to somebody else.
            await self._compute.barrier()
        await all_ended(room, self._assignment.ranks, self._daemon.abort_room, self._daemon.wait_room, reason(body))
        return {}

    async def run(self) -> None:
        """Step the batch whenever it holds something, for ever."""
        while True:
            await self._filled.wait()
            members = list(self._batch)
            words = await self._compute.run(partial(self._step, members))
            for sequence, word in zip(members, words, strict=True):
                sequence.emit(word)
                if len(sequence.tokens) == sequence.output and sequence in self._batch:
                    self._batch.remove(sequence)
                    sequence.over.set()
            if not self._batch:
                self._filled.clear()

    def _step(self, members: list[Sequence]) -> list[int]:
        return self._instance.forward([sequence.next_segment for sequence in members])


async def serve(assignment: Assignment) -> None:
    """Serve until the process is ended."""
    with DecodeEngineClient(assignment.daemon) as daemon:
        process = DecodeProcess(assignment, daemon)
        operations = {"ping": process.ping, "expect": process.expect, "generate": process.generate, "abort": process.abort}
        EngineService(assignment.listen, operations).start()
        await process.run()


if __name__ == "__main__":
    asyncio.run(serve(given_assignment()))
