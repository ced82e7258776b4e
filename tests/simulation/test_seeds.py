"""Seeded worlds keep every promise: a few hundred of them, all climates, and every seed that has ever shown a bug."""

import pytest

from lab.simulator.options import draw_options
from lab.simulator.run import run_options, run_seed, summarise
from tests.simulation.climates import CLIMATES, complaint, weather

BATCHES = 8
SEEDS_PER_BATCH = 20
SEEDS_PER_CLIMATE = 5

PINNED = {
    ("small_ring", 68): "a decode rank that was not asked yet never heard that its room had failed",
    ("mixed", 4538): "a room id was used again while the abort of its former room was still repeated",
    ("unanswered", 4): "the same, in a small world",
    ("landing_aborts", 30): "an abort was acknowledged although a failed one-sided write could still land",
    ("landings", 198): "the same, by a subscription that said all had stopped",
    ("mixed", 4941): "a plane was given up because an answer named a region that was replaced while it travelled",
    ("mixed", 2386): "two writers of whose chunks only one asked by itself waited for turns longer than the bound allowed",
    ("mixed", 1370): "a life whose place was taken came back with its successor's incarnation: the world's own mistake",
}
"""Climate and seed, and what went wrong there once."""


@pytest.mark.parametrize("batch", range(BATCHES))
def test_drawn_worlds_keep_every_promise(batch: int) -> None:
    """Nothing is violated and nothing hangs, whatever the seed draws."""
    outcomes = [run_seed(seed) for seed in range(batch * SEEDS_PER_BATCH, (batch + 1) * SEEDS_PER_BATCH)]
    summary = summarise(outcomes)
    assert (summary["violations"], summary["stuck"]) == (0, 0), summary["failing_seeds"]


@pytest.mark.parametrize("climate", CLIMATES)
def test_every_climate_is_survived(climate: str) -> None:
    """Each kind of fault alone is survived as well, and what may not fail there does not."""
    for seed in range(SEEDS_PER_CLIMATE):
        assert not complaint(climate, run_options(weather(climate, seed))), f"seed {seed}"


@pytest.mark.parametrize(("climate", "seed"), PINNED)
def test_what_went_wrong_once_stays_right(climate: str, seed: int) -> None:
    """A seed that has shown a bug is run for ever."""
    assert not complaint(climate, run_options(weather(climate, seed)))


def test_same_seed_same_world() -> None:
    """A seed decides everything: two runs say the same, line by line."""
    traces: tuple[list[str], list[str]] = ([], [])
    for trace in traces:
        run_options(draw_options(11), log=trace.append)
    assert traces[0]
    assert traces[0] == traces[1]
