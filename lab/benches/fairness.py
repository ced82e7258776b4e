"""``pressure``: chunk times while the ring is as small as can be or has room, and who gets the ring if one prefill is slow."""

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Iterator

from lab.benches.effort import Effort
from lab.benches.played import Play, played
from lab.benches.rows import Row, jain, median, percentile, value_at_least
from lab.chaos.carrying import begin
from lab.chaos.cluster import Cluster, ClusterOptions, send
from lab.chaos.scenario import deployed
from lab.presets import PRESETS
from lab.shape import PairShape
from lab.workload import Request

RING_CHUNKS = (1, 2, 4, 8)
CONCURRENCY = 8
PREFILLS = 8
ROOMS_EACH = 2
"""Rooms that each prefill has under way: always more than the ring can hold."""
SLOW_PERIOD_S, SLOW_SHARE = 0.1, 0.2
"""The slow prefill runs for a fifth of each tenth of a second."""
FAIRNESS = 0.95


def bench_pressure(effort: Effort) -> Iterator[Row]:
    """Ring sizes first, then fairness."""
    yield from _tails(effort)
    shares = asyncio.run(_shares(effort))
    slow, *healthy = (shares[group] for group in range(PREFILLS))
    note = f"rooms of the healthy: {min(healthy)} to {max(healthy)}; of the slow one: {slow}"
    yield Row(
        f"pressure/fairness among {PREFILLS - 1} healthy prefills",
        jain(healthy),
        "Jain",
        1.0,
        (value_at_least(FAIRNESS),),
        note,
    )


def _tails(effort: Effort) -> Iterator[Row]:
    """A room of one chunk is one chunk's time as an engine sees it, from its first word to both sides' end."""
    number = effort.pick(48, 2000)
    preset = PRESETS["qwen3-8b"]
    effort.view.phase("pressure: chunk times", len(RING_CHUNKS))
    for done, chunks in enumerate(RING_CHUNKS[:2] if effort.short else RING_CHUNKS, start=1):
        shape = PairShape(preset.model, 2, 1, 1, "shm", 64, 0, preset.page_size, preset.page_size).with_ring_chunks(chunks)
        requests = [Request(index, f"room-{index}", 64, 0) for index in range(number)]
        times: list[float] = []
        with played(shape, requests, CONCURRENCY, effort.view.say) as play:
            asyncio.run(play.run(_time_each(play, requests, times)))
        times = times[CONCURRENCY:]
        yield Row(f"pressure/ring of {chunks} chunks, p50", median(times) * 1e3, "ms")
        yield Row(f"pressure/ring of {chunks} chunks, p99", percentile(times, 99) * 1e3, "ms", median(times) * 1e3)
        effort.view.advance(done)


async def _time_each(play: Play, requests: list[Request], times: list[float]) -> None:
    waiting = iter(requests)

    async def play_next() -> None:
        for request in waiting:
            began = time.monotonic()
            await play.engines.play(request, verify=False)
            times.append(time.monotonic() - began)

    await asyncio.gather(*(play_next() for _ in range(CONCURRENCY)))


async def _shares(effort: Effort) -> Counter[int]:
    """Rooms that each of eight prefill daemons got through a ring of two chunks in the same time; the first one is slow."""
    effort.view.phase("pressure: fairness", 1)
    options = ClusterOptions(planes=("shm",) * PREFILLS, prefill_tp=1, decode_tp=1, ring_chunks=2)
    done: Counter[int] = Counter()
    async with deployed(options) as cluster:
        slowing = asyncio.create_task(_slow_down(cluster))
        until = time.monotonic() + effort.pick(3, 30)
        await asyncio.gather(*(_carry_on(cluster, group, until, done) for group in range(PREFILLS) for _ in range(ROOMS_EACH)))
        slowing.cancel()
        await asyncio.gather(slowing, return_exceptions=True)
    effort.view.advance(1)
    return done


async def _carry_on(cluster: Cluster, group: int, until: float, done: Counter[int]) -> None:
    while time.monotonic() < until:
        await (await begin(cluster, group, chunks=2)).completes()
        done[group] += time.monotonic() < until


async def _slow_down(cluster: Cluster) -> None:
    """Let the first prefill run now and then only."""
    try:
        while True:
            send(cluster.prefills[0], signal.SIGSTOP)
            await asyncio.sleep(SLOW_PERIOD_S * (1 - SLOW_SHARE))
            send(cluster.prefills[0], signal.SIGCONT)
            await asyncio.sleep(SLOW_PERIOD_S * SLOW_SHARE)
    finally:
        send(cluster.prefills[0], signal.SIGCONT)
