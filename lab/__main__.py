"""The laboratory's command line: ``python -m lab COMMAND``.

Results go to stdout (one JSON object with ``--json``), progress to stderr. Exit codes: 0 if everything was as it must be, 1 if
the run has shown something wrong, 2 for options or input that cannot be used.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click
from rich.console import Console

from lab.ablation import PROFILE_REQUESTS, run_ablation
from lab.ablation_report import ablation_json, as_expected, print_ablation
from lab.benches.command import bench
from lab.chaos.command import chaos
from lab.demo import DEFAULT_REQUESTS, DemoOptions, demo_shape, demo_workload, run_demo
from lab.explore import explore_command
from lab.model.config import MODELS
from lab.model.run import DEFAULT_REQUESTS as DEFAULT_PROMPTS
from lab.model.run import ModelOptions, model_shape, print_model, run_model
from lab.play import play
from lab.presets import PRESETS
from lab.process import DaemonDied
from lab.progress import open_progress
from lab.replay_command import replay
from lab.report import print_json, print_run
from lab.shape import ShapeError
from lab.simulate import simulate
from lab.size import size
from lab.soak.command import soak
from lab.trace import TraceError
from runtime.planes import PLANES
from runtime.pool_layout import PoolError

T = TypeVar("T")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120, "show_default": True})
@click.version_option(package_name="pd-staging", prog_name="lab")
def main() -> None:
    """Exercise the staging pair: demonstrations, experiments and measurements."""


@main.command()
@click.option("--requests", type=click.IntRange(min=1), help=f"Requests to play.  [default: {DEFAULT_REQUESTS}; a whole trace]")
@click.option("--prefill-tp", type=click.IntRange(1, 256), default=4, help="Prefill ranks.")
@click.option("--prefill-dp", type=click.IntRange(1, 256), default=1, help="Groups (DP attention) that they form.")
@click.option("--decode-tp", type=click.IntRange(1, 256), default=8, help="Decode ranks.")
@click.option("--plane", type=click.Choice(PLANES), default="shm", help="Data plane.")
@click.option("--preset", type=click.Choice(list(PRESETS)), default="tiny", help="KV layout of which model.")
@click.option("--trace", type=click.Path(path_type=Path), help="Play this trace (JSON lines: timestamp, input_length).")
@click.option("--scale", type=click.IntRange(min=1), default=1, help="Divide the trace's lengths by this.")
@click.option("--pace", is_flag=True, help="Keep to the trace's arrival times.")
@click.option("--corrupt", is_flag=True, help="Flip one byte past the checksum; the run must find it and fail.")
@click.option("--ring-bytes", type=click.IntRange(min=1), help="Staging ring of each decode rank.  [default: 1.5 chunks]")
@click.option("--chunk-tokens", type=click.IntRange(1, 1 << 20), default=64, help="Tokens of a chunk.")
@click.option(
    "--engine", type=click.Choice(["simulated", "model"]), default="simulated", help="What fills and reads the pages."
)
@click.option("--attention", type=click.Choice(list(MODELS)), default="gqa", help="Of the model.")
@click.option("--concurrency", type=click.IntRange(1, 1024), default=8, help="Requests in flight.")
@click.option("--seed", type=int, default=0, help="Of the workload and of the KV bytes.")
@click.option("--deadline-s", type=click.FloatRange(min=0.1), default=60.0, help="How long one request may take.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE.svg", help="Draw the rings in space and time.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def demo(*, as_json: bool, **options: object) -> None:
    """Move KV cache between two daemons on this machine and check every byte."""
    chosen = DemoOptions(**options)  # type: ignore[arg-type]  # click has checked each value against its option
    shape = usable(lambda: demo_shape(chosen))
    requests = usable(lambda: demo_workload(chosen, shape))
    with open_progress() as view:
        report = running(lambda: run_demo(chosen, shape, requests, view))
    if as_json:
        print_json(report.to_json())
    else:
        print_run(report, Console())
    sys.exit(0 if report.succeeded else 1)


@main.command()
@click.option("--requests", type=click.IntRange(min=1), default=DEFAULT_PROMPTS, help="Prompts to answer.")
@click.option("--attention", type=click.Choice(list(MODELS)), default="gqa", help="Kind of attention.")
@click.option("--prefill-tp", type=click.IntRange(1, 256), default=4, help="Prefill ranks.")
@click.option("--prefill-dp", type=click.IntRange(1, 256), default=2, help="Groups, each a process, that they form.")
@click.option("--decode-tp", type=click.IntRange(1, 256), default=8, help="Decode ranks, in one process.")
@click.option("--plane", type=click.Choice(PLANES), default="shm", help="Data plane.")
@click.option("--chunk-tokens", type=click.IntRange(1, 1 << 20), default=64, help="Tokens of a chunk.")
@click.option("--concurrency", type=click.IntRange(1, 1024), default=4, help="Prompts in flight.")
@click.option("--seed", type=int, default=0, help="Of the prompts.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def model(*, as_json: bool, **options: object) -> None:
    """Let a small transformer speak through the daemons, and compare its tokens with those of one process."""
    chosen = ModelOptions(**options)  # type: ignore[arg-type]  # click has checked each value against its option
    shape = usable(lambda: model_shape(chosen))
    with open_progress() as view:
        report = running(lambda: run_model(chosen, shape, view))
    if as_json:
        print_json(report.to_json())
    else:
        print_model(report, Console())
    sys.exit(0 if report.run.succeeded else 1)


@main.command()
@click.option("--profile", type=click.IntRange(min=1), default=PROFILE_REQUESTS, help="Requests after a warm-up that survives.")
@click.option("--seed", type=int, default=0, help="Of the profile's sizes, of the prompts and of the KV bytes.")
@click.option("--engine", type=click.Choice(["model", "simulated"]), default="model", help="What fills and reads the pages.")
@click.option("--attention", type=click.Choice(list(MODELS)), default="gqa", help="Of the model.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def ablation(*, profile: int, seed: int, engine: str, attention: str, as_json: bool) -> None:
    """Take two fixes of the staging ring away, one at a time, and show what hangs and why."""
    chosen = attention if engine == "model" else None
    with open_progress() as view:
        results = running(lambda: list(run_ablation(view, seed, profile, attention=chosen)))
    if as_json:
        print_json(ablation_json(results))
    else:
        print_ablation(results, Console())
    sys.exit(0 if as_expected(results) else 1)


main.add_command(bench)
main.add_command(play)
main.add_command(simulate)
main.add_command(explore_command)
main.add_command(chaos)
main.add_command(soak)
main.add_command(size)
main.add_command(replay)


def usable(make: Callable[[], T]) -> T:
    """What ``make`` makes of the user's input; ends with status 2 and the reason if that cannot be used."""
    try:
        return make()
    except (ShapeError, TraceError, OSError) as error:
        raise click.UsageError(str(error)) from error


def running(run: Callable[[], T]) -> T:
    """The result of ``run``; ends with status 1 and the reason if the deployment could not be kept running."""
    try:
        return run()
    except (DaemonDied, PoolError, OSError) as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main(prog_name="python -m lab")
