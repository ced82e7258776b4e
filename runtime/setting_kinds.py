"""Kinds of setting: how each is read from a file, the environment or a flag, and how it is written back.

A TOML file gives typed values, the environment and flags give text; every kind reads both. ``parse`` raises ``ValueError`` for
what it cannot read, and the caller says which setting it was and what would have been right.
"""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from protocol.limits import MAX_LIST_ITEMS, MAX_RANKS

T = TypeVar("T")

_SIZE = re.compile(r"(\d{1,18})\s*(B|KiB|MiB|GiB|TiB)?")
_UNITS = {"TiB": 1 << 40, "GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")
_ENDPOINT = re.compile(r"(tcp://(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)):(\d{1,5})(?:-(\d{1,5}))?")
_SWITCH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """One way to read and write a value. ``expected`` completes the sentence "expected ..."."""

    metavar: str
    expected: str
    parse: Callable[[object], T]
    render: Callable[[T], str | int | float | bool | list[str]]


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(value)  # noqa: TRY004 - one type of error for everything that cannot be read
    return value.strip()


def _name(value: object) -> str:
    text = _text(value)
    if _NAME.fullmatch(text) is None:
        raise ValueError(value)
    return text


def _optional_name(value: object) -> str:
    return _name(value) if value != "" else ""


def _integer(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    text = _text(value)
    if re.fullmatch(r"-?\d{1,18}", text) is None:
        raise ValueError(value)
    return int(text)


def _number(value: object) -> float:
    number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else float(_text(value))
    if not math.isfinite(number):
        raise ValueError(value)
    return number


def _switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    try:
        return _SWITCH[_text(value).lower()]
    except KeyError:
        raise ValueError(value) from None


def _size(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(_text(value))
    if match is None:
        raise ValueError(value)
    return int(match[1]) * _UNITS[match[2] or "B"]


def render_size(size: int) -> str:
    """Bytes in the largest binary unit that divides them: ``268435456`` is ``256MiB``."""
    unit = next((unit for unit, width in _UNITS.items() if size and size % width == 0), "B")
    return f"{size // _UNITS[unit]}{unit}"


def _items(value: object) -> list[str]:
    """A comma-separated text or a TOML list, as stripped texts."""
    raw = value.split(",") if isinstance(value, str) else value
    if isinstance(raw, int) and not isinstance(raw, bool):
        raw = [raw]
    if not isinstance(raw, list) or len(raw) > MAX_LIST_ITEMS:
        raise ValueError(value)
    return [item for item in (str(item).strip() for item in raw) if item]


def _distinct(values: Iterable[T], found: object) -> tuple[T, ...]:
    result = tuple(values)
    if len(set(result)) != len(result):
        raise ValueError(found)
    return result


def _names(value: object) -> tuple[str, ...]:
    return _distinct((_name(item) for item in _items(value)), value)


def _span(first: str, last: str | None, limit: int) -> range:
    """``first-last`` inclusive, not falling and below ``limit``: checked before anything of that size is made."""
    low, high = int(first), int(last or first)
    if not low <= high < limit:
        raise ValueError((first, last))
    return range(low, high + 1)


def _ranks(value: object) -> tuple[int, ...]:
    ranks: list[int] = []
    for item in _items(value):
        match = _RANGE.fullmatch(item)
        if match is None:
            raise ValueError(value)
        ranks.extend(_span(match[1], match[2], MAX_RANKS))
    if not ranks:
        raise ValueError(value)
    return _distinct(sorted(ranks), value)


def _render_ranks(ranks: tuple[int, ...]) -> str:
    spans: list[tuple[int, int]] = []
    for rank in ranks:
        if spans and spans[-1][1] == rank - 1:
            spans[-1] = (spans[-1][0], rank)
        else:
            spans.append((rank, rank))
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


def _endpoints(value: object) -> tuple[str, ...]:
    endpoints: list[str] = []
    for item in _items(value):
        match = _ENDPOINT.fullmatch(item)
        if match is None or int(match[2]) == 0:
            raise ValueError(value)
        ports = _span(match[2], match[3], 65_536)
        if len(endpoints) + len(ports) > MAX_RANKS:
            raise ValueError(value)
        endpoints.extend(f"{match[1]}:{port}" for port in ports)
    return _distinct(endpoints, value)


def _path(value: object) -> Path:
    path = Path(_text(value)).expanduser()
    if not path.is_absolute() or "\0" in str(path):
        raise ValueError(value)
    return path


def _optional_path(value: object) -> Path | None:
    return _path(value) if value != "" else None


TEXT = Kind("TEXT", "a text", _text, str)
NAME = Kind("NAME", "a name of 1 to 64 letters, digits, '.', '_' or '-', starting with a letter or digit", _name, str)
OPTIONAL_NAME = Kind("NAME", f"nothing, or {NAME.expected}", _optional_name, str)
INTEGER: Kind[int] = Kind("INTEGER", "a whole number", _integer, int)
NUMBER: Kind[float] = Kind("NUMBER", "a finite number", _number, float)
SWITCH: Kind[bool] = Kind("", "true or false", _switch, bool)
SIZE = Kind("SIZE", "a size in bytes such as 268435456 or 256MiB (B, KiB, MiB, GiB, TiB)", _size, render_size)
RANKS = Kind("RANKS", f"ranks such as 0, 0-7 or 0,2,4-5, each once and below {MAX_RANKS}", _ranks, _render_ranks)
NAMES: Kind[tuple[str, ...]] = Kind("NAMES", "names separated by commas, each once", _names, list)
ENDPOINTS: Kind[tuple[str, ...]] = Kind(
    "ENDPOINTS",
    "addresses separated by commas, each once, such as tcp://127.0.0.1:7600 or tcp://127.0.0.1:7600-7607",
    _endpoints,
    list,
)
PATH = Kind("PATH", "an absolute path", _path, str)
OPTIONAL_PATH: Kind[Path | None] = Kind("PATH", "nothing, or an absolute path", _optional_path, lambda path: str(path or ""))
