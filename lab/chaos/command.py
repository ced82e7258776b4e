"""``lab chaos``: every scenario, or some, one after the other; each ends by itself or at its bound."""

import asyncio
import sys
from collections.abc import Iterator, Sequence
from itertools import takewhile

import click
from rich.console import Console
from rich.table import Table

from lab.chaos.copies import COPIES
from lab.chaos.deaths import DEATHS
from lab.chaos.links import LINKS
from lab.chaos.scenario import Outcome, Result, Scenario, run_scenario
from lab.chaos.shortages import SHORTAGES
from lab.chaos.stops import STOPS
from lab.progress import ProgressView, open_progress
from lab.report import print_json

SCENARIOS = {scenario.name: scenario for scenario in (*DEATHS, *STOPS, *COPIES, *LINKS, *SHORTAGES)}
"""By name, in the order in which they are played."""


@click.command()
@click.option("--scenario", "names", multiple=True, type=click.Choice(list(SCENARIOS)), help="Only this one; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def chaos(names: Sequence[str], *, as_json: bool) -> None:
    """Kill, stop and starve real daemons and break the network between them, and check what they promise."""
    chosen = [SCENARIOS[name] for name in names] or list(SCENARIOS.values())
    with open_progress() as view:
        results = list(play(chosen, view))
    if as_json:
        print_json(chaos_json(results))
    else:
        print_chaos(results, Console())
    sys.exit(0 if all_passed(results) else 1)


def play(scenarios: Sequence[Scenario], view: ProgressView) -> Iterator[Result]:
    """Play them in order, each in an event loop of its own."""
    view.phase("scenarios", len(scenarios))
    for done, scenario in enumerate(scenarios, 1):
        result = asyncio.run(run_scenario(scenario))
        view.say(f"{scenario.name}: {result.outcome} ({result.duration_s:.1f} s)")
        view.advance(done)
        yield result


def all_passed(results: Sequence[Result]) -> bool:
    """Whether there was anything to play and all of it passed; what could not be played has shown nothing."""
    return bool(results) and all(result.outcome is Outcome.PASSED for result in results)


def chaos_json(results: Sequence[Result]) -> dict[str, object]:
    """The JSON object: every scenario, and one line for each that did not pass."""
    return {
        "succeeded": all_passed(results),
        "scenarios": [result.to_json() for result in results],
        "errors": [error_line(result) for result in results if result.outcome is not Outcome.PASSED],
    }


def error_line(result: Result) -> str:
    """What was wrong, in one line: the first of the reason, and where that announces a log, the last of that log."""
    lines = result.reason.splitlines() or ["no reason known"]
    text = lines[0]
    if text.endswith("log:"):
        log = list(takewhile(lambda line: line.startswith("  |"), lines[1:]))
        text += "".join(log[-1:]).replace("  |", "", 1)
    return f"{result.name}: {result.outcome}: {text}"


def print_chaos(results: Sequence[Result], console: Console) -> None:
    """The same for people: a table, then the claims that did not hold, with the ends of the daemons' logs."""
    table = Table("scenario", "outcome", "recovery", title="chaos on real processes")
    for result in results:
        recovery = "" if result.recovery_s is None else f"{result.recovery_s:.2f} s"
        table.add_row(result.name, result.outcome.value, recovery)
    console.print(table)
    for result in results:
        if result.outcome is not Outcome.PASSED:
            claim = SCENARIOS[result.name].claim
            console.print(
                f"{result.name}: {result.outcome}: {result.reason}\n  what must hold: {claim}", markup=False, highlight=False
            )
