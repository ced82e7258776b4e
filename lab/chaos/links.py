"""What networks do: messages lost, repeated, late, connections cut, paths that go silent, and a link that is down for a while.

One prefill moves its bytes through shared memory, so that only control messages are harmed; the other sends them through the
same bad network.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from random import Random

from lab.chaos.carrying import Carrying, begin, passes
from lab.chaos.cluster import Cluster, ClusterOptions
from lab.chaos.expectations import expect
from lab.chaos.scenario import Findings, Scenario, deployed
from lab.chaos.timers import FENCE_S, LEASE_S
from lab.netns import DECODE_HOST, LinkedNamespaces
from lab.proxy import FAIR, PROXY_HOST, MessageProxy, Weather

WEATHER_S = 1.5
ROOMS = 8
"""Per prefill."""

LOSS = Weather(drop=0.15)
REPETITION = Weather(duplicate=0.3)
LATENESS = Weather(delay=0.1, delay_s=0.08)
BREAKAGE = Weather(cut=0.01)
STORM = Weather(drop=0.08, duplicate=0.1, delay=0.03, delay_s=0.05, cut=0.004)


@asynccontextmanager
async def proxied() -> AsyncIterator[tuple[Cluster, MessageProxy]]:
    """A cluster whose prefills reach the decode ranks through a proxy only; both have carried a room already."""
    async with (
        deployed(ClusterOptions(planes=("shm", "zmq"), peer_host=PROXY_HOST)) as cluster,
        MessageProxy(cluster.all_ports, Random(5)) as proxy,
    ):
        await asyncio.gather(passes(cluster, 0), passes(cluster, 1))
        yield cluster, proxy


async def bad_weather(weather: Weather, signs: Sequence[str]) -> Findings:
    """Move rooms through bad weather; when it is fair again everything is soon through, and every byte is right."""
    async with proxied() as (cluster, proxy):
        proxy.weather = weather
        rooms = [await begin(cluster, group) for _ in range(ROOMS) for group in (0, 1)]
        await asyncio.sleep(WEATHER_S)
        proxy.weather = FAIR
        befallen = {sign: proxy.befallen[sign] for sign in signs}
        fair = time.monotonic()
        recovered = await all_complete(rooms)
        expect(all(befallen.values()), f"the weather was not bad enough to show anything: {befallen}")
        await end_well(cluster)
    return Findings(max(0.0, recovered - fair), befallen)


async def connections_cut() -> Findings:
    """Cut every connection at once, three times, in the middle of rooms."""
    async with proxied() as (cluster, proxy):
        rooms = []
        for _ in range(3):
            rooms += [await begin(cluster, group) for group in (0, 1)]
            await proxy.cut()
            await asyncio.sleep(0.1)
        cut = time.monotonic()
        recovered = await all_complete(rooms)
        await end_well(cluster)
    return Findings(max(0.0, recovered - cut), {"cut": proxy.befallen["cut"]})


async def path_silent(silent_s: float) -> Findings:
    """Hold every message back without closing anything, then let all of them arrive late."""
    async with proxied() as (cluster, proxy):
        rooms = [await begin(cluster, group) for _ in range(ROOMS) for group in (0, 1)]
        proxy.hold()
        await asyncio.sleep(silent_s)
        proxy.release()
        released = time.monotonic()
        recovered = await all_complete(rooms)
        facts = {"sessions_fenced": await cluster.count("sessions_fenced"), "silent_s": silent_s}
        await end_well(cluster)
    return Findings(max(0.0, recovered - released), facts)


async def link_down(down_s: float) -> Findings:
    """Two hosts, one link: down in the middle of rooms, and up again."""
    with LinkedNamespaces() as hosts:
        options = ClusterOptions(
            planes=("zmq", "zmq"),
            listen_host=DECODE_HOST,
            peer_host=DECODE_HOST,
            decode_prefix=hosts.inside(hosts.decode),
            prefill_prefix=hosts.inside(hosts.prefill),
            decode_settings=("--insecure",),
            prefill_settings=("--insecure",),
        )
        async with deployed(options) as cluster:
            await asyncio.gather(passes(cluster, 0), passes(cluster, 1))
            rooms = [await begin(cluster, group, chunks=6) for group in (0, 1)]
            hosts.cut()
            rooms += [await begin(cluster, group) for _ in range(4) for group in (0, 1)]
            await asyncio.sleep(down_s)
            open_rooms = max(rank["room_count"] for rank in await cluster.inspect_decode())
            hosts.mend()
            mended = time.monotonic()
            recovered = await all_complete(rooms)
            facts = {"sessions_fenced": await cluster.count("sessions_fenced"), "down_s": down_s}
            expect(open_rooms > 0, "every room went through a link that was down")
            await end_well(cluster)
    return Findings(max(0.0, recovered - mended), facts)


async def all_complete(rooms: Sequence[Carrying]) -> float:
    """Wait for each, compare its bytes, and say when the last one was done."""
    return max([await room.completes() for room in rooms])


async def end_well(cluster: Cluster) -> None:
    """New rooms pass, the rings drain, and the daemons end in order."""
    await asyncio.gather(passes(cluster, 0), passes(cluster, 1))
    await cluster.until_drained()
    await cluster.stop_in_order()


LINKS = (
    *(
        Scenario(f"proxy_{name}", claim, partial(bad_weather, weather, signs))
        for name, weather, signs, claim in (
            ("drops", LOSS, ("dropped",), "No number of lost messages hangs a transfer or corrupts a byte."),
            ("duplicates", REPETITION, ("duplicated",), "A repeated message changes nothing."),
            ("delays", LATENESS, ("delayed",), "A late message is as good as a lost one."),
            ("breaks", BREAKAGE, ("cut",), "A connection may break behind any message."),
            ("storm", STORM, ("dropped", "duplicated", "delayed", "cut"), "All of it at once."),
        )
    ),
    Scenario("proxy_cuts_all", "All connections may break at the same moment.", connections_cut),
    Scenario(
        "path_silent_within_lease", "A silent path shorter than the lease costs its length.", partial(path_silent, LEASE_S / 2)
    ),
    Scenario("path_silent_beyond_lease", "Late messages of lost sessions harm nobody.", partial(path_silent, 2 * FENCE_S)),
    Scenario(
        "link_down_within_lease", "A link that is down shortly delays and loses nothing.", partial(link_down, LEASE_S / 2)
    ),
    Scenario(
        "link_down_beyond_lease", "A link that is down for long costs sessions, not rooms.", partial(link_down, 2 * FENCE_S)
    ),
)
