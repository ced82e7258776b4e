"""``lab demo``: real daemons, real sockets, real shared memory; every KV byte on every decode rank is checked.

The workload is played in a closed loop of ``concurrency`` requests, or by its arrival times (``pace``). A daemon that dies in
the middle is started again; the requests it was carrying fail with a reason, the rest go on.
"""

import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.deployment import Deployment, EngineChoice, Engines, check_model_fits, deploy
from lab.model.config import MODELS
from lab.pair import PRODUCT, DaemonPair, Programs
from lab.presets import PRESETS
from lab.progress import ProgressView
from lab.report import RunReport
from lab.shape import PairShape
from lab.trace import read_trace
from lab.workload import RING_CHUNKS, Grid, Request, synthetic_workload, trace_workload
from runtime.observation import panels_of
from runtime.spacetime import draw

DEFAULT_REQUESTS = 200
"""Requests of the synthetic workload; a trace without ``--requests`` is played whole."""

CORRUPTING = Programs(decode=(sys.executable, "-m", "lab.altered_daemon", "decode", "--corrupt", "serve"))
"""A decode daemon that flips one byte after the checksum was verified."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What to play, on what. Sizes are bytes and tokens, durations seconds."""

    requests: int | None = None
    prefill_tp: int = 4
    prefill_dp: int = 1
    decode_tp: int = 8
    plane: str = "shm"
    preset: str = "tiny"
    trace: Path | None = None
    scale: int = 1
    pace: bool = False
    corrupt: bool = False
    ring_bytes: int | None = None
    chunk_tokens: int = 64
    concurrency: int = 8
    seed: int = 0
    engine: str = "simulated"
    """``simulated`` engines fill and compare pages; ``model`` has a transformer speak."""
    attention: str = "gqa"
    """Of the model."""
    deadline_s: float = 60.0
    """How long one request may take before it is aborted."""
    plot: Path | None = None
    """Where to draw what became of the latest grants of every ring, as SVG."""


def demo_shape(options: DemoOptions) -> PairShape:
    """The deployment that the options describe. Raises ``ShapeError`` for one that cannot exist."""
    preset = PRESETS[options.preset]
    speaks = options.engine == "model"
    shape = PairShape(
        model=MODELS[options.attention].layout() if speaks else preset.model,
        prefill_ranks=options.prefill_tp,
        prefill_groups=options.prefill_dp,
        decode_ranks=options.decode_tp,
        plane=options.plane,
        chunk_tokens=options.chunk_tokens,
        ring_bytes=options.ring_bytes or 0,
        prefill_page_size=preset.page_size,
        decode_page_size=max(1, preset.page_size // 2),
    )
    if speaks:
        check_model_fits(options.attention, shape)
    return shape.with_ring_chunks(RING_CHUNKS)


def demo_workload(options: DemoOptions, shape: PairShape) -> tuple[Request, ...]:
    """The requests to play. Raises ``TraceError`` or ``OSError`` for a trace that cannot be read."""
    if options.trace is not None:
        return trace_workload(read_trace(options.trace, options.scale, options.requests), shape.prefill_groups)
    grid = Grid(shape.chunk_tokens, shape.prefill_page_size, shape.decode_page_size)
    return synthetic_workload(options.requests or DEFAULT_REQUESTS, shape.prefill_groups, grid, options.seed)


def run_demo(options: DemoOptions, shape: PairShape, requests: Sequence[Request], view: ProgressView) -> RunReport:
    """Play the workload and report. Raises ``DaemonDied`` if a daemon does not start or dies again and again."""
    report = RunReport(
        plane=options.plane,
        requests_total=len(requests),
        bytes_expected=sum(shape.request_bytes(request.num_tokens) for request in requests),
        ring_bytes=shape.ring_bytes,
    )
    model = options.engine == "model"
    choice = EngineChoice.model(options.attention, options.seed) if model else EngineChoice(seed=options.seed)
    programs = CORRUPTING if options.corrupt else PRODUCT
    made = deploy(
        choice, shape, requests, options.concurrency, view.say, report, deadline_s=options.deadline_s, programs=programs
    )
    with made as deployment:
        asyncio.run(_play(deployment, requests, options, view))
        report.restarts = deployment.pair.restarts
    deployment.engines.judge()
    return report


async def _play(deployment: Deployment, requests: Sequence[Request], options: DemoOptions, view: ProgressView) -> None:
    await deployment.run(_work(deployment, requests, options, view))
    await deployment.pair.stop()


async def _work(deployment: Deployment, requests: Sequence[Request], options: DemoOptions, view: ProgressView) -> None:
    """Play all requests and read the rings' state; only this part counts as the run's duration."""
    pair, engines = deployment.pair, deployment.engines
    await pair.decode_life()
    await pair.prefill_life()
    view.phase("requests", len(requests))
    started = time.monotonic()
    await play_all(engines, requests, options.concurrency, paced=options.pace, view=view)
    engines.report.duration_s = time.monotonic() - started
    engines.report.ring_rounds = max(engines.report.ring_rounds, await highest_round(pair))
    if options.plot is not None:
        options.plot.write_text(await picture(pair), encoding="utf-8")


async def play_all(
    engines: Engines,
    requests: Sequence[Request],
    concurrency: int,
    *,
    paced: bool,
    view: ProgressView,
    already_over: int = 0,
) -> None:
    """Play the requests in order, ``concurrency`` at a time; ``paced``: none before its arrival time.

    ``already_over`` requests were played before, in an earlier phase of the same report.
    """
    clock = asyncio.get_running_loop().time
    started, waiting, report = clock(), iter(requests), engines.report

    async def play_next() -> None:
        for request in waiting:
            if paced:
                await asyncio.sleep(max(0.0, started + request.arrival_s - clock()))
            await engines.play(request)
            right = f"{report.bytes_checked / 1e6:.1f} MB right, " if report.bytes_checked else ""
            note = f"{right}{report.requests_failed} failed"
            view.advance(report.requests_completed + report.requests_failed - already_over, note)

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(play_next())


async def highest_round(pair: DaemonPair) -> int:
    """The highest round that any decode rank's ring has reached in the present life of its daemon."""
    life = await pair.decode_life()
    snapshot = await asyncio.wrap_future(life.client.inspect())
    return max(int(rank["ring"]["watermark"][0]) for rank in snapshot["ranks"])


async def picture(pair: DaemonPair) -> str:
    """The rings of the decode daemon in space and time, as SVG: as far back as it remembers."""
    life = await pair.decode_life()
    history = await asyncio.wrap_future(life.client.history())
    return draw(panels_of(history["ranks"]))
