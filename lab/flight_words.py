"""What entered a machine and what it decided, in words for people: each call and each outcome on one line."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Final

from protocol.layout import PageRun, RankLayout, WriterSlice
from runtime.recorder import Entry, Raised

Outcome = tuple[object, ...] | Raised

_LONG: Final = 72


def call_text(entry: Entry) -> str:
    """A verb and its arguments, without the time."""
    arguments = [text(value) for value in entry.arguments if type(value) is not float]
    arguments += [f"{name}={text(value)}" for name, value in entry.named.items() if name != "now"]
    return f"{entry.verb}({', '.join(arguments)})"


def text(value: Any) -> str:  # noqa: ANN401, PLR0911 - any argument or output; one return per kind
    """A value for people: without module names, defaults that say nothing, and the depths of layouts."""
    if isinstance(value, PageRun):
        return f"{len(value.pages)} pages from token {value.first_token}"
    if isinstance(value, RankLayout):
        return f"layout(tp {value.tp_rank}/{value.tp_size}, pp {value.pp_rank}/{value.pp_size})"
    if isinstance(value, WriterSlice):
        return f"writer(tp {value.writer.tp_rank}, pp {value.writer.pp_rank})"
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, bytes):
        return value.hex() or "data socket"
    if isinstance(value, Exception):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return f"{type(value).__name__}({', '.join(_members(value))})"
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return "[" + ", ".join(map(text, value)) + "]"
    return _short(repr(value))


def outcome_text(outcome: Outcome) -> str:
    """What a verb led to, on one line."""
    if isinstance(outcome, Raised):
        return f"{outcome.kind}: {outcome.message}"
    return ", ".join(map(text, outcome)) or "nothing"


def _members(value: Any) -> Iterator[str]:  # noqa: ANN401 - any dataclass
    for item in fields(value):
        member = getattr(value, item.name)
        if member is not None and member not in (item.default, ()):
            yield f"{item.name} {text(member)}"


def _short(words: str) -> str:
    return words if len(words) <= _LONG else f"{words[: _LONG - 3]}..."
