"""``lab ablation``: which of two defects hangs a staging ring, shown on real daemons by taking the fixes away one at a time.

**The deployment**: four prefill ranks of attention TP 1 (each a group, hence a session of its own, with each decode rank),
eight decode ranks. Rings hold 100 tokens, a chunk at most 70.

**The load** is a closed loop of three requests. A warm-up of eleven comes first, and 846 more in an arm that survives it.

**The scenario**, by mechanism. Numbers are tokens of a decode rank's ring; all eight rings see the same.

* Requests 1 to 4 (15 tokens each) go to prefill rank 0, whose sessions exist from the start. Together they take 60 of round 0,
  and every grant of round 0 may be written at once, so they complete in every arm. Then the ring is empty.
* Requests 5, 6 and 7 (70 tokens each) go to prefill ranks 1, 2 and 3. These have had nothing to send so far, and join when
  the rings have drained: that is when their sessions begin. A chunk of 70 is larger than half of the ring, which is what it
  takes to fit neither into the 40 behind a head parked at 60 nor into the 60 in front of it.

  * ``neither``: the drain leaves the head at 60 and the watermark at (0, 60). The first chunk of 70 goes to offset 0 of round 1
    and needs (0, 70). Nothing is alive that could be freed, so the watermark stays. The other two lie in later rounds.
  * ``restart_only``: the drain has raised the round, so the chunks belong to round 1 or later, and the new sessions, which were
    told nothing, still believe (0, 0). A watermark is told after a free, and there will be none.
  * ``snapshot_only``: the new sessions know (0, 60), which is what the ring says, and the chunk needs (0, 70).
  * ``both``: the ring has restarted at 0 and the new sessions know it. One chunk of 70 at a time is written, the others follow.

* In an arm that stalls, 5, 6 and 7 hold all three places of the loop, so 8 to 11 are never issued: 4 of 11, 3 in flight.

**Repair** (probes, and watermarks in answers and after heartbeats) would hide the second defect, so it is off in ``arms`` and
on in ``arms_with_repair``. It cannot hide the first: there the ring's own watermark is what refuses.

**The engines** are a language model's (``lab/model``) unless simulated ones are asked for: an arm that survives has answered
every request with the tokens of a single process, and the time to the first token and between tokens was measured for each.
"""

import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from lab.demo import play_all
from lab.deployment import Deployment, EngineChoice, Engines, check_model_fits, deploy
from lab.model.config import MODELS
from lab.model.latency import Coverage, coverage
from lab.model.speech import SpeechReport
from lab.pair import DaemonPair, Programs
from lab.presets import PRESETS
from lab.progress import ProgressView
from lab.report import Failure, RunReport
from lab.shape import PairShape
from lab.stall import BlockedChunk, Snapshot, find_stall, rings_are_empty
from lab.workload import Grid, Request, synthetic_workload

CONCURRENCY = 3
CHUNK_TOKENS = 70
RING_TOKENS = 100
BEFORE_DRAIN = (15, 15, 15, 15)
"""Requests of the sessions that exist from the start; in all less than the ring."""
AFTER_DRAIN = (70, 70, 70)
"""One request of each session that begins after the drain: as many as the loop has places."""
AFTERWARDS = (70, 15, 70, 1)
PROFILE_REQUESTS = 846
PROFILE_PREFIX = "profile-"
DEADLINE_S = 120.0
"""Far beyond anything an arm needs; a stall is proven, not waited for."""
LOOK_S = 0.05
"""How often the daemons are asked whether anything can still happen."""


@dataclass(frozen=True, slots=True)
class Arm:
    """Which fixes this arm has."""

    name: str
    restart: bool
    snapshot: bool

    def programs(self, *, repair: bool) -> Programs:
        """The daemons of this arm."""
        missing = [name for name, has in (("restart", self.restart), ("snapshot", self.snapshot)) if not has]
        decode = [*missing, *([] if repair else ["repair"])]
        return Programs(altered("decode", decode), altered("prefill", [] if repair else ["repair"]))


ARMS = (
    Arm("neither", restart=False, snapshot=False),
    Arm("restart_only", restart=True, snapshot=False),
    Arm("snapshot_only", restart=False, snapshot=True),
    Arm("both", restart=True, snapshot=True),
)


def altered(side: str, without: Sequence[str]) -> tuple[str, ...]:
    """The command of a daemon that lacks some of its behaviour."""
    options = [part for name in without for part in ("--without", name)]
    return (sys.executable, "-m", "lab.altered_daemon", side, *options, "serve")


@dataclass(slots=True)
class PhaseCount:
    """How far a phase of an arm has come, in requests."""

    total: int
    completed: int = 0
    in_flight: int = 0


@dataclass(slots=True)
class ArmResult:
    """What one arm did. ``profile`` is ``None`` if the warm-up stalled; ``blocked`` says on what."""

    arm: Arm
    repair: bool
    warmup: PhaseCount
    profile: PhaseCount | None = None
    blocked: tuple[BlockedChunk, ...] = ()
    mismatches: int = 0
    failures: list[Failure] = field(default_factory=list)
    speech: SpeechReport | None = None
    """What the model said in both phases; ``None`` where simulated engines played."""
    duration_s: float = 0.0

    @property
    def stalled(self) -> bool:
        """Whether it was proven that nothing can move any more."""
        return bool(self.blocked)

    @property
    def survived(self) -> bool:
        """Whether every request of both phases completed with the right bytes."""
        done = self.profile is not None and self.profile.completed == self.profile.total
        right = not self.mismatches and not self.failures and self.speaks_right
        return done and self.warmup.completed == self.warmup.total and right

    @property
    def speaks_right(self) -> bool:
        """Whether every answer is the single process's and every request of the profile has both times."""
        if self.speech is None or self.profile is None:
            return True
        measured = self.coverage
        requests = self.warmup.total + self.profile.total
        return self.speech.all_equal(requests) and measured is not None and measured.ttft == measured.itl == 1.0

    @property
    def coverage(self) -> Coverage | None:
        """Over the requests of the profile; ``None`` where nothing was measured."""
        if self.speech is None or self.profile is None:
            return None
        times = [request for request in self.speech.times if request.room.startswith(PROFILE_PREFIX)]
        return coverage(times, self.profile.total)


class WarmUp:
    """The closed loop of the warm-up: the requests of new sessions are held back until the rings have drained."""

    def __init__(self, pair: DaemonPair, engines: Engines, requests: Sequence[Request]) -> None:
        self._pair = pair
        self._engines = engines
        self._requests = requests
        self._in_flight: set[str] = set()
        self._drained = asyncio.Event()

    @property
    def in_flight(self) -> int:
        """Requests that were issued and are not over."""
        return len(self._in_flight)

    async def run(self, *, repair: bool) -> tuple[BlockedChunk, ...]:
        """Play until every request is over, or until nothing can move any more: then what everything waits for."""
        loop = asyncio.create_task(self._loop())
        try:
            while not loop.done():
                await asyncio.wait((loop,), timeout=LOOK_S)
                decode, prefill = await look(self._pair)
                if self._first_are_over and rings_are_empty(decode):
                    self._drained.set()
                blocked = find_stall(decode, prefill, self._in_flight, repair=repair)
                if blocked is not None:
                    return blocked
            await loop
        finally:
            loop.cancel()
            await asyncio.gather(loop, return_exceptions=True)
        return ()

    @property
    def _first_are_over(self) -> bool:
        report = self._engines.report
        return report.requests_completed + report.requests_failed >= len(BEFORE_DRAIN)

    async def _loop(self) -> None:
        waiting = iter(self._requests)

        async def place() -> None:
            for request in waiting:
                if len(BEFORE_DRAIN) <= request.index < len(BEFORE_DRAIN) + len(AFTER_DRAIN):
                    await self._drained.wait()
                self._in_flight.add(request.room)
                await self._engines.play(request)
                self._in_flight.discard(request.room)

        async with asyncio.TaskGroup() as group:
            for _ in range(CONCURRENCY):
                group.create_task(place())


def scenario_shape(attention: str | None = None) -> PairShape:
    """The deployment that the head of this file describes, for simulated engines or for the model with this attention."""
    model = PRESETS["tiny"].model if attention is None else MODELS[attention].layout()
    shape = PairShape(model, 4, 4, 8, "shm", CHUNK_TOKENS, 0)
    if attention is not None:
        check_model_fits(attention, shape)
    return replace(shape, ring_bytes=shape.chunk_bytes(RING_TOKENS))


def warmup_requests() -> tuple[Request, ...]:
    """The eleven requests of the warm-up. Those after the drain go to one new session each."""
    sizes = (*BEFORE_DRAIN, *AFTER_DRAIN, *AFTERWARDS)
    groups = (*(0 for _ in BEFORE_DRAIN), *range(1, 1 + len(AFTER_DRAIN)), *range(len(AFTERWARDS)))
    return tuple(
        Request(index, f"warm-up-{index + 1:02d}", num_tokens, group)
        for index, (num_tokens, group) in enumerate(zip(sizes, groups, strict=True))
    )


def profile_requests(shape: PairShape, seed: int, count: int = PROFILE_REQUESTS) -> tuple[Request, ...]:
    """The requests of the profile: mixed sizes, up to three chunks, over all four groups."""
    grid = Grid(shape.chunk_tokens, shape.prefill_page_size, shape.decode_page_size)
    requests = synthetic_workload(count, shape.prefill_groups, grid, seed)
    return tuple(replace(request, room=f"{PROFILE_PREFIX}{request.index + 1:03d}") for request in requests)


def run_ablation(
    view: ProgressView, seed: int = 0, profile: int = PROFILE_REQUESTS, *, attention: str | None = "gqa"
) -> Iterator[ArmResult]:
    """Run the four arms without repair, then with it, with simulated engines if ``attention`` is ``None``.

    Raises ``DaemonDied``.
    """
    # One choice for all arms: what the single process has answered once it need not answer again.
    choice = EngineChoice(seed=seed) if attention is None else EngineChoice.model(attention, seed)
    for repair in (False, True):
        for arm in ARMS:
            yield run_arm(arm, view, choice, repair=repair, profile=profile)


def run_arm(arm: Arm, view: ProgressView, choice: EngineChoice, *, repair: bool, profile: int) -> ArmResult:
    """Start this arm's daemons and engines, run the warm-up, and the profile if it survives."""
    shape = scenario_shape(None if choice.single is None else choice.single.config.name)
    requests = (*warmup_requests(), *profile_requests(shape, choice.seed, profile))
    warmup, rest = requests[: -profile or None], requests[len(requests) - profile :]
    report = RunReport("shm", len(requests), sum(shape.request_bytes(r.num_tokens) for r in requests), shape.ring_bytes)
    result = ArmResult(arm, repair, PhaseCount(len(warmup)))
    started = time.monotonic()
    programs = arm.programs(repair=repair)
    with deploy(choice, shape, requests, CONCURRENCY, view.say, report, deadline_s=DEADLINE_S, programs=programs) as deployment:
        asyncio.run(deployment.run(_play_arm(deployment, warmup, rest, result, view)))
    deployment.engines.judge()
    result.mismatches, result.failures, result.speech = report.mismatches, report.failures, report.speech
    result.duration_s = time.monotonic() - started
    return result


async def _play_arm(
    deployment: Deployment, warmup: Sequence[Request], profile: Sequence[Request], result: ArmResult, view: ProgressView
) -> None:
    title, engines = f"{result.arm.name}{' with repair' if result.repair else ''}", deployment.engines
    report = engines.report
    view.phase(f"{title}: warm-up", len(warmup))
    loop = WarmUp(deployment.pair, engines, warmup)
    result.blocked = await loop.run(repair=result.repair)
    result.warmup.completed, result.warmup.in_flight = report.requests_completed, loop.in_flight
    view.advance(report.requests_completed)
    if result.stalled:
        view.say(f"{title}: stalled at {result.warmup.completed}/{result.warmup.total}, {result.warmup.in_flight} in flight")
        return
    view.phase(f"{title}: profile", len(profile))
    result.profile = PhaseCount(len(profile))
    await play_all(engines, profile, CONCURRENCY, paced=False, view=view, already_over=len(warmup))
    result.profile.completed = report.requests_completed - result.warmup.completed


async def look(pair: DaemonPair) -> tuple[list[Snapshot], list[Snapshot]]:
    """What every decode rank and then every prefill rank says of itself."""
    decode, prefill = await pair.decode_life(), await pair.prefill_life()
    decode_answer = await asyncio.wrap_future(decode.client.inspect())
    prefill_answer = await asyncio.wrap_future(prefill.client.inspect())
    return list(decode_answer["ranks"]), list(prefill_answer["ranks"])
