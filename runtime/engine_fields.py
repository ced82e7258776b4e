"""Fields of an engine's command, checked one by one: what is wrong is named with the field and what was expected."""

import re
from typing import Any, NoReturn

from protocol.identifiers import ID_EXPECTED, is_id
from protocol.layout import PageRun
from protocol.limits import MAX_RANKS, MAX_ROOM_TOKENS
from runtime.engine_protocol import Body, EngineError

_MAX_REASON_CHARACTERS = 200
_MAX_ENDPOINT_CHARACTERS = 300
_ENDPOINT = re.compile(r"tcp://(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([1-9]\d{0,4})")


def refuse(field: str, expected: str, found: object) -> NoReturn:
    """Say that ``field`` is wrong. Raises ``EngineError``."""
    shown = repr(found)
    raise EngineError("invalid", f"{field}: expected {expected}, got {shown[:100]}", field)


def integer(body: Body, field: str, low: int, high: int) -> int:
    """An integer within bounds, both included."""
    value = body.get(field)
    if type(value) is not int or not low <= value <= high:
        refuse(field, f"an integer from {low} to {high}", value)
    return value


def rank(body: Body) -> int:
    """The rank a command is for."""
    return integer(body, "rank", 0, MAX_RANKS - 1)


def identifier(body: Body, field: str) -> str:
    """A room, a group or another id."""
    value = body.get(field)
    if not isinstance(value, str) or not is_id(value):
        refuse(field, ID_EXPECTED, value)
    return value


def optional_identifier(body: Body, field: str) -> str | None:
    """An id, or ``None`` if the field is missing or nil."""
    return None if body.get(field) is None else identifier(body, field)


def reason(body: Body) -> str:
    """A text for people, cut to what a message may carry; empty if it is missing."""
    value = body.get("reason", "")
    if not isinstance(value, str):
        refuse("reason", "a text", value)
    return value[:_MAX_REASON_CHARACTERS]


def optional_seconds(body: Body, field: str, high: float) -> float | None:
    """A duration above zero, or ``None`` if the field is missing or nil."""
    value = body.get(field)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= high:
        refuse(field, f"more than 0 and at most {high:g} seconds", value)
    return float(value)


def page_run(body: Body) -> PageRun:
    """``pages`` and ``first_token``. Whether they lie in the pool is the pool's to say."""
    pages: Any = body.get("pages")
    if not isinstance(pages, list | tuple) or not all(type(page) is int for page in pages):
        refuse("pages", "a list of page indices", pages)
    first_token = integer({"first_token": body.get("first_token", 0)}, "first_token", 0, MAX_ROOM_TOKENS)
    return PageRun(tuple(pages), first_token)


def endpoint(value: object, field: str) -> str:
    """The address of a decode rank."""
    match = _ENDPOINT.fullmatch(value[:_MAX_ENDPOINT_CHARACTERS]) if isinstance(value, str) else None
    if not isinstance(value, str) or match is None or int(match[1]) > 65_535:
        refuse(field, "an address like tcp://host:port", value)
    return value


def endpoints(body: Body, field: str) -> tuple[str, ...]:
    """At least one address."""
    value: Any = body.get(field)
    if not isinstance(value, list | tuple) or not 0 < len(value) <= MAX_RANKS:
        refuse(field, f"a list of 1 to {MAX_RANKS} addresses", value)
    return tuple(endpoint(item, field) for item in value)


def optional_text(body: Body, field: str, limit: int) -> str | None:
    """A short ASCII text, or ``None`` if the field is missing or nil."""
    value = body.get(field)
    if value is None:
        return None
    if not isinstance(value, str) or not value.isascii() or not value.isprintable() or len(value) > limit:
        refuse(field, f"at most {limit} printable ASCII characters", value)
    return value
