"""A dump is read back as it was written, and any change to it is found and named."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from prefill_service.handler import PrefillStagingHandler
from runtime.flight_file import FlightError, dump_lines, read_flight
from runtime.recorder import Recorder
from tests.unit.lab.machines import JoinedMachines


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """Both machines of a short transfer."""
    machines = JoinedMachines()
    kept = [Recorder("decode-0", 1 << 20, 1000)]
    kept[0].attach(machines.decode, machines.decode.settings, 3)
    assert machines.send("room-1", "p", 40)
    prefill = machines.prefills["p"]
    kept.append(Recorder("prefill-0", 1 << 20, 1000))
    kept[1].attach(prefill, prefill.settings, 4)
    assert machines.send("room-2", "p", 40)
    path = tmp_path / "dump.jsonl"
    path.write_text("".join(dump_lines({"reason": "signal"}, [recorder.recording() for recorder in kept])), encoding="utf-8")
    return path


def test_a_dump_comes_back(dump: Path) -> None:
    """Names, seeds, settings, entries and memories are those of the machines."""
    flight = read_flight(dump)
    assert flight.head["reason"] == "signal"
    decode, prefill = flight.machines
    assert (decode.name, decode.seed, prefill.name, prefill.seed) == ("decode-0", 3, "prefill-0", 4)
    assert decode.entries[0].verb == "register_room"
    machine = prefill.start()
    assert isinstance(machine, PrefillStagingHandler)
    assert machine.settings == prefill.settings
    assert prefill.start() is not machine


def test_the_file_is_json_lines(dump: Path) -> None:
    """Any tool can read it: every line is one JSON object with a digest and one body."""
    for line in dump.read_text(encoding="utf-8").splitlines():
        assert list(json.loads(line)) == ["sum", "body"]


def test_pickle_is_nowhere(dump: Path) -> None:
    """A dump is text from its first byte to its last."""
    dump.read_bytes().decode("ascii")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda lines: [*lines[:9], lines[9].replace("1", "2", 40), *lines[10:]], "line 10: "),
        (lambda lines: [*lines[:5], *lines[6:]], "line 6: its digest"),
        (lambda lines: [*lines[:5], lines[6], lines[5], *lines[7:]], "line 6: its digest"),
        (lambda lines: lines[:-1], "ends here"),
        (lambda lines: [*lines, lines[-1]], "digest"),
        (lambda _: [], "line 1: the dump ends"),
        (lambda _: ["nothing of the kind\n"], "line 1: this is no line"),
        (lambda lines: [lines[0][:-20]], "line 1: this is no line"),
    ],
    ids=["altered", "lost", "moved", "end lost", "added", "empty", "foreign", "cut"],
)
def test_a_changed_dump_is_found(dump: Path, change: Callable[[list[str]], list[str]], problem: str) -> None:
    """A line that was altered, lost, moved, added or cut is an error that names the line."""
    lines = dump.read_text(encoding="utf-8").splitlines(keepends=True)
    dump.write_text("".join(change(lines)), encoding="utf-8")
    with pytest.raises(FlightError, match=problem):
        read_flight(dump)


def test_another_version_is_refused(tmp_path: Path) -> None:
    """A dump in a format of the future says so at its first line."""
    path = tmp_path / "dump.jsonl"
    path.write_text("".join(dump_lines({"format_version": 2}, [])), encoding="utf-8")
    with pytest.raises(FlightError, match="version 1, found 'pd-staging flight' version 2"):
        read_flight(path)
