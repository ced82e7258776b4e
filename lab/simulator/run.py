"""Run seeds: one alone with its trace, or many on every core with the totals of what happened."""

import os
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from lab.simulator.memory import ViolationError
from lab.simulator.options import Options, draw_options
from lab.simulator.rules import Rules
from lab.simulator.world import World

SHIPPED = Rules()
FAULTS = ("lost", "duplicated", "reordered", "crashed", "paused", "partitioned")
EVENTS = ("wraps", "restarts", "fences", "quarantines", "region_replacements", "rewrites", "aborts")
"""What every batch counts, zeros included: a batch in which one of these never happened has shown little."""


@dataclass(slots=True)
class Outcome:
    """What one seed did. ``violation`` is empty if every promise held."""

    seed: int
    violation: str = ""
    faults: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    results: Counter[str] = field(default_factory=Counter)

    @property
    def stuck(self) -> bool:
        """Whether the violation is one of liveness."""
        return self.violation.startswith("stuck")


def run_options(options: Options, rules: Rules = SHIPPED, log: Callable[[str], None] | None = None) -> Outcome:
    """Run one world. Broken promises and failed assertions of the machines are reported, not raised."""
    world = World(options, rules, log)
    outcome = Outcome(options.seed, faults=world.faults, results=world.results)
    try:
        world.run()
    except ViolationError as error:
        outcome.violation = str(error)
    except Exception as error:  # noqa: BLE001 - whatever a machine raises is a finding, not an end of the batch
        outcome.violation = f"{type(error).__name__} at {_place(error)}: {error}"
    if outcome.violation:
        world.note(f"VIOLATION {outcome.violation}")
    outcome.events = count_events(world)
    return outcome


def run_seed(seed: int, rules: Rules = SHIPPED, log: Callable[[str], None] | None = None) -> Outcome:
    """Run the world that a seed draws."""
    return run_options(draw_options(seed), rules, log)


def run_seeds(
    seeds: Iterable[int], workers: int | None = None, on_done: Callable[[Outcome], None] | None = None
) -> list[Outcome]:
    """Run many seeds on every core; ``on_done`` hears of each as it ends, in the order of the seeds."""
    outcomes = []
    with ProcessPoolExecutor(workers or os.cpu_count()) as pool:
        for outcome in pool.map(run_seed, seeds, chunksize=16):
            outcomes.append(outcome)
            if on_done is not None:
                on_done(outcome)
    return outcomes


def summarise(outcomes: Iterable[Outcome]) -> dict[str, object]:
    """The JSON of a batch: what was broken, and proof that the faults and the events that matter did happen."""
    outcomes = list(outcomes)
    faults: Counter[str] = Counter(dict.fromkeys(FAULTS, 0))
    events: Counter[str] = Counter(dict.fromkeys(EVENTS, 0))
    results: Counter[str] = Counter()
    for outcome in outcomes:
        faults.update(outcome.faults)
        events.update(outcome.events)
        results.update(outcome.results)
    broken = [outcome for outcome in outcomes if outcome.violation]
    return {
        "seeds": len(outcomes),
        "violations": sum(not outcome.stuck for outcome in broken),
        "stuck": sum(outcome.stuck for outcome in broken),
        "failing_seeds": [{"seed": outcome.seed, "violation": outcome.violation} for outcome in broken[:20]],
        "faults": dict(faults),
        "events": dict(events),
        "results": dict(sorted(results.items())),
    }


def count_events(world: World) -> Counter[str]:
    """What the machines of a world did that matters to the protocol."""
    decode: Counter[str] = Counter()
    for rank in world.decodes.values():
        decode.update(rank.totals)
        if rank.alive:
            decode.update(rank.handler.state.counters)
    prefill: Counter[str] = Counter()
    for sender in (*world.prefills.values(), *world.former):
        prefill.update(sender.totals)
        if sender.alive:
            prefill.update(sender.handler.state.counters)
    return Counter(
        wraps=sum(rank.handler.state.grants.allocator.round for rank in world.decodes.values()),
        restarts=world.results["restarts"],
        fences=decode["sessions_fenced"],
        quarantines=decode["grants_quarantined"],
        region_replacements=decode["regions_replaced"],
        replacements_refused=decode["replacements_refused"],
        rewrites=sum(count for name, count in decode.items() if name.startswith("ready_rejected_")),
        aborts=sum(count for name, count in decode.items() if name.startswith("room_failed_aborted")),
        grants=decode["grants"],
        chunks=decode["chunks_scattered"],
        taints=decode["writes_failed"],
        gated=prefill["grants_gated"],
        probes=prefill["probes"],
        leases_lapsed=prefill["leases_lapsed"],
        renegotiations=prefill["planes_failed"],
        abandoned_writes=prefill["writes_abandoned"],
    )


def _place(error: BaseException) -> str:
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return "" if frame is None else f"{Path(frame.tb_frame.f_code.co_filename).name}:{frame.tb_lineno}"
