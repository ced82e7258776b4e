"""The router between the model's engines: gives each request its pages, one prefill group and the decode instance.

One request, with the KV going from daemon to daemon meanwhile::

    decode engine:   expect --------------------------------> generate(first token) --> tokens, times, KV digests
    prefill engine:  prefill --> first token --^                settle

What the engines said is judged when the run is over: against one process that does both, token by token, and against the KV
bytes which that process had.
"""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from lab.engines import ABORT_GRACE_S, EngineLink, lend_pages
from lab.model.latency import RequestTimes
from lab.model.processes import EngineProcesses
from lab.model.single import MOST_OUTPUT, Prompt, make_prompt
from lab.model.single_process import SingleProcess, Verdict
from lab.model.speech import SpeechReport
from lab.pages import PagesExhausted
from lab.pools import PoolSet
from lab.report import Failure, RunReport
from lab.shape import PairShape
from lab.workload import Request
from protocol.layout import PageRun, rank_token_bytes
from runtime.engine_client import EngineClient
from runtime.engine_protocol import EngineError


@dataclass(frozen=True, slots=True)
class Spoken:
    """What became of one request, before it is judged."""

    request: Request
    prompt: Prompt
    tokens: tuple[int, ...]
    digests: tuple[bytes, ...]


@dataclass(slots=True)
class Turn:
    """One request on its way."""

    request: Request
    prompt: Prompt
    source: PageRun
    destination: PageRun
    prefill: EngineClient
    decode: EngineClient
    first: "asyncio.Future[int]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class ModelEngines:
    """Both engines of one deployment; ``report`` and ``speech`` collect what becomes of the requests they play."""

    def __init__(
        self,
        shape: PairShape,
        pools: PoolSet,
        link: EngineLink,
        processes: EngineProcesses,
        report: RunReport,
        single: SingleProcess,
        *,
        seed: int,
        deadline_s: float,
    ) -> None:
        self.shape = shape
        self.pools = pools
        self.report = report
        self.speech = report.speech = SpeechReport()
        self._link = link
        self._processes = processes
        self._single = single
        self._seed = seed
        self._deadline_s = deadline_s
        self._spoken: list[Spoken] = []

    async def play(self, request: Request) -> None:
        """Have one request answered: prefill, transfer and decode."""
        await self._link.decode_life()
        await self._link.prefill_life()
        try:
            source, destination = lend_pages(self.shape, self.pools, request, MOST_OUTPUT)
        except PagesExhausted as error:
            self._failed(Failure(request.room, "engine", "no_pages", str(error)))
            return
        prompt = make_prompt(self._single.config, request.room, request.num_tokens, self._seed)
        prefill = self._processes.prefill[request.group].client
        turn = Turn(request, prompt, source, destination, prefill, self._processes.decode.client)
        if await self._carry(turn):
            self.pools.prefill_pages[request.group].release(source.pages)
            self.pools.decode_pages.release(destination.pages)

    def judge(self) -> None:
        """Compare everything that was said so far with what the single process says."""
        right = self._single.answers([spoken.prompt for spoken in self._spoken], self.shape.decode_ranks)
        for spoken, verdict in zip(self._spoken, right, strict=True):
            self.speech.judge(spoken.request.room, spoken.tokens, verdict.tokens)
            self._judge_bytes(spoken, verdict)
        self._spoken.clear()

    async def _carry(self, turn: Turn) -> bool:
        """Play both parts. Says whether the pages may be used again."""
        issued = time.monotonic()
        try:
            async with asyncio.timeout(self._deadline_s), asyncio.TaskGroup() as parts:
                decoding = parts.create_task(self._decode(turn))
                parts.create_task(self._prefill(turn))
        except* (EngineError, TimeoutError) as errors:
            self._failed(_failure(turn.request.room, errors, self._deadline_s))
        else:
            said = decoding.result()
            self.speech.times.append(RequestTimes(turn.request.room, issued, tuple(said["times"])))
            self._spoken.append(Spoken(turn.request, turn.prompt, tuple(said["tokens"]), tuple(said["digests"])))
            self.report.requests_completed += 1
            return True
        return await self._abort(turn)

    async def _decode(self, turn: Turn) -> dict[str, Any]:
        request, pages = turn.request, {"pages": turn.destination.pages, "first_token": turn.destination.first_token}
        group = self.shape.group_name(request.group)
        expected = {"room": request.room, "group": group, "num_tokens": request.num_tokens, **pages}
        await asyncio.wrap_future(turn.decode.call("expect", **expected))
        token = await turn.first
        return await asyncio.wrap_future(
            turn.decode.call("generate", room=request.room, token=token, output=turn.prompt.output)
        )

    async def _prefill(self, turn: Turn) -> None:
        pages = {"pages": turn.source.pages, "first_token": turn.source.first_token}
        body = {"room": turn.request.room, "tokens": turn.prompt.tokens, "decode": list(self._link.decode_endpoints), **pages}
        answer = await asyncio.wrap_future(turn.prefill.call("prefill", **body))
        turn.first.set_result(answer["token"])
        self.speech.computed[turn.request.room] = [(begin, end) for begin, end in answer["computed"]]
        await asyncio.wrap_future(turn.prefill.call("settle", room=turn.request.room))

    async def _abort(self, turn: Turn) -> bool:
        """Have both sides give the request up; say whether they did in time."""
        room = turn.request.room
        try:
            async with asyncio.timeout(ABORT_GRACE_S):
                calls = [client.call("abort", room=room, reason="the request failed") for client in (turn.prefill, turn.decode)]
                await asyncio.gather(*(asyncio.wrap_future(call) for call in calls))
        except (EngineError, TimeoutError):
            return False
        return True

    def _judge_bytes(self, spoken: Spoken, verdict: Verdict) -> None:
        for rank, (found, expected) in enumerate(zip(spoken.digests, verdict.digests, strict=True)):
            self.report.bytes_checked += spoken.request.num_tokens * rank_token_bytes(self.shape.decode_layout(rank))
            if found != expected:
                self.report.mismatches += 1
                text = "the KV bytes are not those of the single process"
                self.report.failures.append(Failure(spoken.request.room, f"decode {rank}", "mismatch", text))

    def _failed(self, failure: Failure) -> None:
        self.report.requests_failed += 1
        self.report.failures.append(failure)


def _failure(room: str, errors: BaseExceptionGroup[EngineError | TimeoutError], deadline_s: float) -> Failure:
    """The first reason of several."""
    error = errors.exceptions[0]
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, EngineError):
        return Failure(room, "engine", error.code, error.message)
    return Failure(room, "engine", "timeout", f"not over after {deadline_s:g} s")
