"""``docs/known-failures.md`` names, for each failure, its reports or their absence, and tests that exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs" / "known-failures.md").read_text(encoding="utf-8")
ENTRIES = dict(re.findall(r"^### (.+)\n((?:(?!^##).*\n)*)", TEXT, re.MULTILINE))
PRODUCT = ("protocol", "decode_service", "prefill_service", "runtime", "lab")
PICKLES_ITS_OWN = "lab/explore_snapshot.py"
"""The exhaustive search keeps machines as bytes in its own memory; nothing that it did not write itself is ever read."""


@cache
def names_in(path: str) -> frozenset[str]:
    """Names of the functions of one file; empty for a file that does not exist."""
    file = ROOT / path
    if not file.is_file():
        return frozenset()
    nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("title", ENTRIES)
def test_every_entry_is_held(title: str) -> None:
    """Each failure has its reports or says that none is known, what is done here, and at least one test, all of which exist."""
    entry = ENTRIES[title]
    reported, _, rest = entry.partition("- Here: ")
    assert "- Reported: " in reported
    assert "<https://github.com/" in reported or "no report is known" in reported
    _, _, held = rest.partition("- Held by: ")
    named = re.findall(r"`(tests/[^:`]+)::(\w+)`", held)
    assert named
    assert [f"{path}::{test}" for path, test in named if test not in names_in(path)] == []


def test_every_test_is_named_in_full() -> None:
    """No test is named anywhere else in the text in a form that the check above would pass over."""
    assert len(re.findall(r"\btest_\w+`", TEXT)) == len(re.findall(r"`tests/[^:`]+::\w+`", TEXT))
    assert len(ENTRIES) == TEXT.count("\n### ") > 40


def test_nothing_is_pickled() -> None:
    """No module of the product imports a format that runs code when it is read, but the one that reads only itself."""
    found = []
    for tree in PRODUCT:
        for path in (ROOT / tree).rglob("*.py"):
            if path == ROOT / PICKLES_ITS_OWN:
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                found += [f"{path}: {name}" for name in names if name.split(".")[0] in {"pickle", "marshal", "shelve", "dill"}]
    assert found == []
