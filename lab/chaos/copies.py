"""A writer that is stopped, killed or told to abort while half of its slice lies in the shared ring.

Checksums are off here: nothing repairs a stray byte, so the comparison of every byte would show it.
"""

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from lab.chaos.carrying import begin, failed_with, passes
from lab.chaos.cluster import WAIT_S, Cluster, ClusterOptions, log_of, send, suspend
from lab.chaos.expectations import expect, until
from lab.chaos.scenario import Findings, Scenario, deployed
from lab.chaos.timers import FENCE_S, QUARANTINE_S
from lab.pair import PRODUCT, Programs
from lab.stepping import DONE, HALF, CopySteps

WRITERS = 2
"""Copies of one chunk: one per prefill rank, into the one decode rank."""
OWN_SLACK_S = 10.0
"""Added to timers that are waited for, since this machine may be slow."""


@asynccontextmanager
async def stepped(segments: Path | None = None, programs: Programs = PRODUCT) -> AsyncIterator[tuple[Cluster, list[CopySteps]]]:
    """Two prefill daemons with two ranks each, whose copies stop half-way, and one decode rank that gathers from both ranks."""
    with TemporaryDirectory(prefix="pd-staging-steps-") as folder:
        steps = [CopySteps(Path(folder) / str(group)) for group in range(2)]
        writers = {
            group: (sys.executable, "-m", "lab.stepped_daemon", str(step.directory), "serve")
            for group, step in enumerate(steps)
        }
        options = ClusterOptions(
            decode_tp=1,
            programs=programs,
            prefill_programs=writers,
            decode_settings=("--no-checksums",),
            prefill_settings=("--no-checksums",),
            segments=segments,
        )
        try:
            async with deployed(options) as cluster:
                yield cluster, steps
        finally:
            for step in steps:
                step.close()


async def stopped_in_copy() -> Findings:
    """Stop a prefill half-way, have its region replaced, and let it go on while another one is half-way in the new region."""
    async with stepped() as (cluster, (victims_steps, others_steps)):
        victim = await begin(cluster, 0, chunks=2)
        await victims_steps.until(HALF, WRITERS, WAIT_S, "the victim's copies are half done")
        await suspend(cluster.prefills[0])
        victims_steps.go(WRITERS)
        stopped = time.monotonic()
        other = await begin(cluster, 1, chunks=3)
        await until(FENCE_S + OWN_SLACK_S, "the grant is quarantined", lambda: quarantined_by(cluster, "prefill0-"))
        await others_steps.until(HALF, WRITERS, QUARANTINE_S + OWN_SLACK_S, "the other prefill writes into a new region")
        went_on = time.monotonic()
        expect(await cluster.count("regions_replaced") == 1, "the other prefill wrote although the region was not replaced")
        expect("region_replaced" in log_of(cluster.decode), "the log does not say that the region was replaced")
        expect(not victims_steps.seen(DONE), "the stopped prefill went on copying")
        ring = the_ring(cluster)
        before = ring.read_bytes()
        send(cluster.prefills[0], signal.SIGCONT)
        continued = time.monotonic()
        await victims_steps.until(DONE, WRITERS, WAIT_S, "the stopped copies end")
        expect(ring.read_bytes() == before, "the late copies changed bytes of the region that others write")
        others_steps.go()
        victims_steps.go()
        await other.completes()
        recovered = await victim.completes()
        await asyncio.gather(passes(cluster, 0), passes(cluster, 1))
        await cluster.until_drained()
        await cluster.stop_in_order()
    return Findings(recovered - continued, {"others_went_on_s": went_on - stopped, "ring_bytes_compared": len(before)})


async def killed_in_copy() -> Findings:
    """Kill a prefill half-way: the kernel proves that it is gone, so its region is free again without being replaced."""
    async with stepped() as (cluster, (victims_steps, others_steps)):
        victim = await begin(cluster, 0, chunks=2)
        await victims_steps.until(HALF, WRITERS, WAIT_S, "the victim's copies are half done")
        other = await begin(cluster, 1, chunks=3)
        others_steps.go()
        killed = time.monotonic()
        await cluster.kill(cluster.prefills[0])
        failed = failed_with(await victim.ends_on_decode(), {"prefill_gone"})
        recovered = await other.completes()
        expect(not await cluster.count("regions_replaced"), "the region was replaced although the writer was proven dead")
        victims_steps.go()
        await cluster.start(cluster.prefills[0])
        await passes(cluster, 0)
        await cluster.until_drained()
        await cluster.stop_in_order()
    return Findings(recovered - killed, {"failed_elsewhere_s": failed - killed})


async def aborted_in_copy() -> Findings:
    """Abort a room on the decode side while its writers are half-way: nobody gets the region before they have ended."""
    async with stepped() as (cluster, (victims_steps, others_steps)):
        victim = await begin(cluster, 0, chunks=2)
        await victims_steps.until(HALF, WRITERS, WAIT_S, "the victim's copies are half done")
        decode = (await cluster.decode.available()).client
        await asyncio.wrap_future(decode.abort_room(victim.room, 0, "the user went away"))
        aborted = time.monotonic()
        failed = failed_with(await victim.ends_on_decode(), {"aborted"})
        other = await begin(cluster, 1, chunks=3)
        await asyncio.sleep(QUARANTINE_S / 3)
        expect(not others_steps.seen(HALF), "another room was written while a writer of the aborted one was still writing")
        victims_steps.go()
        ended = time.monotonic()
        await others_steps.until(HALF, WRITERS, WAIT_S, "the other prefill gets the region")
        others_steps.go()
        recovered = await other.completes()
        failed_with(await victim.ends_on_prefill(), {"aborted_by_decode"})
        expect(not await cluster.count("regions_replaced"), "the region was replaced although every writer answered")
        await asyncio.gather(passes(cluster, 0), passes(cluster, 1))
        await cluster.until_drained()
        await cluster.stop_in_order()
    return Findings(recovered - ended, {"failed_here_s": max(0.0, failed - aborted)})


async def quarantined_by(cluster: Cluster, prefill: str) -> bool:
    """Whether a grant is visibly quarantined, and every writer that lacks proof is a rank of this prefill."""
    for rank in await cluster.inspect_decode():
        owners = {session["session"]: session["prefill_id"] for session in rank["sessions"]}
        for grant in rank["grants"]:
            missing = [owners.get(writer["session"], "") for writer in grant["writers"] if not writer["quiet"]]
            if grant["quarantined"] and missing and all(owner.startswith(prefill) for owner in missing):
                return True
    return False


def the_ring(cluster: Cluster) -> Path:
    """The one decode rank's present segment."""
    found = [path for path in cluster.segments.iterdir() if path.suffix != ".lock"]
    expect(len(found) == 1, f"expected one segment, found {sorted(path.name for path in found)}")
    return found[0]


COPIES = (
    Scenario(
        "prefill_stopped_in_copy",
        "A writer stopped in the middle of a copy and continued later touches no byte that belongs to someone else.",
        stopped_in_copy,
    ),
    Scenario(
        "prefill_killed_in_copy", "A writer killed in the middle of a copy gives its region back by its death.", killed_in_copy
    ),
    Scenario("room_aborted_in_copy", "An aborted room's region is free only when its writers have ended.", aborted_in_copy),
)
