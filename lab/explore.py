"""``python -m lab explore``: every interleaving of a small deployment and a few faults, on the shipped machines."""

import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, wait
from multiprocessing import Manager
from queue import Empty, Queue

import click
from rich.console import Console
from rich.table import Table

from lab.explore_search import Found, explore
from lab.explore_state import Budget
from lab.explore_world import Shape
from lab.progress import ProgressView, open_progress
from lab.report import print_json

MAX_CRASHES = 2
MAX_ABORTS = 2
POLL_S = 0.5


def shapes(faults: int) -> tuple[Shape, ...]:
    """The deployments that are searched, the largest first: two rivals for one ring, and two writers of each chunk."""
    budget = Budget(faults, min(faults, MAX_CRASHES), min(faults, MAX_ABORTS))
    return (
        Shape("rivals", ("g0", "g1"), (("a", "g0", 2), ("b", "g1", 1)), ring_bytes=2, budget=budget),
        Shape("writers", ("g0", "g0"), (("a", "g0", 2),), ring_bytes=4, budget=budget),
    )


@click.command("explore")
@click.option("--faults", type=click.IntRange(0, 3), default=2, help="Losses, repetitions, crashes and aborts together.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def explore_command(faults: int, *, as_json: bool) -> None:
    """Search every interleaving of two prefills, one decode, three chunks and a few faults for a broken promise."""
    chosen = shapes(faults)
    with open_progress() as view:
        results = search_all(chosen, view)
    if as_json:
        print_json(explored_json(chosen, results))
    else:
        print_explored(chosen, results, Console())
    sys.exit(0 if all(found.exhausted for found in results) else 1)


def search_all(chosen: tuple[Shape, ...], view: ProgressView) -> list[Found]:
    """Search each shape in a process of its own."""
    with Manager() as manager, ProcessPoolExecutor(len(chosen)) as pool:
        counts: Queue[tuple[str, int, int]] = manager.Queue()
        running = [pool.submit(_search, shape, counts.put) for shape in chosen]
        view.phase("shapes searched", len(chosen))
        latest = {shape.name: (0, 0) for shape in chosen}
        while wait(running, POLL_S).not_done:
            _drain(counts, latest)
            texts = (f"{name} {states} states, {waiting} waiting" for name, (states, waiting) in latest.items())
            view.advance(sum(future.done() for future in running), "; ".join(texts))
        view.advance(len(chosen))
        return [future.result() for future in running]


def explored_json(chosen: tuple[Shape, ...], results: list[Found]) -> dict[str, object]:
    """The bounds, what was found within them, and whether that was everything."""
    return {
        "exhausted": all(found.exhausted for found in results),
        "states": sum(found.states for found in results),
        "steps": sum(found.steps for found in results),
        "violations": sum(bool(found.violation) for found in results),
        "searches": [{**bounds(shape), **outcome(found)} for shape, found in zip(chosen, results, strict=True)],
    }


def bounds(shape: Shape) -> dict[str, object]:
    """Within what a shape is searched."""
    return {
        "name": shape.name,
        "prefills": len(shape.prefills),
        "decodes": 1,
        "ring_bytes": shape.ring_bytes,
        "chunks": sum(chunks for _, _, chunks in shape.rooms),
        "writers_per_chunk": shape.writers,
        "faults": {"together": shape.budget.total, "crashes": shape.budget.crashes, "aborts": shape.budget.aborts},
        "fault_kinds": ["lost", "repeated", "crash", "abort"],
        "horizon_s": shape.horizon_s,
    }


def outcome(found: Found) -> dict[str, object]:
    """What a search has shown."""
    return {
        "states": found.states,
        "steps": found.steps,
        "ends": found.ends,
        "longest_s": found.longest_s,
        "exhausted": found.exhausted,
        "violation": found.violation,
        "path": found.path,
    }


def print_explored(chosen: tuple[Shape, ...], results: list[Found], console: Console) -> None:
    """One line per shape, and the way to a broken promise if there is one."""
    table = Table(box=None)
    for heading in ("shape", "chunks", "faults", "states", "steps", "all seen"):
        table.add_column(heading, justify="left" if heading == "shape" else "right")
    for shape, found in zip(chosen, results, strict=True):
        chunks = sum(count for _, _, count in shape.rooms)
        cells = (chunks, shape.budget.total, found.states, found.steps, "yes" if found.exhausted else "no")
        table.add_row(shape.name, *(str(cell) for cell in cells))
    console.print(table)
    for found in results:
        for line in [*found.path, found.violation] if found.violation else ():
            console.print(f"{found.shape}: {line}", markup=False, highlight=False)


def _search(shape: Shape, report: Callable[[tuple[str, int, int]], None]) -> Found:
    return explore(shape, lambda found, waiting: report((shape.name, found.states, waiting)))


def _drain(counts: "Queue[tuple[str, int, int]]", latest: dict[str, tuple[int, int]]) -> None:
    while True:
        try:
            name, states, waiting = counts.get_nowait()
        except Empty:
            return
        latest[name] = (states, waiting)
