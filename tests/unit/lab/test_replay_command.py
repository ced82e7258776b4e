"""The command says what it found, on one page or as JSON, and its exit code says whether all was reproduced."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lab.replay_command import replay
from tests.unit.lab.flights import changed, recorded_transfer, write_dump


def run(*arguments: object) -> Result:
    """As a person types it."""
    return CliRunner().invoke(replay, [str(argument) for argument in arguments])


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """A sound one."""
    return write_dump(tmp_path / "dump.jsonl", *(recorder.recording() for recorder in recorded_transfer()))


def test_a_sound_dump_is_0(dump: Path) -> None:
    """Every machine is named with the number of its decisions, and the last entries are shown."""
    result = run(dump, "--lines", 2)
    assert result.exit_code == 0
    assert "decode-0: entries 1 to " in result.stdout
    assert result.stdout.count("decisions reproduced") == 2
    assert "ScatterChunk" not in result.stdout
    assert "ScatterChunk" in run(dump, "--all").stdout


def test_json_counts(dump: Path) -> None:
    """One object with the head of the dump, every machine, and the sums."""
    report = json.loads(run(dump, "--json", "--explain").stdout)
    assert report["dump"]["reason"] == "signal"
    assert [machine["machine"] for machine in report["machines"]] == ["decode-0", "prefill-0"]
    assert report["divergences"] == 0
    assert report["replayed"] == report["entries"] > 10
    assert report["succeeded"]


def test_a_divergence_is_1(tmp_path: Path) -> None:
    """The first entry that is not reproduced is named with both outcomes."""
    recording = recorded_transfer()[0].recording()
    serial = next(entry.serial for entry in recording.entries() if entry.outcome)
    result = run(write_dump(tmp_path / "dump.jsonl", changed(recording, serial, lambda entry: entry._replace(outcome=()))))
    assert result.exit_code == 1
    assert f"decode-0: DIVERGED at entry {serial}, " in result.stdout


def test_a_damaged_dump_is_1(dump: Path) -> None:
    """One character of one line is enough, and the line is named."""
    lines = dump.read_text(encoding="utf-8").splitlines(keepends=True)
    place = next(at for at, line in enumerate(lines) if "register_room" in line)
    lines[place] = lines[place].replace("room-0", "room-9", 1)
    dump.write_text("".join(lines), encoding="utf-8")
    result = run(dump)
    assert result.exit_code == 1
    assert f"line {place + 1}: its digest does not match" in result.stderr


def test_a_missing_file_is_2(tmp_path: Path) -> None:
    """What cannot be read is an error of the command line."""
    assert run(tmp_path / "nothing").exit_code == 2


def test_it_explains_and_draws(dump: Path, tmp_path: Path) -> None:
    """Stopped in the middle, it says why the room does not move, and draws the ring as it was then."""
    picture = tmp_path / "rings.svg"
    result = run(dump, "--until", 3, "--explain", "--plot", picture)
    assert result.exit_code == 0
    assert "room-0" in result.stdout
    assert picture.read_text(encoding="utf-8").startswith("<svg")
