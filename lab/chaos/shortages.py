"""Nothing left of something: room in a send queue, file descriptors, shared memory, ports.

The daemon that runs short says of what, survives, keeps what it has, and goes on when there is enough again.
"""

import asyncio
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from lab.chaos.carrying import begin, failed_with, passes
from lab.chaos.cluster import WAIT_S, Cluster, ClusterOptions, Decode, Prefill, log_of, send, suspend
from lab.chaos.copies import OWN_SLACK_S, WRITERS, stepped
from lab.chaos.expectations import Unavailable, expect, until, within
from lab.chaos.scenario import Findings, Scenario, deployed
from lab.chaos.silent_subscriber import PREFILL_ID, SilentSubscriber
from lab.chaos.timers import FENCE_S, HEARTBEAT_S, QUARANTINE_S
from lab.pair import Programs
from lab.process import DaemonDied
from lab.stepping import DONE, HALF

CHUNKS_TO_FILL_A_QUEUE = 100
"""Of each room while a queue is being filled; every free is one watermark."""
MAX_ROOMS_TO_FILL = 40
NARROW = Programs(decode=(sys.executable, "-m", "lab.narrow_daemon", "serve"))


async def send_queue_full() -> Findings:
    """Fill the queue of a subscriber that reads nothing: frees cost what they did before, and when it falls silent it goes."""
    options = ClusterOptions(planes=("zmq",), prefill_tp=1, decode_tp=1, chunk_tokens=16, programs=NARROW)
    async with deployed(options) as cluster:
        endpoint, layout = cluster.endpoints[0], cluster.shape.prefill_layout(0)
        await passes(cluster, 0)
        before_s = await duration_of_a_room(cluster)
        async with SilentSubscriber(endpoint, layout, cluster.shape.chunk_tokens, HEARTBEAT_S) as silent:
            rooms = 0
            while not await watermark_stays_owed(cluster):
                rooms += 1
                expect(rooms <= MAX_ROOMS_TO_FILL, f"{rooms * CHUNKS_TO_FILL_A_QUEUE} watermarks did not fill the queue")
                await passes(cluster, 0, CHUNKS_TO_FILL_A_QUEUE)
            full_s = await duration_of_a_room(cluster)
            expect(await watermark_stays_owed(cluster), "the silent subscriber's queue was full and is not any more")
            expect('"reason": "full"' in log_of(cluster.decode), "the log does not say that a queue is full")
            await silent.fall_silent()
            fell_silent = time.monotonic()
            await until(FENCE_S + OWN_SLACK_S, "the silent subscriber is removed", lambda: is_gone(cluster, PREFILL_ID))
            removed = time.monotonic()
            await passes(cluster, 0)
            await cluster.until_drained()
            await cluster.stop_in_order()
    facts = {"room_s": before_s, "room_with_full_queue_s": full_s, "watermarks_sent": rooms * CHUNKS_TO_FILL_A_QUEUE}
    expect(full_s < 5 * before_s + 0.5, f"a full queue slows frees down: {facts}")
    return Findings(removed - fell_silent, facts)


async def descriptors_exhausted_on_decode() -> Findings:
    """Leave the decode daemon no free descriptor while a new prefill connects; then give it some."""
    async with deployed(ClusterOptions(planes=("zmq", "shm"))) as cluster:
        await passes(cluster, 0)
        with no_more_descriptors(cluster.decode):
            refused = await begin(cluster, 1)
            await passes(cluster, 0)
            await asyncio.sleep(FENCE_S)
            expect(not any(ending.done() for ending in refused.prefill_endings), "a room ended that could only wait")
        freed = time.monotonic()
        recovered = await refused.completes()
        await cluster.until_drained()
        await cluster.stop_in_order()
    return Findings(recovered - freed)


async def descriptors_exhausted_on_prefill() -> Findings:
    """Leave a prefill daemon no free descriptor before it has connected anywhere; then give it some."""
    async with deployed() as cluster:
        await passes(cluster, 1)
        with no_more_descriptors(cluster.prefills[0]):
            waiting = await begin(cluster, 0)
            await passes(cluster, 1)
            await asyncio.sleep(FENCE_S)
            expect("too many open files" in log_of(cluster.prefills[0]).lower(), "the log does not name the shortage")
        freed = time.monotonic()
        endings = [*await waiting.ends_on_decode(), *await waiting.ends_on_prefill()]
        failures = sorted({ending.code for ending in endings if not ending.done})
        expect(all(ending.message for ending in endings if not ending.done), "a room failed without a reason")
        recovered = await passes(cluster, 0)
        await cluster.until_drained()
        await cluster.stop_in_order()
    return Findings(recovered - freed, {"room_during_the_shortage": failures or ["done"]})


async def descriptors_too_few_at_start() -> Findings:
    """Start a decode daemon with a limit on open files that cannot do: it says so and leaves nothing."""
    async with deployed() as cluster:
        limited = ["/bin/sh", "-c", 'ulimit -n 40; exec "$@"', "sh", *cluster.decode.process.command, "--decode-id", "other"]
        started = time.monotonic()
        ended = await run_to_end(limited)
        refused = time.monotonic()
        expect(ended.returncode == 1, f"expected status 1, got {ended.returncode}: {ended.stderr[-500:]}")
        expect(
            "limit of 40; raise the limit on open files" in ended.stderr,
            f"the error does not say what to do: {ended.stderr[-500:]}",
        )
        await asyncio.gather(passes(cluster, 0), passes(cluster, 1))
        await cluster.stop_in_order()
    return Findings(refused - started, {"error": ended.stderr.strip().splitlines()[-1]})


async def shared_memory_full_at_start() -> Findings:
    """Start a decode daemon whose ring is larger than its shared memory: it says how much there is, and leaves nothing."""
    with small_tmpfs(1 << 20) as segments:
        started, text = time.monotonic(), ""
        try:
            async with deployed(ClusterOptions(segments=segments, decode_settings=("--ring-bytes", "4MiB"))):
                expect(False, "the daemon started with a ring larger than the memory there is")
        except DaemonDied as died:
            text = str(died)
        refused = time.monotonic()
        expect(f"{segments} is full" in text and "lower ring_bytes" in text, f"the error does not say what is full: {text}")
        expect(not list(segments.iterdir()), "the refused start left files")
    return Findings(refused - started)


async def shared_memory_full_at_replacement() -> Findings:
    """Fill shared memory while a stopped writer pins the ring: no replacement can be had, so everybody waits for proof."""
    with small_tmpfs(1 << 20) as segments:
        async with stepped(segments) as (cluster, (victims_steps, others_steps)):
            others_steps.go()
            await passes(cluster, 1)
            victim = await begin(cluster, 0, chunks=2)
            await victims_steps.until(HALF, WRITERS, WAIT_S, "the victim's copies are half done")
            await suspend(cluster.prefills[0])
            victims_steps.go()
            ballast = fill_up(segments)
            other = await begin(cluster, 1, chunks=3)
            limit_s = FENCE_S + QUARANTINE_S + OWN_SLACK_S
            failed_with(await within(limit_s, "the pinned room fails", victim.ends_on_decode()), {"staging_pinned"})
            stuck = [rank["stuck_reason"] for rank in await cluster.inspect_decode()]
            expect(all("is full" in reason for reason in stuck), f"inspection does not say why the ring is stuck: {stuck}")
            expect("region_replacement_failed" in log_of(cluster.decode), "the log does not say that the replacement failed")
            expect(not any(ending.done() for ending in other.decode_endings), "another room ended although the ring is pinned")
            expect(not victims_steps.seen(DONE), "the stopped prefill went on copying")
            send(cluster.prefills[0], signal.SIGCONT)
            continued = time.monotonic()
            await victims_steps.until(DONE, WRITERS, WAIT_S, "the stopped copies end")
            recovered = await other.completes()
            ballast.unlink()
            await victim.ends_on_prefill()
            await asyncio.gather(passes(cluster, 0), passes(cluster, 1))
            expect(not await cluster.count("regions_replaced"), "a region was replaced without memory for it")
            await cluster.until_drained()
            await cluster.stop_in_order()
    return Findings(recovered - continued, {"stuck_reason": stuck[0]})


async def port_taken() -> Findings:
    """Start a second decode daemon on the ports of a running one: it names the port and goes, and the first notices nothing."""
    async with deployed() as cluster:
        under_way = [await begin(cluster, group) for group in (0, 1)]
        started = time.monotonic()
        ended = await run_to_end([*cluster.decode.process.command, "--decode-id", "other"])
        refused = time.monotonic()
        expect(ended.returncode == 1, f"expected status 1, got {ended.returncode}: {ended.stderr[-500:]}")
        expected = f"listen on {cluster.endpoints[0]}: the address is in use"
        expect(expected in ended.stderr, f"the error does not name the port: {ended.stderr[-500:]}")
        for room in under_way:
            await room.completes()
        await cluster.until_drained()
        await cluster.stop_in_order()
    return Findings(refused - started)


async def duration_of_a_room(cluster: Cluster) -> float:
    """Seconds that a room of a hundred chunks takes, the better of two."""
    took = []
    for _ in range(2):
        began = time.monotonic()
        took.append(await passes(cluster, 0, chunks=100) - began)
    return min(took)


async def watermark_stays_owed(cluster: Cluster) -> bool:
    """Whether some session cannot be sent the current watermark, now and after everybody else has certainly had it."""
    await asyncio.sleep(2 * HEARTBEAT_S)
    return any(rank["watermarks_owed"] and rank["sends"].get("full", 0) for rank in await cluster.inspect_decode())


async def is_gone(cluster: Cluster, prefill_id: str) -> bool:
    """Whether no decode rank knows a session of that prefill any more."""
    sessions = [session for rank in await cluster.inspect_decode() for session in rank["sessions"]]
    return all(session["prefill_id"] != prefill_id for session in sessions)


@contextmanager
def no_more_descriptors(daemon: Decode | Prefill) -> Iterator[None]:
    """While open, the running daemon can open nothing more."""
    pid = daemon.process.pid
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    highest = max(int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir())
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (highest + 1, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def small_tmpfs(size: int) -> Iterator[Path]:
    """A directory in memory of its own that holds ``size`` bytes. Raises ``Unavailable`` without the right to mount one."""
    with TemporaryDirectory(prefix="pd-staging-tmpfs-") as folder:
        command = [shutil.which("mount") or "mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", folder]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            text = str(getattr(error, "stderr", "") or error).strip()
            raise Unavailable(f"a small tmpfs cannot be mounted here ({text}): run this as root with CAP_SYS_ADMIN") from error
        try:
            yield Path(folder)
        finally:
            subprocess.run([shutil.which("umount") or "umount", "--lazy", folder], check=True, capture_output=True)


def fill_up(directory: Path) -> Path:
    """Write until nothing more fits; the file that did it."""
    ballast = directory / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)) == 4096:
                pass
        except OSError:
            pass
    return ballast


async def run_to_end(command: list[str]) -> "subprocess.CompletedProcess[str]":
    """Run a command that must end by itself."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PD_STAGING_")}
    call = asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=WAIT_S, check=False, env=kept)
    return await call


SHORTAGES = (
    Scenario(
        "send_queue_full", "A subscriber that does not read costs a free nothing; it is named, and removed.", send_queue_full
    ),
    Scenario("descriptors_exhausted_on_decode", "What is open works on, what is new waits.", descriptors_exhausted_on_decode),
    Scenario(
        "descriptors_exhausted_on_prefill", "The shortage is named, and over when it is over.", descriptors_exhausted_on_prefill
    ),
    Scenario(
        "descriptors_too_few_at_start", "A start that cannot succeed says which limit to raise.", descriptors_too_few_at_start
    ),
    Scenario("shared_memory_full_at_start", "A ring that does not fit is refused in words.", shared_memory_full_at_start),
    Scenario(
        "shared_memory_full_at_replacement",
        "A pinned ring that cannot be replaced fails its rooms, says so, and waits for proof.",
        shared_memory_full_at_replacement,
    ),
    Scenario("port_taken", "Two daemons never share a port.", port_taken),
)
