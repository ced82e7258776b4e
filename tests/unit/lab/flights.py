"""Dumps of a short transfer between real machines, for the tests of their replay."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from runtime.flight_file import dump_lines
from runtime.freezing import Frozen
from runtime.packing import pack
from runtime.recorder import Block, Entry, Recorder, Recording
from tests.unit.lab.machines import JoinedMachines


def recorded_transfer(rooms: int = 2, max_entries: int = 1000) -> tuple[Recorder, ...]:
    """Recorders of a decode machine, from its birth, and of a prefill machine, from its second room on."""
    machines = JoinedMachines()
    decode = Recorder("decode-0", 1 << 20, max_entries)
    decode.attach(machines.decode, machines.decode.settings, 3)
    assert machines.send("room-0", "p", 40)
    handler = machines.prefills["p"]
    prefill = Recorder("prefill-0", 1 << 20, max_entries)
    prefill.attach(handler, handler.settings, 4)
    for number in range(1, rooms):
        assert machines.send(f"room-{number}", "p", 40)
    return decode, prefill


def changed(recording: Recording, serial: int, change: Callable[[Entry], Entry]) -> Recording:
    """The recording with one entry replaced, as somebody would who also mends the digests."""
    entries = [change(entry) if entry.serial == serial else entry for entry in recording.entries()]
    return replace(recording, blocks=(Block.of([pack(tuple(entry)) for entry in entries]),))


def with_start(recording: Recording, start: Frozen | None) -> Recording:
    """The recording with another memory to start from."""
    return replace(recording, start=start)


def write_dump(path: Path, *recordings: Recording) -> Path:
    """A dump of these recordings."""
    head: dict[str, object] = {"service_id": "d", "reason": "signal", "time": "2026-01-01T00:00:00+00:00", "clock": 10.0}
    path.write_text("".join(dump_lines(head, recordings)), encoding="utf-8")
    return path
