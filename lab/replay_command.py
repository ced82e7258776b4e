"""``python -m lab replay FILE``: read a dump of the flight recorder, decide everything again, and say where it differs."""

import sys
from pathlib import Path

import click

from lab.flight_plot import plot
from lab.replay import Replayed, explanations, replay_flight, trace
from lab.report import print_json
from runtime.flight_file import Flight, FlightError, read_flight

DEFAULT_LINES = 40


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--until", type=click.IntRange(min=1), help="Stop after this entry of each machine.")
@click.option(
    "--lines", type=click.IntRange(min=0), default=DEFAULT_LINES, help="Entries of each machine to print, the last ones."
)
@click.option("--all", "every", is_flag=True, help="Print every entry.")
@click.option("--explain", is_flag=True, help="Say of every live room why it does not move, where the replay stopped.")
@click.option(
    "--plot", "picture", type=click.Path(path_type=Path), metavar="FILE.svg", help="Draw the rings in space and time."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def replay(
    *, file: Path, until: int | None, lines: int, every: bool, explain: bool, picture: Path | None, as_json: bool
) -> None:
    """Feed a dump of the flight recorder to the machines, and check that they decide the same again.

    Exit codes: 0 if every decision was reproduced, 1 if one was not (the first is named) or if the dump was altered or damaged.
    """
    try:
        flight = read_flight(file)
    except FlightError as error:
        raise click.ClickException(f"{file}: {error}") from error
    except OSError as error:
        raise click.UsageError(str(error)) from error
    results = replay_flight(flight, until)
    if picture is not None:
        picture.write_text(plot(results), encoding="utf-8")
    if as_json:
        print_json(_as_map(flight, results, explain=explain))
    else:
        _print(flight, results, None if every else lines, explain=explain)
    sys.exit(0 if all(result.succeeded for result in results) else 1)


def _as_map(flight: Flight, results: list[Replayed], *, explain: bool) -> dict[str, object]:
    machines = []
    for result in results:
        told = {"explanations": list(explanations(result.machine))} if explain else {}
        machines.append({**result.to_map(), **told})
    return {
        "dump": flight.head,
        "machines": machines,
        "entries": sum(result.entries for result in results),
        "replayed": sum(result.replayed for result in results),
        "divergences": sum(result.divergence is not None for result in results),
        "succeeded": all(result.succeeded for result in results),
    }


def _print(flight: Flight, results: list[Replayed], lines: int | None, *, explain: bool) -> None:
    head = flight.head
    click.echo(f"dump of {head['service_id']!r} at {head['time']}, because of a {head['reason']}; times are relative to it")
    for read, result in zip(flight.machines, results, strict=True):
        reached = len(read.entries) if result.obstacle else result.replayed + (result.divergence is not None)
        click.echo(f"\n{result.name}: entries {result.first_serial} to {result.first_serial + result.entries - 1}")
        printed = list(trace(read, reached, head["clock"], reached if lines is None else lines))
        for line in printed:
            click.echo(line)
        click.echo(_verdict(result))
        if explain:
            for line in explanations(result.machine):
                click.echo(f"  {line}")


def _verdict(result: Replayed) -> str:
    if result.obstacle:
        return f"{result.name}: cannot be replayed: {result.obstacle}"
    if result.divergence is not None:
        return f"{result.name}: DIVERGED at {result.divergence}"
    return f"{result.name}: {result.replayed} decisions reproduced"
