"""What the arms of the ablation did, and why: two tables for people, one JSON object for programs."""

from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from lab.ablation import ArmResult, PhaseCount
from lab.report import print_failures

EXPECTED_SURVIVORS = {False: {"both"}, True: {"restart_only", "both"}}
"""By repair: which arms must survive. All others must be proven to stall."""

_WHY_STALLED = {
    (False, False): "the ring drained and left its head parked, so its watermark refuses a chunk larger than half of the ring",
    (True, False): "the drain raised the round, and sessions that began after it were told nothing and still believe (0, 0)",
    (False, True): "the new sessions know the watermark, but it is that of a parked head and refuses them all the same",
}


def as_expected(results: Sequence[ArmResult]) -> bool:
    """Whether exactly the arms that should survive did, and all others were proven to stall."""
    return all(
        result.survived if result.arm.name in EXPECTED_SURVIVORS[result.repair] else result.stalled for result in results
    )


def ablation_json(results: Sequence[ArmResult]) -> dict[str, object]:
    """The JSON object."""
    return {
        "as_expected": as_expected(results),
        "arms": [_arm_json(result) for result in results if not result.repair],
        "arms_with_repair": [_arm_json(result) for result in results if result.repair],
    }


def print_ablation(results: Sequence[ArmResult], console: Console) -> None:
    """Show both tables, the reason of every outcome, and the verdict."""
    for repair, title in ((False, "without repair, as in the original"), (True, "with repair")):
        chosen = [result for result in results if result.repair is repair]
        if chosen:
            console.print(_table(f"Ablation {title}", chosen))
            for result in chosen:
                console.print(f"{result.arm.name}: {explain(result)}", markup=False, highlight=False, soft_wrap=True)
    print_failures([failure for result in results for failure in result.failures], console)
    verdict = "Every arm did what its mechanism says." if as_expected(results) else "AN ARM DID NOT DO WHAT ITS MECHANISM SAYS."
    console.print(verdict)


def explain(result: ArmResult) -> str:
    """Why this arm ended as it did."""
    if result.stalled:
        reason = _WHY_STALLED.get((result.arm.restart, result.arm.snapshot), "it should not have")
        return f"stalled: {reason}. Nothing can move: {len(result.blocked)} chunks wait, the first: {result.blocked[0]}"
    if not result.speaks_right:
        return "completed, but not every answer is the single process's, or not every time was measured"
    if not result.survived:
        return "did not complete: " + (f"{result.failures[0].code}" if result.failures else "requests are missing")
    if result.arm.restart and result.arm.snapshot:
        return "completed: the empty ring restarts at 0, and every new session is told so"
    if result.repair and result.arm.restart:
        return "completed: the new sessions were told nothing at first, and learned the watermark with each answer"
    return "completed"


def _table(title: str, results: Sequence[ArmResult]) -> Table:
    table = Table(title=title)
    for name in ("arm", "restart", "snapshot", "warm-up", "in flight", "profile"):
        table.add_column(name, justify="left" if name == "arm" else "right")
    for result in results:
        table.add_row(
            result.arm.name,
            "yes" if result.arm.restart else "no",
            "yes" if result.arm.snapshot else "no",
            f"{result.warmup.completed}/{result.warmup.total}",
            f"{result.warmup.in_flight}",
            "-" if result.profile is None else f"{result.profile.completed}/{result.profile.total}",
        )
    return table


def _arm_json(result: ArmResult) -> dict[str, object]:
    return {
        "name": result.arm.name,
        "fixes": {"restart": result.arm.restart, "snapshot": result.arm.snapshot},
        "warmup": _phase_json(result.warmup) | {"in_flight": result.warmup.in_flight},
        "profile": None if result.profile is None else _phase_json(result.profile) | _coverage_json(result),
        "tokens": None if result.speech is None else result.speech.tokens_json(),
        "stalled": result.stalled,
        "why": explain(result),
        "blocked": [str(chunk) for chunk in result.blocked],
        "mismatches": result.mismatches,
        "failures": [asdict(failure) for failure in result.failures],
        "duration_s": round(result.duration_s, 3),
    }


def _coverage_json(result: ArmResult) -> dict[str, object]:
    measured = result.coverage
    return {} if measured is None else {"ttft_coverage": measured.ttft, "itl_coverage": measured.itl}


def _phase_json(phase: PhaseCount) -> dict[str, object]:
    return {"completed": phase.completed, "total": phase.total}
