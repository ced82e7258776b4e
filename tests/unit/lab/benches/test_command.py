"""The command prints one row for each number, with its limit, ratio and target."""

import io

from click.testing import CliRunner
from rich.console import Console

from lab.benches.command import BENCHES, bench, describe_machine, print_rows
from lab.benches.rows import Row, ratio_at_least


def test_every_bench_has_a_name() -> None:
    """The list of benches is the one that is promised."""
    wanted = "allocator control fanout recovery gather scatter staged peers pressure idle blocked memory scale"
    assert list(BENCHES) == wanted.split()


def test_an_unknown_bench_is_refused() -> None:
    """Nothing is measured for a name that is none."""
    assert CliRunner().invoke(bench, ["nothing"]).exit_code == 2


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
