"""``memory``: what each daemon holds beside pools and rings, at first and after very many chunks."""

import asyncio
import statistics
from collections.abc import Iterator

from lab.benches.effort import Effort
from lab.benches.played import Play, played
from lab.benches.rows import Row, ratio_at_most, value_at_most
from lab.presets import PRESETS
from lab.shape import PairShape
from lab.soak.sample import sample_process
from lab.workload import Request

CHUNK_TOKENS = 4
ROOM_CHUNKS = 1000
CONCURRENCY = 1
LOOKS = 15
"""Rooms at the end of each phase after which the daemons are looked at. A recorder fills up and lets go of half: a few per cent
up and down every few rooms, so the median counts."""
RESIDENT_MIB = 80.0
GROWTH = 1.01


def bench_memory(effort: Effort) -> Iterator[Row]:
    """Rooms of a thousand small chunks.

    The flight recorders fill up while the daemons warm up; from then on everything that is kept is bounded, or is one
    tombstone a room, so growth is what a chunk leaves behind.
    """
    warm, total = effort.pick(1, 100), effort.pick(1, 1000)
    shape = PairShape(PRESETS["tiny"].model, 1, 1, 1, "shm", CHUNK_TOKENS, 0).with_ring_chunks(8)
    requests = [Request(index, f"room-{index}", ROOM_CHUNKS * CHUNK_TOKENS, 0) for index in range(warm + total)]
    samples: list[dict[str, float]] = []
    effort.view.phase("memory", len(requests))
    with played(shape, requests[:CONCURRENCY], CONCURRENCY, effort.view.say) as play:
        asyncio.run(play.run(_sample(play, requests, (0, warm, warm + total), samples, effort)))
    fresh, before, after = samples
    for name in fresh:
        yield Row(f"memory/{name}, fresh", fresh[name] / 2**20, "MiB", None, (value_at_most(RESIDENT_MIB),))
        limit = before[name] / 2**20
        chunks = f"{total * ROOM_CHUNKS} chunks, after {warm * ROOM_CHUNKS} to warm up"
        targets = (value_at_most(RESIDENT_MIB), ratio_at_most(GROWTH))
        yield Row(f"memory/{name}, after {total * ROOM_CHUNKS} chunks", after[name] / 2**20, "MiB", limit, targets, chunks)


async def _sample(
    play: Play, requests: list[Request], marks: tuple[int, ...], samples: list[dict[str, float]], effort: Effort
) -> None:
    """Look at the daemons before the first request, and after the last ones of each phase."""
    report = play.engines.report
    for start, end in zip((0, *marks), marks, strict=False):
        waiting, looks = iter(requests[start:end]), [_resident(play)] if start == end else []

        async def play_next(
            waiting: Iterator[Request] = waiting, looks: list[dict[str, int]] = looks, look_after: int = end - LOOKS
        ) -> None:
            for request in waiting:
                await play.engines.play(request, verify=False)
                effort.view.advance(report.requests_completed)
                if report.requests_completed > look_after:
                    looks.append(_resident(play))

        await asyncio.gather(*(play_next() for _ in range(CONCURRENCY)))
        samples.append({name: statistics.median(look[name] for look in looks) for name in looks[0]})


def _resident(play: Play) -> dict[str, int]:
    """Bytes of each daemon beside pools and ring."""
    daemons = (play.pair.decode, play.pair.prefill)
    return {daemon.process.name: sample_process(daemon.process.pid).private_bytes for daemon in daemons}
