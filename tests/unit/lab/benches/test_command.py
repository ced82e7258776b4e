"""The command prints one row for each number, with its limit, ratio and target."""

import io
from collections.abc import Iterator
from pathlib import Path

from click.testing import CliRunner
from rich.console import Console

from lab.benches.command import BENCHES, bench, describe_machine, measure, print_rows
from lab.benches.effort import Effort
from lab.benches.rows import Row, ratio_at_least


def test_every_bench_has_a_name() -> None:
    """The list of benches is the one that is promised."""
    wanted = "allocator control fanout recovery gather scatter staged peers pressure idle blocked memory scale"
    assert list(BENCHES) == wanted.split()


def test_an_unknown_bench_is_refused() -> None:
    """Nothing is measured for a name that is none."""
    assert CliRunner().invoke(bench, ["nothing"]).exit_code == 2


def test_what_was_measured_before_a_failure_is_kept() -> None:
    """A bench that cannot be carried out is named, and the rows before it are there: a long run is not lost."""

    def fails(_: Effort) -> Iterator[Row]:
        yield Row("b/1", 1.0, "s")
        raise RuntimeError("a daemon is gone")

    rows, failure = measure({"a": lambda _: [Row("a/1", 1.0, "s")], "b": fails, "c": fails}, short=True)
    assert [row.name for row in rows] == ["a/1", "b/1"]
    assert failure == "b: a daemon is gone"


def test_a_document_without_a_place_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    """Nobody waits an hour for that."""
    document = tmp_path / "numbers.md"
    document.write_text("<!-- bench idle -->\n<!-- end -->\n", encoding="utf-8")
    result = CliRunner().invoke(bench, ["idle", "memory", "--into", str(document)])
    assert result.exit_code == 2
    assert "no place for memory" in result.output


def test_the_table_says_what_was_missed() -> None:
    """A missed target is shouted, a note follows the table, and the last line counts."""
    rows = [
        Row("a", 1.0, "GB/s", 2.0, (ratio_at_least(0.8),), "of nothing"),
        Row("b", 2.0, "GB/s", 2.0, (ratio_at_least(0.8),)),
    ]
    text = io.StringIO()
    print_rows(rows, describe_machine(), Console(file=text, width=120))
    assert "NO" in text.getvalue()
    assert "a: of nothing" in text.getvalue()
    assert "1 of 2 targets met" in text.getvalue()
