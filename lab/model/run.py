"""``lab model``: prefill engines and a decode engine speak, and are compared token by token with one process that does both."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from lab.demo import highest_round, play_all
from lab.deployment import Deployment, EngineChoice, check_model_fits, deploy
from lab.model.config import MODELS
from lab.model.overlap import Overlap, measure_overlap
from lab.progress import ProgressView
from lab.report import RunReport, print_run
from lab.shape import PairShape
from lab.workload import Grid, Request, synthetic_workload

DEFAULT_REQUESTS = 300
RING_CHUNKS = 8.0
"""Of each decode rank's ring: enough that chunks rarely wait for one another, so that the overlap shows the transfer itself."""


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """What to ask of which deployment."""

    requests: int = DEFAULT_REQUESTS
    attention: str = "gqa"
    prefill_tp: int = 4
    prefill_dp: int = 2
    decode_tp: int = 8
    plane: str = "shm"
    chunk_tokens: int = 64
    concurrency: int = 4
    seed: int = 0
    deadline_s: float = 60.0


@dataclass(frozen=True, slots=True)
class ModelReport:
    """One run: what was said, moved and measured."""

    options: ModelOptions
    run: RunReport
    overlap: Overlap

    def to_json(self) -> dict[str, object]:
        """The demo's object with the model, the deployment, the overlap and every request's times."""
        options, config = self.options, MODELS[self.options.attention]
        assert self.run.speech is not None
        return {
            "model": {"attention": config.name, "layers": config.layers, "heads": config.heads, "kv_heads": config.kv_heads},
            "deployment": {
                "prefill_processes": options.prefill_dp,
                "prefill_tp": options.prefill_tp // options.prefill_dp,
                "decode_processes": 1,
                "decode_tp": options.decode_tp,
            },
            **self.run.to_json(),
            "overlap_ratio": round(self.overlap.ratio, 4),
            "overlap": self.overlap.to_json(),
            "per_request": [times.to_json() for times in self.run.speech.times],
        }


def model_shape(options: ModelOptions) -> PairShape:
    """The deployment that the options describe. Raises ``ShapeError`` for one that cannot exist."""
    layout = MODELS[options.attention].layout()
    ranks = (options.prefill_tp, options.prefill_dp, options.decode_tp)
    shape = PairShape(layout, *ranks, options.plane, options.chunk_tokens, ring_bytes=0)
    check_model_fits(options.attention, shape)
    return shape.with_ring_chunks(RING_CHUNKS)


def run_model(options: ModelOptions, shape: PairShape, view: ProgressView) -> ModelReport:
    """Play the prompts and compare every answer. Raises ``DaemonDied``."""
    grid = Grid(shape.chunk_tokens, shape.prefill_page_size, shape.decode_page_size)
    requests = synthetic_workload(options.requests, shape.prefill_groups, grid, options.seed)
    total_bytes = sum(shape.request_bytes(request.num_tokens) for request in requests)
    report = RunReport(options.plane, len(requests), total_bytes, shape.ring_bytes)
    choice = EngineChoice.model(options.attention, options.seed)
    # The prefill daemon says on level debug when each chunk was scattered.
    settings = ("--log-level", "debug")
    made = deploy(
        choice, shape, requests, options.concurrency, view.say, report, deadline_s=options.deadline_s, settings=settings
    )
    with made as deployment:
        asyncio.run(deployment.run(_play(deployment, requests, options, view)))
        assert report.speech is not None
        overlap = measure_overlap(report.speech.computed, deployment.pair.prefill.process.log)
    deployment.engines.judge()
    return ModelReport(options, report, overlap)


async def _play(deployment: Deployment, requests: Sequence[Request], options: ModelOptions, view: ProgressView) -> None:
    view.phase("prompts", len(requests))
    started = time.monotonic()
    await play_all(deployment.engines, requests, options.concurrency, paced=False, view=view)
    report = deployment.engines.report
    report.duration_s = time.monotonic() - started
    report.ring_rounds = await highest_round(deployment.pair)


def print_model(report: ModelReport, console: Console) -> None:
    """Show the table, the latencies and the verdict."""
    assert report.run.speech is not None
    print_run(report.run, console)
    latencies = report.run.speech.to_json(report.run.requests_total)
    for name in ("ttft", "itl"):
        console.print(f"{name}: {latencies[name]}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"overlap ratio: {report.overlap.ratio:.3f}", markup=False, highlight=False)
