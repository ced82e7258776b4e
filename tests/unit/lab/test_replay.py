"""A replay reproduces every decision, or names the first one that it does not."""

from pathlib import Path

import pytest

from lab.replay import Replayed, explanations, replay_flight, time_of, trace
from protocol.errors import LocalProtocolError
from runtime.flight_file import read_flight
from runtime.recorder import Entry, Raised, Recorder, Recording
from tests.unit.lab.flights import changed, recorded_transfer, with_start, write_dump
from tests.unit.lab.machines import JoinedMachines


def replayed(folder: Path, *recordings: Recording, until: int | None = None) -> list[Replayed]:
    """Through a file, as an operator does it."""
    return replay_flight(read_flight(write_dump(folder / "dump.jsonl", *recordings)), until)


def test_both_sides_are_reproduced(tmp_path: Path) -> None:
    """A machine recorded from its birth, and one from the middle of its life, decide again what they had decided."""
    decode, prefill = replayed(tmp_path, *(recorder.recording() for recorder in recorded_transfer()))
    for result in (decode, prefill):
        assert result.succeeded
        assert result.replayed == result.entries > 5
    assert (decode.first_serial, decode.seed, prefill.seed) == (1, 3, 4)


def test_a_dump_that_lost_its_beginning_is_reproduced(tmp_path: Path) -> None:
    """When the ring has dropped the first entries, the replay starts from the memory that the rest begins with."""
    for result in replayed(tmp_path, *(recorder.recording() for recorder in recorded_transfer(rooms=30, max_entries=40))):
        assert result.succeeded
        assert result.first_serial > 100
        assert 0 < result.replayed <= 40


def test_a_tampered_argument_is_caught(tmp_path: Path) -> None:
    """An entry that says something else than what came in leads to another decision, and is named."""
    recording = recorded_transfer()[0].recording()
    serial, room = next((entry.serial, entry.arguments[0]) for entry in recording.entries() if entry.verb == "register_room")
    assert room == "room-0"
    changes = changed(recording, serial, lambda entry: entry._replace(arguments=("other", *entry.arguments[1:])))
    (result,) = replayed(tmp_path, changes)
    assert not result.succeeded
    assert result.divergence is not None
    assert result.divergence.serial > serial
    assert "room-0" in str(result.divergence)
    assert result.replayed == result.divergence.serial - 1


def test_a_tampered_decision_is_caught(tmp_path: Path) -> None:
    """An entry whose outputs were changed diverges right there, with both versions in the report."""
    recording = recorded_transfer()[0].recording()
    serial = next(entry.serial for entry in recording.entries() if entry.outcome)
    (result,) = replayed(tmp_path, changed(recording, serial, lambda entry: entry._replace(outcome=())))
    assert result.divergence is not None
    assert result.divergence.serial == serial
    assert result.divergence.recorded == "nothing"
    assert result.divergence.replayed != "nothing"
    assert result.to_map()["divergence"] == {
        "serial": serial,
        "entry": result.divergence.entry,
        "recorded": "nothing",
        "replayed": result.divergence.replayed,
    }


def test_a_crash_is_reproduced(tmp_path: Path) -> None:
    """A verb that raised raises again in the replay: a crash can be looked at as often as one likes."""
    machines = JoinedMachines()
    assert machines.send("room", "p", 40)
    handler = machines.prefills["p"]
    recorder = Recorder("prefill-0", 1 << 20, 1000)
    recorder.attach(handler, None)
    with pytest.raises(LocalProtocolError):
        handler.write_finished(999, None, machines.now)
    (result,) = replayed(tmp_path, recorder.recording())
    assert result.succeeded
    (entry,) = recorder.recording().entries()
    assert isinstance(entry.outcome, Raised)
    assert entry.outcome.kind == "LocalProtocolError"


def test_it_stops_where_it_is_told(tmp_path: Path) -> None:
    """With a last entry given, the machine is left as it was after that one, and can be asked why things stand still."""
    recording = recorded_transfer()[0].recording()
    serial = next(entry.serial for entry in recording.entries() if entry.verb == "register_room")
    (result,) = replayed(tmp_path, recording, until=serial)
    assert result.succeeded
    assert result.replayed == serial
    assert any("room-0" in line for line in explanations(result.machine))


def test_what_cannot_be_replayed_says_why(tmp_path: Path) -> None:
    """Without a memory to start from, or with a verb that is none, there is no success and a reason."""
    recording = recorded_transfer()[0].recording()
    nothing, odd = with_start(recording, None), changed(recording, 2, lambda entry: entry._replace(verb="__init__"))
    first, second = replayed(tmp_path, nothing, odd)
    assert "too large" in first.obstacle
    assert second.obstacle.startswith("entry 2: '__init__' is no verb")
    assert not first.succeeded
    assert not second.succeeded
    assert list(explanations(first.machine)) == []


def test_the_trace_says_what_came_and_what_was_decided(tmp_path: Path) -> None:
    """One line for each of the last entries with its time, and one for each output."""
    flight = read_flight(write_dump(tmp_path / "dump.jsonl", recorded_transfer()[0].recording()))
    (machine,) = flight.machines
    lines = list(trace(machine, len(machine.entries), 10.0, 3))
    heads = [line for line in lines if not line.lstrip().startswith((">", "!"))]
    assert len(heads) == 3
    assert "-10.000000 s" in heads[0]
    outcomes = [entry.outcome for entry in machine.entries[-3:]]
    assert len(lines) == 3 + sum(len(outcome) for outcome in outcomes if isinstance(outcome, tuple))


def test_the_time_is_found_wherever_it_stands() -> None:
    """By position or by name, in the middle of the arguments or at their end."""
    machine = JoinedMachines().decode
    assert time_of(machine, Entry(1, "tick", (2.5,), {}, ())) == 2.5
    assert time_of(machine, Entry(1, "session_quiet", ("s", 3.5), {"died": True}, ())) == 3.5
    assert time_of(machine, Entry(1, "tick", (), {"now": 4.5}, ())) == 4.5
