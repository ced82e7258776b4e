"""The course of a soak, and its verdict.

1. *Deaths*: every fault, kills included, for a third of the time.
2. *Warm-up*: every fault that leaves the processes alive.
3. Quiet: traffic pauses, everything drains, and the first sample is taken.
4. *The long stretch*: the same faults as in the warm-up. Every process lives through all of it, so what grows in it is seen.
5. Quiet again, and the last sample: nothing has grown, nothing is left, every count adds up. Then all daemons end in order.
"""

import asyncio
import contextlib
import copy
import time
from collections import Counter
from dataclasses import dataclass, field
from random import Random

from lab.chaos.cluster import WAIT_S, Cluster, ClusterOptions
from lab.chaos.expectations import NotAsExpected, until
from lab.chaos.scenario import deployed
from lab.progress import ProgressView
from lab.proxy import PROXY_HOST, MessageProxy
from lab.soak.faults import Faults
from lab.soak.sample import Sample, growth, rows_left, take_sample
from lab.soak.tally import Tally
from lab.soak.traffic import Traffic

DEATHS, WARM_UP = 0.3, 0.15
"""Shares of the whole time; the rest is the long stretch."""
REMEMBERED_S = 8
"""How long ended rooms are remembered and how long a room may take, so that tables are empty soon after a pause."""
SETTINGS = ("--room-deadline-s", f"{REMEMBERED_S}", "--room-deadline-cap", "4", "--recorder-bytes", "2MiB")
"""The flight recorder is so small that it is full, and grows no more, before the first sample."""
MACHINE_COUNTERS = (
    "sessions_opened",
    "sessions_fenced",
    "grants",
    "grants_quarantined",
    "regions_replaced",
    "chunks_scattered",
)


@dataclass(slots=True)
class SoakReport:
    """What a soak has shown. Flat and consistent exactly if ``problems`` is empty."""

    minutes: float
    seed: int
    tally: Tally = field(default_factory=Tally)
    faults: Counter[str] = field(default_factory=Counter)
    befallen: Counter[str] = field(default_factory=Counter)
    machine: Counter[str] = field(default_factory=Counter)
    """Counters of the decode machines over the long stretch."""
    before: Sample | None = None
    after: Sample | None = None
    duration_s: float = 0.0
    problems: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        """The JSON object."""
        return {
            "succeeded": not self.problems,
            "problems": self.problems,
            "minutes": self.minutes,
            "seed": self.seed,
            "duration_s": round(self.duration_s, 3),
            **self.tally.to_json(),
            "faults": dict(sorted(self.faults.items())),
            "messages": dict(sorted(self.befallen.items())),
            "long_stretch": dict(sorted(self.machine.items())),
            "before": None if self.before is None else self.before.to_json(),
            "after": None if self.after is None else self.after.to_json(),
        }


async def run_soak(minutes: float, seed: int, view: ProgressView) -> SoakReport:
    """Run it; what goes wrong is in the report."""
    report = SoakReport(minutes, seed)
    random = Random(seed)
    options = ClusterOptions(
        planes=("shm", "zmq"),
        peer_host=PROXY_HOST,
        decode_settings=SETTINGS,
        prefill_settings=(*SETTINGS, "--room-tombstone-s", f"{REMEMBERED_S}"),
    )
    began = time.monotonic()
    async with deployed(options) as cluster, MessageProxy(cluster.all_ports, random) as proxy:
        faults, traffic = Faults(cluster, proxy, random), Traffic(cluster, random)
        report.tally, report.faults, report.befallen = traffic.tally, faults.counts, proxy.befallen
        traffic.start()
        try:
            await _course(report, cluster, faults, traffic, view)
        finally:
            await traffic.stop()
            report.duration_s = time.monotonic() - began
        await cluster.stop_in_order()
    return report


async def _course(report: SoakReport, cluster: Cluster, faults: Faults, traffic: Traffic, view: ProgressView) -> None:
    total_s = 60.0 * report.minutes
    view.phase("soak", 3)
    await faults.inflict(DEATHS * total_s, deaths=True)
    view.advance(1, note(traffic, faults))
    await faults.inflict(WARM_UP * total_s, deaths=False)
    report.before = await quiet_sample(cluster, traffic)
    counted, tally = await counts(cluster), copy.deepcopy(traffic.tally)
    view.advance(2, note(traffic, faults))
    traffic.resume()
    await faults.inflict((1.0 - DEATHS - WARM_UP) * total_s, deaths=False)
    report.after = await quiet_sample(cluster, traffic)
    counted_after = await counts(cluster)
    counted_after.subtract(counted)
    view.advance(3, note(traffic, faults))
    report.machine = Counter({name: counted_after[name] for name in MACHINE_COUNTERS})
    report.problems += [
        *traffic.tally.problems(),
        *rows_left(report.before),
        *rows_left(report.after),
        *growth(report.before, report.after),
        *disagreements(counted_after, tally, traffic.tally),
    ]


async def quiet_sample(cluster: Cluster, traffic: Traffic) -> Sample:
    """Pause the traffic, wait until nothing is left of any room, and look. What does not go away is found by the verdict."""
    await traffic.pause()

    async def nothing_left() -> bool:
        return not rows_left(await take_sample(cluster))

    with contextlib.suppress(NotAsExpected):  # the sample will name the rows
        await until(REMEMBERED_S + WAIT_S, "every table empties", nothing_left)
    await asyncio.sleep(1.0)
    return await take_sample(cluster)


async def counts(cluster: Cluster) -> Counter[str]:
    """What the machines have counted in their present lives; failed rooms of the decode machines under one name."""
    found: Counter[str] = Counter()
    for rank in await cluster.inspect_decode():
        for name, number in rank["counters"].items():
            found["decode.failed" if name.startswith("room_failed_") else name] += number
    for group in range(len(cluster.prefills)):
        for name in ("rooms_done", "rooms_failed"):
            found[f"prefill {group}.{name}"] = await cluster.count_prefill(group, name)
    return found


def disagreements(counted: Counter[str], before: Tally, after: Tally) -> list[str]:
    """Where the machines' own counts of a stretch differ from what the engines were told in it."""
    told = {"decode.failed": after.failed["decode"] - before.failed["decode"]}
    for side in after.begun:
        if side != "decode":
            told[f"{side}.rooms_done"] = after.done[side] - before.done[side]
            told[f"{side}.rooms_failed"] = after.failed[side] - before.failed[side]
    return [
        f"{name}: the machine counted {counted[name]}, the engine heard of {number}"
        for name, number in told.items()
        if counted[name] != number
    ]


def note(traffic: Traffic, faults: Faults) -> str:
    """A few words on how it goes."""
    tally = traffic.tally
    return f"{tally.rooms_done} rooms done, {tally.rooms_failed} failed, {sum(faults.counts.values())} faults"
