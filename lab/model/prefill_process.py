"""``python -m lab.model.prefill_process ASSIGNMENT``: one prefill group's engine.

Prompts are computed chunk by chunk, in turns where several wait. A chunk is handed to the daemon as soon as its KV is in the
pages, so it travels while the next one is computed. After the last chunk the answer is the prompt's first token.
"""

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from lab.model.assignment import Assignment, given_assignment
from lab.model.forward import Instance, Segment
from lab.model.kv import PagedKv
from lab.model.outcomes import all_done, all_ended
from lab.model.service import ComputeThread, EngineService
from prefill_service.engine import PrefillEngine, PrefillEngineClient
from protocol.layout import PageRun
from runtime.engine_fields import identifier, page_run, reason
from runtime.engine_protocol import Body, EngineError


@dataclass(slots=True, eq=False)
class PrefillJob:
    """A prompt on its way through the model. ``computed`` are the chunks so far, each ``[begin, end]`` in Unix seconds."""

    room: str
    tokens: Sequence[int]
    source: PageRun
    decode: Sequence[str]
    caches: Sequence[PagedKv]
    computed: list[tuple[float, float]] = field(default_factory=list)
    calls: "list[Future[dict[str, Any]]]" = field(default_factory=list)
    aborted: bool = False


class PrefillProcess:
    """The ranks of one prefill group."""

    def __init__(self, assignment: Assignment, daemon: PrefillEngine) -> None:
        self._assignment = assignment
        self._daemon = daemon
        self._instance = Instance(assignment.config, assignment.seed, len(assignment.ranks))
        self._pools = assignment.open_pools()
        self._compute = ComputeThread()
        self._jobs: dict[str, PrefillJob] = {}

    async def ping(self, body: Body) -> dict[str, Any]:  # noqa: ARG002 - a command's signature
        """Say that the model is there."""
        return {}

    async def prefill(self, body: Body) -> dict[str, Any]:
        """Compute a prompt into ``pages`` and hand every chunk over: the first ``token``, and when each chunk was computed."""
        room, source = identifier(body, "room"), page_run(body)
        caches = [PagedKv(pool, source) for pool in self._pools]
        job = self._jobs[room] = PrefillJob(room, body["tokens"], source, body["decode"], caches)
        token = 0
        for start in range(0, len(job.tokens), self._assignment.chunk_tokens):
            chunk = job.tokens[start : start + self._assignment.chunk_tokens]
            token = await self._compute_chunk(job, start, chunk)
            if job.aborted:
                raise EngineError("aborted", "the prompt was given up")
            self._hand_over(job, start, len(chunk))
        job.calls += [self._daemon.finish_room(room, rank) for rank in self._assignment.ranks]
        return {"token": token, "computed": job.computed}

    async def settle(self, body: Body) -> dict[str, Any]:
        """Return once the room is done on every rank: the pages may be used again."""
        room = identifier(body, "room")
        job = self._jobs.get(room)
        if job is None:
            raise EngineError("unknown_room", f"no prompt of room {room!r} was computed")
        await asyncio.gather(*(asyncio.wrap_future(call) for call in job.calls))
        await all_done(room, "prefill", self._assignment.ranks, self._daemon.wait_room)
        self._jobs.pop(room, None)
        return {}

    async def abort(self, body: Body) -> dict[str, Any]:
        """Give a room up; return once it has ended on every rank."""
        room = identifier(body, "room")
        job = self._jobs.pop(room, None)
        if job is not None:
            job.aborted = True
            await self._compute.barrier()
        await all_ended(room, self._assignment.ranks, self._daemon.abort_room, self._daemon.wait_room, reason(body))
        return {}

    async def _compute_chunk(self, job: PrefillJob, start: int, tokens: Sequence[int]) -> int:
        def step() -> int:
            began = time.time()
            token = self._instance.forward([Segment(tokens, start, job.caches)])[0]
            job.computed.append((began, time.time()))
            return token

        return await self._compute.run(step)

    def _hand_over(self, job: PrefillJob, start: int, num_tokens: int) -> None:
        for rank in self._assignment.ranks:
            job.calls.append(self._daemon.submit_chunk(job.room, rank, job.decode, start, num_tokens, job.source))


async def serve(assignment: Assignment) -> None:
    """Serve until the process is ended."""
    with PrefillEngineClient(assignment.daemon) as daemon:
        process = PrefillProcess(assignment, daemon)
        operations = {"ping": process.ping, "prefill": process.prefill, "settle": process.settle, "abort": process.abort}
        EngineService(assignment.listen, operations).start()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(given_assignment()))
