"""Recorders on every machine of simulated worlds with all their faults: whatever happens to a machine can be replayed."""

from pathlib import Path
from random import Random
from typing import TypeVar

import pytest

from decode_service.allocator import StagingAllocator
from decode_service.handler import DecodeStagingHandler
from decode_service.handler_settings import DecodeHandlerSettings
from lab.replay import replay_flight
from lab.simulator.options import draw_options
from lab.simulator.rules import Rules
from lab.simulator.run import run_options
from prefill_service.handler import PrefillStagingHandler
from prefill_service.handler_settings import PrefillHandlerSettings
from runtime.flight_file import dump_lines, read_flight
from runtime.recorder import Recorder

M = TypeVar("M", DecodeStagingHandler, PrefillStagingHandler)

MAX_ENTRIES = 120
"""Few, so that most replays start in the middle of a machine's life."""


@pytest.mark.parametrize("seed", range(8))
def test_every_machine_of_a_world_can_be_replayed(tmp_path: Path, seed: int) -> None:
    """Every life of every machine, from the middle of it to its end, decides in its replay exactly as it did."""
    recorders: list[Recorder] = []

    def decode(settings: DecodeHandlerSettings, allocator: StagingAllocator, random: Random) -> DecodeStagingHandler:
        return _recorded(DecodeStagingHandler(settings, allocator, random), recorders)

    def prefill(settings: PrefillHandlerSettings, random: Random) -> PrefillStagingHandler:
        return _recorded(PrefillStagingHandler(settings, random), recorders)

    run_options(draw_options(seed), Rules(decode, prefill))
    path = tmp_path / "dump.jsonl"
    path.write_text("".join(dump_lines({}, [recorder.recording() for recorder in recorders])), encoding="utf-8")
    results = replay_flight(read_flight(path))
    assert len(results) == len(recorders)
    assert [f"{result.name}: {result.divergence or result.obstacle}" for result in results if not result.succeeded] == []
    assert any(result.first_serial > 1 for result in results)


def _recorded(machine: M, recorders: list[Recorder]) -> M:
    recorder = Recorder(f"machine-{len(recorders)}", 1 << 24, MAX_ENTRIES)
    recorder.attach(machine, None)
    recorders.append(recorder)
    return machine
