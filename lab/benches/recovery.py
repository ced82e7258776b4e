"""``recovery``: how much longer a room takes if one message of it is lost, and how soon rooms go through after a death.

Real daemons with their default timers. A proxy loses the first message of a kind after a room was begun; the delay is what that
room takes beyond the median of undisturbed ones. After a SIGKILL time runs from the first answer of the next life to the end of
the first new room.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from random import Random

from decode_service.config import DecodeServiceConfig
from lab.benches.effort import Effort
from lab.benches.rows import Row, median, percentile, ratio_at_most
from lab.chaos.carrying import begin, expect_room, passes
from lab.chaos.cluster import WAIT_S, Cluster, ClusterOptions, Decode, Prefill
from lab.chaos.expectations import within
from lab.chaos.scenario import deployed
from lab.chaos.timers import default_s
from lab.proxy import PROXY_HOST, MessageProxy
from lab.zmtp import Kind, Part
from prefill_service.config import PrefillServiceConfig
from runtime.settings import Settings, declarations

Story = Callable[[Cluster], Awaitable[float]]
"""Plays one room and says how long it took."""


@dataclass(frozen=True, slots=True)
class Guard:
    """A kind of message, the timer that repeats it, and the story in which it matters."""

    kind: str
    timer: str
    story: Story

    @property
    def limit_s(self) -> float:
        """Twice the timer."""
        return 2 * default_s(PrefillServiceConfig if self.timer != "abort_retry_s" else DecodeServiceConfig, self.timer)


class LosingProxy(MessageProxy):
    """Loses the next message of one kind."""

    lose = b""
    lost = 0

    async def _forward(self, part: Part, writer: asyncio.StreamWriter) -> bool:
        # A message begins with the flags of its first frame, that frame's length, and the name of its kind.
        if self.lose and part.kind is Kind.MESSAGE and part.data[1] == len(self.lose) and part.data[2:].startswith(self.lose):
            self.lose = b""
            self.lost += 1
            return True
        return await super()._forward(part, writer)


async def transfer(cluster: Cluster) -> float:
    """A room of two chunks through a ring of one: requests, grants, a gate that waits, words and verdicts."""
    began = time.monotonic()
    return await passes(cluster, 0, chunks=2) - began


async def first_transfer(cluster: Cluster) -> float:
    """As ``transfer``, by way of a new session."""
    prefill = (await cluster.prefills[0].available()).client
    await asyncio.wrap_future(prefill.remove_peer(0, cluster.endpoints[0]))
    return await transfer(cluster)


async def abort(cluster: Cluster) -> float:
    """A room that the decode's engine gives up in the middle; it lasts until the prefill's engine knows."""
    room = await expect_room(cluster, 0, chunks=3)
    await within(WAIT_S, "the room is begun", room.submit(1))
    began = time.monotonic()
    await asyncio.wrap_future(room.decode.abort_room(room.room, 0, "given up"))
    ended = max(ending.at for ending in await room.ends_on_prefill())
    await room.ends_on_decode()
    room.release()
    return ended - began


GUARDS = (
    Guard("SUBSCRIBE", "subscribe_retry_s", first_transfer),
    Guard("SUBSCRIBED", "subscribe_retry_s", first_transfer),
    Guard("STAGING_REQ", "request_retry_s", transfer),
    Guard("STAGING_RSP", "request_retry_s", transfer),
    Guard("WATERMARK", "probe_s", transfer),
    Guard("CHUNK_READY", "ready_retry_s", transfer),
    Guard("CHUNK_DONE", "ready_retry_s", transfer),
    Guard("ABORT", "abort_retry_s", abort),
)


def bench_recovery(effort: Effort) -> Iterator[Row]:
    """Each kind several times, then both deaths."""
    effort.view.phase("recovery", len(GUARDS) + 2)
    yield from asyncio.run(_losses(effort))
    yield from asyncio.run(_deaths(effort))


def default_timers(settings: type[Settings]) -> tuple[str, ...]:
    """Flags that undo the short timers of the chaos scenarios."""
    rows = [row for row in declarations(settings) if row.unit == "s"]
    return tuple(text for row in rows for text in (row.flag, row.default_text(settings)))


def options(peer_host: str) -> ClusterOptions:
    """One prefill rank, one decode rank, a ring of one chunk, and the product's timers."""
    return ClusterOptions(
        planes=("shm",),
        prefill_tp=1,
        decode_tp=1,
        ring_chunks=1,
        decode_settings=default_timers(DecodeServiceConfig),
        prefill_settings=default_timers(PrefillServiceConfig),
        peer_host=peer_host,
    )


async def _losses(effort: Effort) -> list[Row]:
    rows, rounds = [], effort.pick(2, 30)
    async with deployed(options(PROXY_HOST)) as cluster, LosingProxy(cluster.all_ports, Random(1)) as proxy:
        await passes(cluster, 0)
        for done, guard in enumerate(GUARDS, start=1):
            usual = median([await guard.story(cluster) for _ in range(rounds)])
            delays = [await _loss(cluster, proxy, guard) - usual for _ in range(rounds)]
            rows.append(
                Row(f"recovery/lost {guard.kind}, p99", percentile(delays, 99), "s", guard.limit_s, (ratio_at_most(1.0),))
            )
            effort.view.advance(done)
    return rows


async def _loss(cluster: Cluster, proxy: LosingProxy, guard: Guard) -> float:
    before, proxy.lose = proxy.lost, guard.kind.encode("ascii")
    took = await guard.story(cluster)
    if proxy.lost == before:
        raise RuntimeError(f"no {guard.kind} was sent that could have been lost")
    return took


async def _deaths(effort: Effort) -> list[Row]:
    rows, rounds = [], effort.pick(1, 10)
    async with deployed(options("127.0.0.1")) as cluster:
        await passes(cluster, 0)
        deaths: list[tuple[Prefill | Decode, str, float]] = [
            (cluster.prefills[0], "subscribe_retry_s", default_s(PrefillServiceConfig, "subscribe_retry_s")),
            (cluster.decode, "heartbeat_s", default_s(DecodeServiceConfig, "heartbeat_s")),
        ]
        for done, (daemon, timer, timer_s) in enumerate(deaths, start=1):
            delays = [await _death(cluster, daemon) for _ in range(rounds)]
            name = f"recovery/killed and started again: {daemon.process.name}, p99"
            rows.append(Row(name, percentile(delays, 99), "s", 2 * timer_s, (ratio_at_most(1.0),), f"guarded by {timer}"))
            effort.view.advance(len(GUARDS) + done)
    return rows


async def _death(cluster: Cluster, daemon: Prefill | Decode) -> float:
    """Kill a daemon in the middle of a room; seconds from its next life's first answer to the end of the next room."""
    await begin(cluster, 0, chunks=3, submit=1)
    await cluster.kill(daemon)
    await cluster.start(daemon)
    back = time.monotonic()
    return await passes(cluster, 0) - back
