"""A document whose tables a run fills in: each stands between ``<!-- bench NAME -->`` and ``<!-- end -->``."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

HEAD = ("| | value | limit | unit | ratio | target | met |", "|---|---:|---:|---|---:|---|---|")
_MET = {None: "", True: "yes", False: "**no**"}
_RELATIONS = str.maketrans({"<": "≤", ">": "≥", "=": None})
_PLACE = r"(<!-- bench {name} -->\n).*?(<!-- end -->)"


def missing_places(text: str, names: Iterable[str]) -> list[str]:
    """The benches for which ``text`` has no place."""
    return [name for name in names if _place(name).search(text) is None]


def put_tables(text: str, rows: Iterable[Mapping[str, Any]]) -> str:
    """``text`` with a new table for every bench among ``rows``, which are as ``Row.to_json`` makes them.

    Raises ``ValueError`` for a bench that has no place.
    """
    tables: dict[str, list[str]] = {}
    for row in rows:
        name, _, label = row["name"].partition("/")
        tables.setdefault(name, list(HEAD)).append(_line(row, label))
    if missing := missing_places(text, tables):
        raise ValueError(f"no place for {', '.join(missing)}: expected <!-- bench NAME --> and <!-- end -->")
    for name, lines in tables.items():
        table = "\n".join((*lines, ""))
        text = _place(name).sub(lambda place, table=table: place[1] + table + place[2], text)  # type: ignore[misc]
    return text


def _place(name: str) -> re.Pattern[str]:
    return re.compile(_PLACE.format(name=re.escape(name)), re.DOTALL)


def _line(row: Mapping[str, Any], label: str) -> str:
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
    target = (row["target"] or "").translate(_RELATIONS)
    cells = (label, _number(row["value"]), _number(row["limit"]), row["unit"], ratio, target, _MET[row["met"]])
    return f"| {' | '.join(cells)} |"


def _number(number: float | None) -> str:
    return "" if number is None else f"{number:g}"
