"""SIGSTOP and SIGCONT: a process that does not run is not dead, and whoever was waiting for it ends with the right bytes."""

import asyncio
import signal
import time
from functools import partial

from lab.chaos.carrying import begin, passes
from lab.chaos.cluster import ClusterOptions, send, suspend
from lab.chaos.expectations import expect
from lab.chaos.scenario import Findings, Scenario, deployed
from lab.chaos.timers import FENCE_S, LEASE_S, QUARANTINE_S

SHORT_S, LONG_S = LEASE_S / 2, 2 * FENCE_S


async def prefill_stopped(plane: str, *, long: bool) -> Findings:
    """Stop a prefill that has just been given work; the other one's rooms need not wait for it to continue."""
    async with deployed(ClusterOptions(planes=(plane, plane))) as cluster:
        await asyncio.gather(passes(cluster, 0), passes(cluster, 1))
        stopped = cluster.prefills[0]
        held = [await begin(cluster, 0, chunks=6) for _ in range(4)]
        await suspend(stopped)
        bystanders = [await begin(cluster, 1) for _ in range(4)]
        if long:
            for bystander in bystanders:
                await bystander.completes(FENCE_S + QUARANTINE_S + 10.0)
            await asyncio.sleep(LONG_S)
        else:
            await asyncio.sleep(SHORT_S)
        fenced, replaced = await cluster.count("sessions_fenced"), await cluster.count("regions_replaced")
        send(stopped, signal.SIGCONT)
        continued = time.monotonic()
        recovered = max([await room.completes() for room in held])
        if not long:
            expect(not fenced and not replaced, f"within its lease {fenced} sessions were fenced, {replaced} regions replaced")
            for bystander in bystanders:
                await bystander.completes()
        else:
            expect(bool(fenced), "a prefill that was silent for longer than its lease was not fenced")
        await cluster.until_drained()
        await cluster.stop_in_order()
    return Findings(recovered - continued, {"sessions_fenced": fenced, "regions_replaced": replaced})


async def decode_stopped(plane: str, *, long: bool) -> Findings:
    """Stop the decode daemon under load: when it runs again it reads what was sent meanwhile before it judges anybody."""
    async with deployed(ClusterOptions(planes=(plane, plane))) as cluster:
        await asyncio.gather(passes(cluster, 0), passes(cluster, 1))
        held = [await begin(cluster, group, chunks=6) for group in (0, 1, 0, 1)]
        await suspend(cluster.decode)
        await asyncio.sleep(LONG_S if long else SHORT_S)
        lapsed = sum([await cluster.count_prefill(group, "leases_lapsed") for group in (0, 1)])
        send(cluster.decode, signal.SIGCONT)
        continued = time.monotonic()
        recovered = max([await room.completes() for room in held])
        expect(
            bool(lapsed) == long,
            f"{lapsed} leases lapsed while the decode daemon was stopped for {'long' if long else 'short'}",
        )
        if not long:
            fenced = await cluster.count("sessions_fenced")
            expect(not fenced, f"after its own pause it fenced {fenced} sessions that had spoken all the time")
        expect(not await cluster.count("regions_replaced"), "a region was replaced although every writer could answer")
        await asyncio.gather(passes(cluster, 0), passes(cluster, 1))
        await cluster.until_drained()
        await cluster.stop_in_order()
    return Findings(recovered - continued, {"leases_lapsed": lapsed})


STOPS = tuple(
    Scenario(f"{side}_stopped_{'beyond' if long else 'within'}_lease_{plane}", claim, partial(play, plane, long=long))
    for side, play, claim in (
        ("prefill", prefill_stopped, "A stopped prefill holds nobody else up, and its rooms complete once it continues."),
        ("decode", decode_stopped, "A stopped decode daemon blames nobody for its pause, and every room completes."),
    )
    for long in (False, True)
    for plane in ("shm", "zmq")
)
