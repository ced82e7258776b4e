"""``lab soak``: traffic under faults for as long as you like, and whether anything has grown."""

import asyncio
import sys

import click
from rich.console import Console

from lab.chaos.expectations import NotAsExpected
from lab.process import DaemonDied
from lab.progress import open_progress
from lab.report import print_json
from lab.soak.run import SoakReport, run_soak
from runtime.engine_protocol import EngineError


@click.command()
@click.option("--minutes", type=click.FloatRange(min=0.1), default=10.0, help="How long to play.")
@click.option("--seed", type=int, default=0, help="Of the traffic and the faults.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def soak(minutes: float, seed: int, *, as_json: bool) -> None:
    """Move rooms under random faults and show that memory, files, segments and tables are flat and every count adds up."""
    with open_progress() as view:
        try:
            report = asyncio.run(run_soak(minutes, seed, view))
        except (NotAsExpected, DaemonDied, EngineError, OSError) as error:
            reason = "\n".join([str(error), *getattr(error, "__notes__", ())])
            report = SoakReport(minutes, seed, problems=[reason])
    if as_json:
        print_json(report.to_json())
    else:
        print_soak(report, Console())
    sys.exit(1 if report.problems else 0)


def print_soak(report: SoakReport, console: Console) -> None:
    """The verdict for people."""
    tally = report.tally
    lines = [
        f"{tally.rooms} rooms: {tally.rooms_done} done, {tally.rooms_failed} failed, {len(tally.rooms_hung)} hung",
        f"{tally.bytes_checked:,} KV bytes compared, {tally.bytes_wrong} wrong",
        f"faults: {', '.join(f'{name} {count}' for name, count in sorted(report.faults.items())) or 'none'}",
        *report.problems,
        "Something grew or did not add up." if report.problems else "Flat, drained, and every count adds up.",
    ]
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
