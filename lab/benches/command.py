"""``lab bench [NAME|all]``: run benches and show what each number is held to."""

import datetime as dt
import os
import platform
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from lab.benches.allocator import bench_allocator
from lab.benches.control import bench_control
from lab.benches.copies import bench_gather, bench_scatter
from lab.benches.document import missing_places, put_tables
from lab.benches.effort import Benches, Effort
from lab.benches.fairness import bench_pressure
from lab.benches.fanout import bench_fanout
from lab.benches.memory import bench_memory
from lab.benches.peers import bench_peers
from lab.benches.recovery import bench_recovery
from lab.benches.rows import Row, rounded
from lab.benches.scale import bench_scale
from lab.benches.staged import bench_staged
from lab.benches.standing import bench_blocked, bench_idle
from lab.chaos.expectations import NotAsExpected
from lab.process import DaemonDied
from lab.progress import open_progress
from lab.report import print_json
from runtime.pool_layout import PoolError

BENCHES: Benches = {
    "allocator": bench_allocator,
    "control": bench_control,
    "fanout": bench_fanout,
    "recovery": bench_recovery,
    "gather": bench_gather,
    "scatter": bench_scatter,
    "staged": bench_staged,
    "peers": bench_peers,
    "pressure": bench_pressure,
    "idle": bench_idle,
    "blocked": bench_blocked,
    "memory": bench_memory,
    "scale": bench_scale,
}
ALL = "all"


@click.command()
@click.argument("names", nargs=-1, type=click.Choice([ALL, *BENCHES]), metavar="[NAME|all]...")
@click.option("--short", is_flag=True, help="Less than a minute: fewer rounds and sizes.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--into", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Replace the tables of this document."
)
def bench(names: Sequence[str], *, short: bool, as_json: bool, into: Path | None) -> None:
    """Measure the product beside what limits it, in one run, and hold the ratios to their targets.

    Benches: allocator, control, fanout, recovery, gather, scatter, staged, peers, pressure, idle, blocked, memory, scale.
    Exits with 0 whatever the numbers are: they are for people to judge. A bench that cannot be carried out ends the run, and
    what was measured before it is shown.
    """
    chosen = BENCHES if not names or ALL in names else {name: BENCHES[name] for name in dict.fromkeys(names)}
    if into is not None and (missing := missing_places(into.read_text(encoding="utf-8"), chosen)):
        raise click.BadParameter(f"{into} has no place for {', '.join(missing)}", param_hint="--into")
    machine = describe_machine()
    rows, failure = measure(chosen, short=short)
    shown = [row.to_json() for row in rows]
    if as_json:
        print_json({"machine": machine, "short": short, "bench": shown})
    else:
        print_rows(rows, machine, Console())
    if into is not None:
        into.write_text(put_tables(into.read_text(encoding="utf-8"), shown), encoding="utf-8")
    if failure:
        raise click.ClickException(failure)


def measure(benches: Benches, *, short: bool) -> tuple[list[Row], str]:
    """Rows in the order of the benches, and why there are no more of them (empty: these are all)."""
    rows: list[Row] = []
    with open_progress() as view:
        for name, bench in benches.items():
            try:
                rows += bench(Effort(short, view))
            except (DaemonDied, NotAsExpected, PoolError, OSError, RuntimeError) as error:
                return rows, f"{name}: {error}"
    return rows, ""


def describe_machine() -> dict[str, object]:
    """Where and when this run takes place, and how busy the machine was before it."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    models = {line.partition(":")[2].strip() for line in lines if line.startswith("model name")}
    return {
        "cpu": ", ".join(sorted(models)) or platform.machine(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": [round(load, 2) for load in os.getloadavg()],
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
    }


def print_rows(rows: Sequence[Row], machine: dict[str, object], console: Console) -> None:
    """Show one table, and how many targets were met."""
    table = Table(title="pd-staging bench")
    for name in ("bench", "value", "limit", "unit", "ratio", "target", "met"):
        table.add_column(name, justify="right" if name in {"value", "limit", "ratio"} else "left", overflow="fold")
    for row in rows:
        met = {None: "", True: "yes", False: "NO"}[row.met]
        numbers = ("" if number is None else f"{rounded(number):g}" for number in (row.value, row.limit))
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        table.add_row(row.name, *numbers, row.unit, ratio, row.target or "", met)
    console.print(table)
    for row in rows:
        if row.note:
            console.print(f"{row.name}: {row.note}", markup=False, highlight=False, soft_wrap=True)
    judged = [row for row in rows if row.met is not None]
    text = (
        f"{sum(row.met is True for row in judged)} of {len(judged)} targets met on {machine['cores']} cores ({machine['cpu']})"
    )
    console.print(f"{text}, load before {machine['load_before']}", markup=False, highlight=False, soft_wrap=True)
