"""Tables go to their places in a document, and nothing else of it changes."""

from pathlib import Path

import pytest

from lab.benches.command import BENCHES
from lab.benches.document import missing_places, put_tables
from lab.benches.rows import Row, ratio_at_least

DOCUMENT = """# Numbers

<!-- bench idle -->
| old |
<!-- end -->
because

<!-- bench staged -->
<!-- end -->
"""


def test_a_table_replaces_the_former_one() -> None:
    """Every row of the bench, its ratio and what it is held to; the text around it and other tables stay."""
    rows = [Row("idle/daemon", 0.5, "%", 2.0, (ratio_at_least(0.8),)), Row("idle/other", 1e9, "B")]
    text = put_tables(DOCUMENT, [row.to_json() for row in rows])
    assert "| daemon | 0.5 | 2 | % | 0.25 | ratio ≥ 0.8 | **no** |" in text
    assert "| other | 1e+09 |  | B |  |  |  |" in text
    assert "old" not in text
    assert text.endswith("because\n\n<!-- bench staged -->\n<!-- end -->\n")
    assert put_tables(text, [row.to_json() for row in rows]) == text


def test_the_published_numbers_have_a_place_for_every_bench() -> None:
    """A run of all of them renews ``docs/performance.md``."""
    document = Path(__file__).parents[4] / "docs" / "performance.md"
    assert missing_places(document.read_text(encoding="utf-8"), BENCHES) == []


def test_a_bench_without_a_place_is_named() -> None:
    """Nothing is lost silently: the bench and what was expected."""
    assert missing_places(DOCUMENT, ["idle", "blocked"]) == ["blocked"]
    with pytest.raises(ValueError, match=r"no place for blocked: expected <!-- bench NAME -->"):
        put_tables(DOCUMENT, [Row("blocked/x", 1.0, "s").to_json()])
