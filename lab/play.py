"""``lab play``: the demo's workload over daemons that are already running, for as long as asked; every byte is checked."""

import asyncio
import secrets
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import click
from rich.console import Console

from lab.attached import Addresses, AttachedPair, attach
from lab.demo import play_all
from lab.engines import SimulatedEngines
from lab.presets import PRESETS
from lab.process import DaemonDied
from lab.progress import ProgressView, open_progress
from lab.report import RunReport, print_json, print_run
from lab.shape import PairShape, ShapeError
from lab.workload import Grid, synthetic_workload
from lab.workspace import SHARED_MEMORY, Workspace
from runtime.pool_layout import PoolError
from runtime.runtime_directory import engine_socket


@dataclass(frozen=True, slots=True)
class PlayOptions:
    """Which deployment, and what to play on it. Its ring, grid and planes are the daemons' own business but for the grid."""

    runtime_dir: Path
    decode: str
    prefill: tuple[str, ...]
    decode_endpoint: tuple[str, ...]
    prefill_tp: int = 1
    preset: str = "tiny"
    requests: int = 200
    chunk_tokens: int = 64
    concurrency: int = 8
    seed: int = 0
    deadline_s: float = 60.0
    pools: Path = SHARED_MEMORY

    @property
    def addresses(self) -> Addresses:
        """Where the daemons are."""
        sockets = tuple(engine_socket(self.runtime_dir, name) for name in self.prefill)
        return Addresses(engine_socket(self.runtime_dir, self.decode), sockets, self.decode_endpoint)


def play_shape(options: PlayOptions) -> PairShape:
    """The deployment that the options describe: each prefill daemon is one group. Raises ``ShapeError``."""
    preset = PRESETS[options.preset]
    shape = PairShape(
        model=preset.model,
        prefill_ranks=options.prefill_tp * len(options.prefill),
        prefill_groups=len(options.prefill),
        decode_ranks=len(options.decode_endpoint),
        plane="as the daemons agree",
        chunk_tokens=options.chunk_tokens,
        ring_bytes=0,
        prefill_page_size=preset.page_size,
        decode_page_size=max(1, preset.page_size // 2),
    )
    return shape.with_ring_chunks(1)


def run_play(options: PlayOptions, shape: PairShape, view: ProgressView) -> RunReport:
    """Play the synthetic workload. Raises ``DaemonDied`` if a daemon does not answer for as long as a request may take."""
    grid = Grid(shape.chunk_tokens, shape.prefill_page_size, shape.decode_page_size)
    workload = synthetic_workload(options.requests, shape.prefill_groups, grid, options.seed)
    # The daemons remember rooms that are over, those of former runs too.
    run = secrets.token_hex(4)
    requests = [replace(request, room=f"{run}-{request.room}") for request in workload]
    expected = sum(shape.request_bytes(request.num_tokens) for request in requests)
    report = RunReport(shape.plane, len(requests), expected, 0)

    async def work(pair: AttachedPair, engines: SimulatedEngines) -> None:
        await pair.decode_life()
        await pair.prefill_life()
        report.ring_bytes = pair.ring_bytes
        view.phase("requests", len(requests))
        started = time.monotonic()
        await play_all(engines, requests, options.concurrency, paced=False, view=view)
        report.duration_s = time.monotonic() - started
        report.ring_rounds, report.restarts = await pair.highest_round(), pair.restarts

    with ExitStack() as made:
        pools = made.enter_context(Workspace(options.pools)).pools
        where, size, seed, limit = options.addresses, options.concurrency, options.seed, options.deadline_s
        attached = attach(where, shape, requests, size, pools, report, seed=seed, deadline_s=limit)
        asyncio.run(work(*made.enter_context(attached)))
    return report


@click.command()
@click.option("--runtime-dir", type=click.Path(path_type=Path), required=True, help="Where the daemons' engine sockets are.")
@click.option("--decode", default="decode", help="Id of the decode daemon.")
@click.option(
    "--prefill",
    multiple=True,
    default=("prefill",),
    help="Id of a prefill daemon; repeat for more. Number N must have started with --group prefill-dpN.",
)
@click.option("--decode-endpoint", multiple=True, required=True, help="Control endpoint of each decode rank, in order.")
@click.option("--prefill-tp", type=click.IntRange(1, 256), default=1, help="Ranks of each prefill daemon.")
@click.option("--preset", type=click.Choice(list(PRESETS)), default="tiny", help="KV layout of which model.")
@click.option("--requests", type=click.IntRange(min=1), default=200, help="Requests to play.")
@click.option("--chunk-tokens", type=click.IntRange(1, 1 << 20), default=64, help="Tokens of a chunk, as the daemons have it.")
@click.option("--concurrency", type=click.IntRange(1, 1024), default=8, help="Requests in flight.")
@click.option("--seed", type=int, default=0, help="Of the workload and of the KV bytes.")
@click.option("--deadline-s", type=click.FloatRange(min=0.1), default=60.0, help="How long one request may take.")
@click.option("--pools", type=click.Path(path_type=Path), default=SHARED_MEMORY, help="Shared memory that the daemons see too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def play(*, as_json: bool, **options: object) -> None:
    """Play the demo's workload over daemons that are already running, and check every byte.

    Rooms name the prefill groups prefill-dp0, prefill-dp1 and so on, one for each --prefill in order: start those daemons
    with --group prefill-dp0, --group prefill-dp1 and so on.
    """
    chosen = PlayOptions(**options)  # type: ignore[arg-type]  # click has checked each value against its option
    try:
        shape = play_shape(chosen)
        with open_progress() as view:
            report = run_play(chosen, shape, view)
    except ShapeError as error:
        raise click.UsageError(str(error)) from error
    except (DaemonDied, PoolError, OSError) as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        print_json(report.to_json())
    else:
        print_run(report, Console())
    sys.exit(0 if report.succeeded else 1)
