"""``python -m lab simulate``: run the shipped machines through many seeded worlds, or one of them with a trace to read."""

import sys
from collections import Counter

import click
from rich.console import Console
from rich.table import Table

from lab.progress import open_progress
from lab.report import print_json
from lab.simulator.options import draw_options
from lab.simulator.run import Outcome, run_seed, run_seeds, summarise

MAX_LISTED_SEEDS = 20
"""How many failing seeds the table lists; the JSON object counts all."""


@click.command()
@click.option("--seeds", type=click.IntRange(min=1), default=1000, help="How many worlds.")
@click.option("--first-seed", type=click.IntRange(min=0), default=0, help="Seed of the first of them.")
@click.option("--workers", type=click.IntRange(1, 256), help="Processes that share the work.  [default: one per CPU]")
@click.option("--seed", type=click.IntRange(min=0), help="Run this one alone and print every option it drew.")
@click.option("--trace", is_flag=True, help="With --seed: print every message and every event, too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def simulate(seeds: int, first_seed: int, workers: int | None, seed: int | None, *, trace: bool, as_json: bool) -> None:
    """Run the shipped machines in seeded, hostile worlds under a virtual clock, and check every promise at every step."""
    if seed is None and trace:
        raise click.UsageError("--trace needs --seed: it prints what one world does")
    outcomes = [_run_one(seed, trace=trace)] if seed is not None else _run_many(first_seed, seeds, workers)
    if as_json:
        print_json(summarise(outcomes))
    else:
        print_outcomes(outcomes, Console())
    sys.exit(1 if any(outcome.violation for outcome in outcomes) else 0)


def print_outcomes(outcomes: list[Outcome], console: Console) -> None:
    """The totals as one table, and each broken promise with the seed that shows it."""
    table = Table(title=f"{len(outcomes)} simulated worlds", box=None)
    table.add_column("what happened")
    table.add_column("times", justify="right")
    for counts in (_sum(outcomes, "faults"), _sum(outcomes, "events")):
        for name, count in sorted(counts.items()):
            table.add_row(name, str(count))
    console.print(table)
    broken = [outcome for outcome in outcomes if outcome.violation]
    for outcome in broken[:MAX_LISTED_SEEDS]:
        console.print(f"seed {outcome.seed}: {outcome.violation}", markup=False, highlight=False)
    console.print(f"{len(broken)} of {len(outcomes)} worlds broke a promise")


def _run_one(seed: int, *, trace: bool) -> Outcome:
    console = Console(stderr=True)
    console.print(draw_options(seed).describe(), markup=False, highlight=False)
    return run_seed(seed, log=(lambda line: print(line, file=sys.stderr)) if trace else None)


def _run_many(first: int, count: int, workers: int | None) -> list[Outcome]:
    done = failed = 0
    with open_progress() as view:
        view.phase("simulated worlds", count)

        def on_done(outcome: Outcome) -> None:
            nonlocal done, failed
            done, failed = done + 1, failed + bool(outcome.violation)
            if outcome.violation:
                view.say(f"seed {outcome.seed}: {outcome.violation}")
            view.advance(done, f"{failed} failed")

        return run_seeds(range(first, first + count), workers, on_done)


def _sum(outcomes: list[Outcome], name: str) -> Counter[str]:
    return sum((getattr(outcome, name) for outcome in outcomes), Counter())
