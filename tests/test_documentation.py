"""What the texts name exists, and what an operator may meet is explained: alerts, options, links, failure codes."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from decode_service.__main__ import main as decode_command
from lab.__main__ import main as lab_command
from prefill_service.__main__ import main as prefill_command
from prefill_service.subscribing import _WORTH_WAITING
from prefill_service.transfers import _ROOM_CODES
from protocol.messages import RefusedCode

ROOT = Path(__file__).resolve().parent.parent
TEXTS = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
FOREIGN_OPTIONS = {"--shm-size", "--no-deps", "--kv-transfer-config", "--max-num-seqs", "--shutdown-timeout"}
"""Options of programs that are not ours."""
FAILING = {"fail_room": 1, "fail_rooms_of": 1, "_turn_away": 1, "leave": 1, "end_life": 0}
"""Functions that end rooms, and which of their arguments is the code."""

ids = pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)


def section(title: str) -> str:
    """The part of the operations guide under a heading of the second level."""
    found = re.search(rf"^## {re.escape(title)}\n((?:(?!^## ).*\n?)*)", OPERATIONS, re.MULTILINE)
    assert found is not None, title
    return found[1]


def first_cells(table: str) -> set[str]:
    """Everything in backticks in the first column of the tables of a text."""
    rows = re.findall(r"^\|([^|]*)\|", table, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def options_of(command: click.Command) -> Iterator[str]:
    """Every long option of a command and of those below it."""
    context = click.Context(command)
    for parameter in command.get_params(context):
        yield from (name for name in (*parameter.opts, *parameter.secondary_opts) if name.startswith("--"))
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from options_of(below)


def anchors_of(path: Path) -> set[str]:
    """The anchors that a reader of Markdown makes of a text's headings."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def codes_in_calls() -> Iterator[str]:
    """Every code that is written out where a machine ends rooms."""
    for tree in ("decode_service", "prefill_service"):
        for path in (ROOT / tree).glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in FAILING:
                    code = node.args[FAILING[node.func.attr]] if len(node.args) > FAILING[node.func.attr] else None
                    if isinstance(code, ast.Constant) and isinstance(code.value, str):
                        yield code.value


def test_every_alert_is_explained() -> None:
    """The guide has a row with a reason and an action for each alert of the rules, and for nothing else."""
    rules = (ROOT / "deploy" / "prometheus" / "alerts.yml").read_text(encoding="utf-8")
    alerts = set(re.findall(r"^\s*- alert: (\w+)$", rules, re.MULTILINE))
    assert alerts
    assert first_cells(section("5 Alerts")) == alerts
    rows = re.findall(r"^\| `Staging\w+` \| ([^|]+) \| ([^|]+) \|$", section("5 Alerts"), re.MULTILINE)
    assert len([row for row in rows if all(len(cell.strip()) > len("explain") for cell in row)]) == len(alerts)


def test_every_code_of_a_room_is_explained() -> None:
    """The table of failures names exactly the codes with which a room can end."""
    refusals = {code.value for code in RefusedCode if code not in _WORTH_WAITING}
    assert first_cells(section("9 How a room fails")) == {*codes_in_calls(), *_ROOM_CODES.values(), *refusals}


def test_every_refusal_is_explained() -> None:
    """Under the refusals, each code of the handshake is there."""
    entry = section("8 Incidents, from the symptom").partition("### Layout refused")[2].partition("\n### ")[0]
    assert first_cells(entry) | {"layout"} == {code.value for code in RefusedCode}


@ids
def test_every_option_exists(path: Path) -> None:
    """No text names an option that no command of ours and no program of the examples has."""
    known = {option for command in (decode_command, prefill_command, lab_command) for option in options_of(command)}
    for example in (ROOT / "examples").glob("*.py"):
        known.update(re.findall(r'add_argument\("(--[\w-]+)"', example.read_text(encoding="utf-8")))
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", path.read_text(encoding="utf-8")))
    assert named - known - FOREIGN_OPTIONS - {"--help", "--version"} == set()


@ids
def test_every_link_leads_somewhere(path: Path) -> None:
    """Every link to a file or to a heading has its target."""
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if link.startswith(("https://", "http://")):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            broken.append(link)
    assert broken == []


def test_every_metric_exists() -> None:
    """The metrics that the guide names are made somewhere in the code."""
    code = "\n".join(
        path.read_text(encoding="utf-8")
        for tree in ("runtime", "decode_service", "prefill_service")
        for path in (ROOT / tree).glob("*.py")
    )
    named = re.findall(r"`pd_staging_(\w+)`", OPERATIONS)
    assert named
    assert [name for name in named if name.removesuffix("_total") not in code] == []


def test_every_event_exists() -> None:
    """The log events that the guide names are logged somewhere in the code."""
    code = "\n".join(
        path.read_text(encoding="utf-8")
        for tree in ("runtime", "decode_service", "prefill_service")
        for path in (ROOT / tree).glob("*.py")
    )
    named = set(re.findall(r'"event": "(\w+)"', OPERATIONS))
    named |= set(
        re.findall(
            r"`((?:allow_list|keys|server_key|peer|client|session|subscribe|room|chunk|flight|drain)_[a-z]+(?:_[a-z]+)?)`",
            OPERATIONS,
        )
    )
    events = {name for name in named if not name.endswith("_id")}
    assert [name for name in sorted(events) if f'"{name}"' not in code] == []
