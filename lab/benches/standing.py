"""``idle`` and ``blocked``: processor time of each daemon with nothing to do, and with a thousand chunks that cannot move."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from decode_service.config import DecodeServiceConfig
from lab.benches.effort import Effort
from lab.benches.held_ring import HeldRing
from lab.benches.recovery import default_timers
from lab.benches.rows import Row, value_at_most
from lab.chaos.cluster import WAIT_S, Cluster, ClusterOptions
from lab.chaos.expectations import within
from lab.chaos.scenario import deployed
from prefill_service.config import PrefillServiceConfig
from protocol.layout import PageRun

IDLE_PERCENT = 1.0
BLOCKED_PERCENT = 2.0
CHUNKS = 1000
ROOMS = 20
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Processor seconds that a process has used so far, in user and kernel mode."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def bench_idle(effort: Effort) -> Iterator[Row]:
    """Two ranks on each side with open sessions, default timers, nothing to do."""
    yield from asyncio.run(_idle(effort))


def bench_blocked(effort: Effort) -> Iterator[Row]:
    """A peer holds the whole ring and says that it lives; behind it a thousand chunks of one prefill wait."""
    yield from asyncio.run(_blocked(effort))


async def _idle(effort: Effort) -> list[Row]:
    async with _quiet(2) as cluster:
        prefill = (await cluster.prefills[0].available()).client
        for rank in range(2):
            for endpoint in cluster.endpoints:
                await asyncio.wrap_future(prefill.add_peer(rank, endpoint))
        return await _shares(cluster, "idle", IDLE_PERCENT, effort)


async def _blocked(effort: Effort) -> list[Row]:
    async with _quiet(1) as cluster, HeldRing(cluster) as held:
        decode, prefill = (await cluster.decode.available()).client, (await cluster.prefills[0].available()).client
        pools, size = (*cluster.pools.prefill, *cluster.pools.decode), cluster.shape.chunk_tokens
        pages = PageRun(tuple(range(min(pool.layout.num_pages for pool in pools))))
        tokens, group, calls = CHUNKS // ROOMS * size, cluster.shape.group_name(0), []
        for number in range(ROOMS):
            room = f"blocked-{number}"
            calls.append(decode.register_room(room, 0, group, tokens, pages))
            calls += [prefill.submit_chunk(room, 0, cluster.endpoints, start, size, pages) for start in range(0, tokens, size)]
        await within(WAIT_S, "all chunks are taken", asyncio.gather(*map(asyncio.wrap_future, calls)))
        rows = await _shares(cluster, "blocked", BLOCKED_PERCENT, effort)
        await held.check()
        return rows


@asynccontextmanager
async def _quiet(ranks: int) -> AsyncIterator[Cluster]:
    """Daemons as they are run: default timers, and a log that only says what matters."""
    quiet = ("--log-level", "info")
    options = ClusterOptions(
        planes=("shm",),
        prefill_tp=ranks,
        decode_tp=ranks,
        ring_chunks=1,
        chunk_tokens=8,
        decode_settings=(*default_timers(DecodeServiceConfig), *quiet),
        prefill_settings=(*default_timers(PrefillServiceConfig), *quiet),
    )
    async with deployed(options) as cluster:
        yield cluster


async def _shares(cluster: Cluster, name: str, bound: float, effort: Effort) -> list[Row]:
    """Percent of one core that each daemon uses for some seconds, after a moment to settle."""
    seconds = effort.pick(3, 30)
    effort.view.phase(name, 1)
    await asyncio.sleep(effort.pick(2, 10))
    before = {daemon.process.name: cpu_s(daemon.process.pid) for daemon in cluster.daemons}
    began = time.monotonic()
    await asyncio.sleep(seconds)
    lasted = time.monotonic() - began
    effort.view.advance(1)
    rows = []
    for daemon in cluster.daemons:
        percent = 100 * (cpu_s(daemon.process.pid) - before[daemon.process.name]) / lasted
        rows.append(Row(f"{name}/{daemon.process.name}", percent, "% of a core", None, (value_at_most(bound),)))
    return rows
