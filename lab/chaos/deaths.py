"""SIGKILL in the middle of rooms: the other side says at once which rooms are lost and why, and a restart is all it takes."""

import asyncio
import time
from functools import partial

from lab.chaos.carrying import Carrying, begin, failed_with, gathered, passes
from lab.chaos.cluster import Cluster, ClusterOptions
from lab.chaos.expectations import expect, until
from lab.chaos.scenario import Findings, Scenario, deployed

PLANES = ("shm", "zmq")
LOST_WITH_DECODE = {"decode_restarted", "unknown_room"}
"""The second where a decode rank had not yet answered for the room: it is asked again, and its new life knows no such room."""


async def prefill_killed(plane: str) -> Findings:
    """Kill a prefill in the middle of three rooms while another one's room is in the middle as well."""
    async with deployed(ClusterOptions(planes=(plane, plane))) as cluster:
        await asyncio.gather(passes(cluster, 0), passes(cluster, 1))
        victims = [await begin(cluster, 0, chunks=4, submit=2) for _ in range(3)]
        bystander = await begin(cluster, 1, chunks=6, submit=3)
        await until_half_way(cluster, victims)
        killed = time.monotonic()
        await cluster.kill(cluster.prefills[0])
        # The kernel's lock shows on shm that the process is gone. Elsewhere a silent peer may live: its next life tells.
        failed = [await fails_on_decode(victim) for victim in victims] if plane == "shm" else []
        await cluster.start(cluster.prefills[0])
        back = time.monotonic()
        recovered = await passes(cluster, 0)
        failed = failed or [await fails_on_decode(victim) for victim in victims]
        await bystander.submit()
        await bystander.completes()
        await cluster.until_drained()
        await cluster.stop_in_order()
    return Findings(recovered - back, {"failed_elsewhere_s": max(failed) - killed, "before_restart": plane == "shm"})


async def decode_killed(plane: str) -> Findings:
    """Kill the decode daemon in the middle of rooms of two prefills, and start it on the same ports."""
    async with deployed(ClusterOptions(planes=(plane, plane))) as cluster:
        await asyncio.gather(passes(cluster, 0), passes(cluster, 1))
        victims = [await begin(cluster, group, chunks=4, submit=2) for group in (0, 1, 0, 1)]
        await until_half_way(cluster, victims)
        stale = {path.name for path in cluster.segments.iterdir()}
        killed = time.monotonic()
        await cluster.kill(cluster.decode)
        await cluster.start(cluster.decode)
        back = time.monotonic()
        recovered = max(await asyncio.gather(passes(cluster, 0), passes(cluster, 1)))
        failed = [failed_with(await victim.ends_on_prefill(), LOST_WITH_DECODE) for victim in victims]
        left = stale & {path.name for path in cluster.segments.iterdir()}
        expect(not left, f"the new life left segments of the old one: {sorted(left)}")
        await cluster.until_drained()
        await cluster.stop_in_order()
    facts = {"failed_elsewhere_s": max(failed) - killed, "segments_swept": len(stale)}
    return Findings(recovered - back, facts)


async def both_killed() -> Findings:
    """Kill everything at once and start it again in the opposite order: nothing of the former lives gets in the way."""
    async with deployed() as cluster:
        await asyncio.gather(passes(cluster, 0), passes(cluster, 1))
        victims = [await begin(cluster, group, chunks=4, submit=2) for group in (0, 1)]
        await until_half_way(cluster, victims)
        await asyncio.gather(*(cluster.kill(daemon) for daemon in cluster.daemons))
        for daemon in reversed(cluster.daemons):
            await cluster.start(daemon)
        back = time.monotonic()
        recovered = max(await asyncio.gather(passes(cluster, 0), passes(cluster, 1)))
        await asyncio.gather(*(gathered(victim.decode_endings) for victim in victims))
        await cluster.until_drained()
        await cluster.stop_in_order()
    return Findings(recovered - back)


async def until_half_way(cluster: Cluster, carryings: list[Carrying]) -> None:
    """Wait until every decode rank has scattered the two chunks of each room that were submitted, and waits for the others."""
    rooms = {carrying.room for carrying in carryings}

    async def half_way() -> bool:
        found = [room for rank in await cluster.inspect_decode() for room in rank["rooms"] if room["room"] in rooms]
        return len(found) == len(rooms) * cluster.shape.decode_ranks and all(room["chunks_scattered"] == 2 for room in found)

    await until(10.0, "all rooms are in the middle", half_way)


async def fails_on_decode(victim: Carrying) -> float:
    """When the decode ranks had failed this room of a dead prefill."""
    return failed_with(await victim.ends_on_decode(), {"prefill_gone"})


DEATHS = (
    *(
        Scenario(
            f"prefill_killed_{plane}",
            "A killed prefill's rooms fail on the decode ranks, others go on, and its next life is served at once.",
            partial(prefill_killed, plane),
        )
        for plane in PLANES
    ),
    *(
        Scenario(
            f"decode_killed_{plane}",
            "A killed decode daemon's rooms fail on every prefill, and new ones go through as soon as it is back.",
            partial(decode_killed, plane),
        )
        for plane in PLANES
    ),
    Scenario("both_killed", "After the death of everything nothing of the former lives is left or in the way.", both_killed),
)
