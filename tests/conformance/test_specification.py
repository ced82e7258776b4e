"""``docs/protocol.md`` describes what is there: every message with all its keys in order, every fault, every bound."""

import dataclasses
import re
from pathlib import Path

import pytest

from protocol import limits
from protocol.errors import Fault
from protocol.layout import RankLayout, TensorSpec
from protocol.messages import Blocked, DoneStatus, ErrorCode, GrantSlice, GrantStatus, RefusedCode
from tests.conformance.meaning import KINDS

TEXT = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")


def _section(heading: str) -> str:
    found = re.search(rf"^###? {re.escape(heading)}$(.*?)(?=^##)", TEXT, re.MULTILINE | re.DOTALL)
    assert found, f"no section {heading!r}"
    return found[1]


def _fields(kind: type) -> list[str]:
    assert dataclasses.is_dataclass(kind)
    return [field.name for field in dataclasses.fields(kind)]


@pytest.mark.parametrize("name", sorted(KINDS))
def test_every_message_is_described(name: str) -> None:
    """The section of a message starts with a table of exactly its keys, in wire order."""
    rows = re.findall(r"^\| `(\w+)` \|", _section(name).split("\n\nA grant is")[0], re.MULTILINE)
    assert rows == _fields(KINDS[name])


@pytest.mark.parametrize(("kind", "heading"), [(GrantSlice, "STAGING_RSP"), (Blocked, "HEARTBEAT")])
def test_every_nested_record_is_described(kind: type, heading: str) -> None:
    """Maps inside messages are described where they occur."""
    assert all(f"`{field}`" in _section(heading) for field in _fields(kind))


@pytest.mark.parametrize("kind", [RankLayout, TensorSpec])
def test_the_layout_is_described(kind: type) -> None:
    """Every key of a layout and of a tensor stands in the section on its wire form."""
    assert all(f"`{field}`" in _section("6.1 Wire form") for field in _fields(kind))


def test_every_word_is_described() -> None:
    """Every status and code that may be sent is listed."""
    assert all(f"| `{status}` |" in _section("9. Granting") for status in GrantStatus)
    assert all(f"`{status}`" in _section("CHUNK_DONE") for status in DoneStatus)
    assert all(f"`{code}`" in _section("REFUSED") for code in RefusedCode)
    assert all(f"`{code}`" in _section("ERROR") for code in ErrorCode)


def test_every_fault_is_described() -> None:
    """Every code of a refused frame is listed."""
    assert re.findall(r"^\| `(\w+)` \|", _section("3.4 Faults"), re.MULTILINE) == [fault.value for fault in Fault]


def test_the_numbers_are_those_of_the_code() -> None:
    """The bounds in the text are the bounds that are enforced."""
    bounds = _section("3.3 Bounds")
    for value in (
        limits.MAX_CONTROL_MESSAGE_BYTES,
        limits.MAX_LIST_ITEMS,
        limits.MAX_TEXT_BYTES,
        limits.MAX_RANKS - 1,
        int(limits.MAX_DURATION_S),
    ):
        assert f"{value:,}".replace(",", " ") in bounds
    for row in (
        f"frames of a control message | {limits.MAX_FRAMES} |",
        f"keys of a map | {limits.MAX_MAP_KEYS} |",
        f"the body included | {limits.MAX_DEPTH} |",
        f"1 to {limits.MAX_ID_BYTES} printable",
    ):
        assert row in bounds
    exponents = {limits.MAX_ATTEMPT: 31, limits.MAX_ROOM_TOKENS: 31, limits.MAX_CHUNK_TOKENS: 24, limits.MAX_UINT63 + 1: 63}
    assert all(value == 2**exponent for value, exponent in exponents.items())
    assert f"at most {limits.MAX_DESCRIPTOR_BYTES:,} bytes".replace(",", " ") in _section("SUBSCRIBED")
    assert f"at most {limits.MAX_DIFFERENCES}," in _section("REFUSED")
    assert f"{limits.MAX_LAYOUT_TENSORS} tensors over all runs" in _section("6.1 Wire form")
