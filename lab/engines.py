"""Simulated engines: they own KV pools and pages, drive both daemons through the engine clients, and check what arrives.

One request, from first page to last::

    prefill engine: lends pages, fills them (the forward pass), submits every chunk, says that it is finished --+
    decode engine:  lends pages, registers the room on every rank --------------------------------------+       |
                                                                                                        v       v
    both wait for their rooms; the decode pages are compared with what was meant to be sent; then all pages are reused

Registration and submission go out at the same time, so either side may be first. A request in flight costs a coroutine per
rank and a few futures; nothing here waits without a bound.
"""

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from decode_service.engine import DecodeEngineClient
from lab.pages import PagesExhausted, pages_needed
from lab.pools import PoolSet
from lab.reference import compare, fill
from lab.report import Failure, RunReport
from lab.shape import PairShape
from lab.supervised import Life
from lab.workload import Request
from prefill_service.engine import PrefillEngineClient
from protocol.layout import PageRun
from runtime.engine_protocol import EngineError

ABORT_GRACE_S = 10.0
"""How long rooms may take to end once they were aborted. What has not ended by then never gives its pages back."""


class EngineLink(Protocol):
    """Where the engines find the current life of each daemon."""

    @property
    def decode_endpoints(self) -> Sequence[str]:
        """Control endpoints of the decode ranks, by rank."""

    async def decode_life(self) -> Life[DecodeEngineClient]:
        """The decode daemon, as soon as it answers."""

    async def prefill_life(self) -> Life[PrefillEngineClient]:
        """The prefill daemon, as soon as it answers."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """One request on its way: its pages on both sides, and the lives of the daemons it was given to."""

    request: Request
    source: PageRun
    destination: PageRun
    decode: DecodeEngineClient
    prefill: PrefillEngineClient


class SimulatedEngines:
    """Both engines of one deployment; ``report`` collects what becomes of the requests they play."""

    def __init__(
        self, shape: PairShape, pools: PoolSet, link: EngineLink, report: RunReport, *, seed: int, deadline_s: float
    ) -> None:
        self.shape = shape
        self.pools = pools
        self.report = report
        self.seed = seed
        self.deadline_s = deadline_s
        self._link = link

    async def play(self, request: Request, *, verify: bool = True) -> None:
        """Carry one request from prefill pages to decode pages, compare every byte, and give the pages back.

        Without ``verify`` the pages are neither filled nor compared: for measuring how fast bytes move.
        """
        decode, prefill = await self._link.decode_life(), await self._link.prefill_life()
        try:
            source, destination = lend_pages(self.shape, self.pools, request)
        except PagesExhausted as error:
            self._failed([Failure(request.room, "engine", "no_pages", str(error))])
            return
        for rank in self.shape.group_ranks(request.group) if verify else ():
            fill(self.pools.prefill[rank], source, request.num_tokens, seed=self.seed, room=request.room)
        failures, settled = await self._carry(Transfer(request, source, destination, decode.client, prefill.client))
        if failures:
            self._failed(failures)
        else:
            self.report.requests_completed += 1
        if verify and not failures:
            self._check(request, destination)
        if settled:
            self.pools.prefill_pages[request.group].release(source.pages)
            self.pools.decode_pages.release(destination.pages)

    def judge(self) -> None:
        """Nothing is left to compare: every request was compared when it ended."""

    async def _carry(self, transfer: Transfer) -> tuple[list[Failure], bool]:
        """Play every rank's part; at the first failure, or when time is over, abort the others. Also says if all have ended."""
        clock = asyncio.get_running_loop().time
        failures: list[Failure] = []
        pending = {asyncio.create_task(part) for part in self._parts(transfer)}
        until, aborted = clock() + self.deadline_s, False
        try:
            while pending:
                done, pending = await asyncio.wait(
                    pending, timeout=max(0.0, until - clock()), return_when=asyncio.FIRST_COMPLETED
                )
                failures += [failure for task in done if (failure := task.result()) is not None]
                if not done and aborted:
                    break
                if not done:
                    text = f"not over after {self.deadline_s:g} s, {len(pending)} ranks to go"
                    failures.append(Failure(transfer.request.room, "engine", "timeout", text))
                if failures and not aborted:
                    until, aborted = clock() + ABORT_GRACE_S, True
                    self._abort(transfer, failures[0])
        finally:
            for task in pending:
                task.cancel()
        return failures, not pending

    def _parts(self, transfer: Transfer) -> list[Coroutine[None, None, Failure | None]]:
        decode = [self._decode_part(transfer, rank) for rank in range(self.shape.decode_ranks)]
        return decode + [self._prefill_part(transfer, rank) for rank in self.shape.group_ranks(transfer.request.group)]

    async def _decode_part(self, transfer: Transfer, rank: int) -> Failure | None:
        """Register the room on one decode rank and wait for it."""
        request, client = transfer.request, transfer.decode
        group = self.shape.group_name(request.group)
        try:
            registered = client.register_room(request.room, rank, group, request.num_tokens, transfer.destination)
            await asyncio.wrap_future(registered)
            outcome = await asyncio.wrap_future(client.wait_room(request.room, rank))
        except EngineError as error:
            return Failure(request.room, f"decode {rank}", error.code, error.message)
        return None if outcome.done else Failure(request.room, f"decode {rank}", outcome.code, outcome.message)

    async def _prefill_part(self, transfer: Transfer, rank: int) -> Failure | None:
        """Submit every chunk of the room on one prefill rank and wait for it."""
        request, client, endpoints = transfer.request, transfer.prefill, self._link.decode_endpoints
        try:
            calls = [
                client.submit_chunk(request.room, rank, endpoints, start, num_tokens, transfer.source)
                for start, num_tokens in self._grid(request.num_tokens)
            ]
            calls.append(client.finish_room(request.room, rank))
            await asyncio.gather(*(asyncio.wrap_future(call) for call in calls))
            outcome = await asyncio.wrap_future(client.wait_room(request.room, rank))
        except EngineError as error:
            return Failure(request.room, f"prefill {rank}", error.code, error.message)
        return None if outcome.done else Failure(request.room, f"prefill {rank}", outcome.code, outcome.message)

    def _abort(self, transfer: Transfer, cause: Failure) -> None:
        """Tell every rank to give the room up. Ranks that do not know it refuse, and a dead daemon's connection is closed."""
        room, reason = transfer.request.room, f"{cause.rank}: {cause.code}"
        with contextlib.suppress(EngineError):
            for rank in range(self.shape.decode_ranks):
                transfer.decode.abort_room(room, rank, reason)
        with contextlib.suppress(EngineError):
            for rank in self.shape.group_ranks(transfer.request.group):
                transfer.prefill.abort_room(room, rank, reason)

    def _grid(self, num_tokens: int) -> Iterator[tuple[int, int]]:
        """``(token_start, num_tokens)`` of each chunk."""
        step = self.shape.chunk_tokens
        return ((start, min(step, num_tokens - start)) for start in range(0, num_tokens, step))

    def _check(self, request: Request, destination: PageRun) -> None:
        """Compare every decode rank's copy with what the prefill pools were filled with."""
        for rank, pool in enumerate(self.pools.decode):
            found = compare(pool, destination, request.num_tokens, seed=self.seed, room=request.room)
            self.report.bytes_checked += found.bytes_checked
            if found.mismatched_bytes:
                self.report.mismatches += 1
                text = f"{found.mismatched_bytes} wrong bytes; {found.first_mismatch}"
                self.report.failures.append(Failure(request.room, f"decode {rank}", "mismatch", text))

    def _failed(self, failures: list[Failure]) -> None:
        self.report.requests_failed += 1
        self.report.failures += failures


def lend_pages(shape: PairShape, pools: PoolSet, request: Request, output_tokens: int = 0) -> tuple[PageRun, PageRun]:
    """Pages for a request on both sides, on the decode side with room for its answer. Raises ``PagesExhausted``."""
    first, group = request.source_first_token, pools.prefill_pages[request.group]
    source = group.allocate(pages_needed(request.num_tokens, shape.prefill_page_size, first))
    try:
        length = request.num_tokens + output_tokens
        count = pages_needed(length, shape.decode_page_size, request.destination_first_token)
        destination = pools.decode_pages.allocate(count)
    except PagesExhausted:
        group.release(source)
        raise
    return PageRun(source, first), PageRun(destination, request.destination_first_token)
