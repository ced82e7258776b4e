"""One room, carried by hand: begun on both sides, continued when the scenario says so, its endings noted as they come.

No failure on one side is told to the other by the engines here. That is the daemons' own business, and what is tested.
"""

import asyncio
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from decode_service.engine import DecodeEngineClient
from lab.chaos.cluster import WAIT_S, Cluster
from lab.chaos.expectations import expect, within
from lab.pages import pages_needed
from lab.reference import Comparison, compare, fill
from prefill_service.engine import PrefillEngineClient
from protocol.layout import PageRun
from runtime.engine_protocol import EngineError
from runtime.room_waiters import RoomOutcome

_SERIAL = count()
FIRST_TOKEN = 3
"""Where a room begins within its first page on both sides."""
SEED = 11


@dataclass(frozen=True, slots=True)
class Ending:
    """How a room ended on one rank, by the word of that rank's daemon; ``at`` is in seconds of the monotonic clock."""

    where: str
    done: bool
    code: str
    message: str
    at: float


@dataclass(slots=True)
class Carrying:
    """A room under way. Made by ``begin``."""

    cluster: Cluster
    room: str
    group: int
    num_tokens: int
    source: PageRun
    destination: PageRun
    decode: DecodeEngineClient
    prefill: PrefillEngineClient
    decode_endings: list[asyncio.Task[Ending]] = field(default_factory=list)
    prefill_endings: list[asyncio.Task[Ending]] = field(default_factory=list)
    _submitted: int = 0

    async def submit(self, chunks: int | None = None) -> None:
        """Hand the next ``chunks`` chunks to every prefill rank; without a number the rest, and say that this is all."""
        step = self.cluster.shape.chunk_tokens
        end = self.num_tokens if chunks is None else min(self.num_tokens, self._submitted + chunks * step)
        starts = range(self._submitted, end, step)
        self._submitted = end
        calls = [
            self.prefill.submit_chunk(
                self.room, rank, self.cluster.endpoints, start, min(step, self.num_tokens - start), self.source
            )
            for rank in self._ranks()
            for start in starts
        ]
        if chunks is None:
            calls += [self.prefill.finish_room(self.room, rank) for rank in self._ranks()]
        if not self.prefill_endings:
            waits = [self.prefill.wait_room(self.room, rank) for rank in self._ranks()]
            self.prefill_endings = [
                asyncio.create_task(_ending(f"prefill {self.group}.{rank}", asyncio.wrap_future(wait)))
                for rank, wait in enumerate(waits)
            ]
        await asyncio.gather(*(asyncio.wrap_future(call) for call in calls))

    async def ends_on_decode(self, limit_s: float = WAIT_S) -> list[Ending]:
        """The endings on the decode ranks. Raises ``NotAsExpected`` if one is missing after ``limit_s``."""
        return await within(limit_s, f"{self.room} ends on every decode rank", gathered(self.decode_endings))

    async def ends_on_prefill(self, limit_s: float = WAIT_S) -> list[Ending]:
        """The endings on the prefill ranks."""
        return await within(limit_s, f"{self.room} ends on every prefill rank", gathered(self.prefill_endings))

    async def completes(self, limit_s: float = WAIT_S) -> float:
        """Wait until it is done everywhere, compare every byte and give the pages back. Returns when the last rank was done."""
        endings = [*await self.ends_on_decode(limit_s), *await self.ends_on_prefill(limit_s)]
        for ending in endings:
            expect(ending.done, f"{self.room} failed on {ending.where}: {ending.code}: {ending.message}")
        found = self.compared()
        expect(not found.mismatched_bytes, f"{self.room}: {found.mismatched_bytes} wrong bytes; {found.first_mismatch}")
        self.release()
        return max(ending.at for ending in endings)

    def compared(self) -> Comparison:
        """Every byte of the room on the decode ranks against what it must be."""
        found = Comparison(0)
        for pool in self.cluster.pools.decode:
            found += compare(pool, self.destination, self.num_tokens, seed=SEED, room=self.room)
        return found

    def release(self) -> None:
        """Give the pages back: only once both sides have said that the room is over."""
        self.cluster.pools.prefill_pages[self.group].release(self.source.pages)
        self.cluster.pools.decode_pages.release(self.destination.pages)

    def _ranks(self) -> range:
        return range(self.cluster.shape.group_size)


async def begin(cluster: Cluster, group: int, chunks: int = 3, submit: int | None = None) -> Carrying:
    """Begin a room of ``chunks`` chunks, the last one not full; only the first ``submit`` are handed over, or all of them."""
    carrying = await expect_room(cluster, group, chunks)
    await within(WAIT_S, f"{carrying.room} is taken by prefill daemon {group}", carrying.submit(submit))
    return carrying


async def expect_room(cluster: Cluster, group: int, chunks: int) -> Carrying:
    """Lend and fill pages for a room of ``chunks`` chunks, the last one not full, and register it on every decode rank."""
    shape = cluster.shape
    tokens = chunks * shape.chunk_tokens - 5
    source = PageRun(cluster.pools.prefill_pages[group].allocate(_pages(tokens, shape.prefill_page_size)), FIRST_TOKEN)
    destination = PageRun(cluster.pools.decode_pages.allocate(_pages(tokens, shape.decode_page_size)), FIRST_TOKEN)
    room = f"room-{next(_SERIAL):05d}-of-{group}"
    for rank in shape.group_ranks(group):
        fill(cluster.pools.prefill[rank], source, tokens, seed=SEED, room=room)
    decode, prefill = await cluster.decode.available(), await cluster.prefills[group].available()
    carrying = Carrying(cluster, room, group, tokens, source, destination, decode.client, prefill.client)
    for rank in range(shape.decode_ranks):
        carried = _carried_on_decode(decode.client, carrying, rank)
        carrying.decode_endings.append(asyncio.create_task(_ending(f"decode {rank}", carried)))
    return carrying


async def passes(cluster: Cluster, group: int, chunks: int = 3, limit_s: float = WAIT_S) -> float:
    """Carry a whole new room from that group and check it. Returns when it was done."""
    return await (await begin(cluster, group, chunks)).completes(limit_s)


async def gathered(tasks: Sequence[asyncio.Task[Ending]]) -> list[Ending]:
    """All endings, without ending the tasks if the wait is given up."""
    await asyncio.wait(tasks)
    return [task.result() for task in tasks]


def failed_with(endings: Sequence[Ending], codes: set[str]) -> float:
    """When the last of these failed. Raises ``NotAsExpected`` unless all did, each with a reason and one of these codes."""
    for ending in endings:
        expect(not ending.done, f"{ending.where}: done, although it cannot be")
        expect(
            ending.code in codes, f"{ending.where}: expected {' or '.join(sorted(codes))}, got {ending.code}: {ending.message}"
        )
        expect(bool(ending.message), f"{ending.where}: {ending.code} without a reason")
    return max(ending.at for ending in endings)


async def _carried_on_decode(client: DecodeEngineClient, carrying: Carrying, rank: int) -> RoomOutcome:
    group = carrying.cluster.shape.group_name(carrying.group)
    registered = client.register_room(carrying.room, rank, group, carrying.num_tokens, carrying.destination)
    await asyncio.wrap_future(registered)
    return await asyncio.wrap_future(client.wait_room(carrying.room, rank))


async def _ending(where: str, outcome: "Coroutine[Any, Any, RoomOutcome] | asyncio.Future[RoomOutcome]") -> Ending:
    try:
        found = await outcome
    except EngineError as error:
        return Ending(where, False, error.code, error.message, time.monotonic())
    return Ending(where, found.done, found.code, found.message, time.monotonic())


def _pages(tokens: int, page_size: int) -> int:
    return pages_needed(tokens, page_size, FIRST_TOKEN)
