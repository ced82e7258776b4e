"""Readers turn one decoded msgpack value into a checked Python value or say what they wanted; writers go the other way.

A reader takes whatever a peer put there and returns the value or raises ``Unfit``. A writer is needed only where msgpack would
not pack the value correctly by itself. Both are built once, from limits, and combined by ``protocol/wire_record.py``.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from protocol.errors import Fault
from protocol.identifiers import ID_EXPECTED, NAME_EXPECTED, is_id, is_name
from protocol.limits import MAX_DESCRIPTOR_BYTES, MAX_UINT64

Reader = Callable[[object], Any]
Writer = Callable[[Any], object]

_INTEGER_COST_BYTES: Final = 9


class Unfit(Exception):
    """A value that does not fit. ``path`` names it relative to whoever catches this, innermost part first to be known."""

    def __init__(self, code: Fault, expected: str, path: str = "") -> None:
        super().__init__(code, expected, path)
        self.code = code
        self.expected = expected
        self.path = path

    def within(self, outer: str) -> "Unfit":
        """The same complaint seen from one level further out."""
        joint = "." if self.path and not self.path.startswith("[") else ""
        return Unfit(self.code, self.expected, f"{outer}{joint}{self.path}")


def integer(low: int, high: int) -> Reader:
    """Read an integer in ``[low, high]``; a boolean is not one."""
    expected = f"an integer from {low} to {high}"

    def read(value: object) -> int:
        if type(value) is not int:
            raise Unfit(Fault.WRONG_TYPE, expected)
        if not low <= value <= high:
            raise Unfit(Fault.OUT_OF_RANGE, expected)
        return value

    return read


def seconds(high: float, *, positive: bool = False) -> Reader:
    """Read a finite duration in seconds, at most ``high``; an integer will do."""
    expected = f"{'more than' if positive else 'at least'} 0 and at most {high:g} seconds"

    def read(value: object) -> float:
        if type(value) is not float and type(value) is not int:
            raise Unfit(Fault.WRONG_TYPE, expected)
        if not 0 <= value <= high or (positive and value == 0):  # not a number compares false
            raise Unfit(Fault.OUT_OF_RANGE, expected)
        return float(value)

    return read


def boolean(value: object) -> bool:
    """Read true or false."""
    if type(value) is not bool:
        raise Unfit(Fault.WRONG_TYPE, "true or false")
    return value


def identifier(value: object) -> str:
    """Read an id: printable ASCII, bounded."""
    if type(value) is not str:
        raise Unfit(Fault.WRONG_TYPE, ID_EXPECTED)
    if not is_id(value):
        raise Unfit(Fault.BAD_FORMAT, ID_EXPECTED)
    return value


def name(value: object) -> str:
    """Read an id that may become part of a file name."""
    if type(value) is not str:
        raise Unfit(Fault.WRONG_TYPE, NAME_EXPECTED)
    if not is_name(value):
        raise Unfit(Fault.BAD_FORMAT, NAME_EXPECTED)
    return value


def short_id(max_bytes: int, *, empty: bool = False) -> Reader:
    """Read printable ASCII of at most ``max_bytes``, and none at all only if ``empty``."""
    expected = f"{0 if empty else 1} to {max_bytes} printable ASCII characters"

    def read(value: object) -> str:
        if type(value) is not str:
            raise Unfit(Fault.WRONG_TYPE, expected)
        if len(value) > max_bytes or not (is_id(value) or (empty and not value)):
            raise Unfit(Fault.BAD_FORMAT, expected)
        return value

    return read


def text(max_bytes: int) -> Reader:
    """Read text for people of at most ``max_bytes`` in UTF-8."""
    expected = f"text of at most {max_bytes} bytes"

    def read(value: object) -> str:
        if type(value) is not str:
            raise Unfit(Fault.WRONG_TYPE, expected)
        if len(value) > max_bytes or (not value.isascii() and len(value.encode()) > max_bytes):
            raise Unfit(Fault.TOO_LARGE, expected)
        return value

    return read


def cut_text(max_bytes: int) -> Writer:
    """Cut text for people to ``max_bytes`` of UTF-8, at a character, so that the peer's reader accepts it."""

    def write(value: str) -> str:
        if value.isascii() and len(value) <= max_bytes:
            return value
        return value.encode("utf-8", "replace")[:max_bytes].decode("utf-8", "ignore")

    return write


def word(kind: type[StrEnum]) -> Reader:
    """Read one of the words of ``kind``."""
    members = {member.value: member for member in kind}
    expected = "one of " + ", ".join(members)

    def read(value: object) -> StrEnum:
        if type(value) is not str:
            raise Unfit(Fault.WRONG_TYPE, expected)
        if value not in members:
            raise Unfit(Fault.BAD_FORMAT, expected)
        return members[value]

    return read


def optional(reader: Reader) -> Reader:
    """Read nil as ``None`` and leave anything else to ``reader``."""

    def read(value: object) -> object:
        return None if value is None else reader(value)

    return read


def listing(reader: Reader, max_items: int) -> Reader:
    """Read an array of at most ``max_items``, each by ``reader``, as a tuple."""
    expected = f"an array of at most {max_items} items"

    def read(value: object) -> tuple[Any, ...]:
        return tuple(_read_items(_checked_list(value, expected, 0, max_items), reader))

    return read


def pair(kind: Callable[[Any, Any], Any], reader: Reader) -> Reader:
    """Read an array of exactly two, each by ``reader``, as ``kind(first, second)``."""
    expected = "an array of 2 items"

    def read(value: object) -> object:
        first, second = _read_items(_checked_list(value, expected, 2, 2), reader)
        return kind(first, second)

    return read


def _checked_list(value: object, expected: str, low: int, high: int) -> list[object]:
    if type(value) is not list:
        raise Unfit(Fault.WRONG_TYPE, expected)
    if not low <= len(value) <= high:
        raise Unfit(Fault.OUT_OF_RANGE, expected)
    return value


def _read_items(values: Sequence[object], reader: Reader) -> list[Any]:
    items: list[Any] = []
    try:
        items.extend(map(reader, values))
    except Unfit as unfit:
        raise unfit.within(f"[{len(items)}]") from None
    return items


def descriptor(value: object) -> dict[str, int | str | bytes]:
    """Read a region descriptor: a flat map from ids to integers, texts or bytes, bounded as a whole."""
    if type(value) is not dict:
        raise Unfit(Fault.WRONG_TYPE, "a map")
    cost_bytes = 0
    for key, item in value.items():
        if not is_id(key):
            raise Unfit(Fault.BAD_FORMAT, f"keys of {ID_EXPECTED}")
        cost_bytes += len(key) + _descriptor_cost_bytes(key, item)
    if cost_bytes > MAX_DESCRIPTOR_BYTES:
        raise Unfit(Fault.TOO_LARGE, f"at most {MAX_DESCRIPTOR_BYTES} bytes of keys and values")
    return value


def _descriptor_cost_bytes(key: str, item: object) -> int:
    if type(item) is int:
        if not 0 <= item <= MAX_UINT64:
            raise Unfit(Fault.OUT_OF_RANGE, f"an integer from 0 to {MAX_UINT64}", key)
        return _INTEGER_COST_BYTES
    if type(item) is str:
        return len(item.encode())
    if type(item) is bytes:
        return len(item)
    raise Unfit(Fault.WRONG_TYPE, "an integer, text or bytes", key)


def clamp(high: float) -> Writer:
    """Write a measured duration no greater than a peer accepts: a very long one says as much cut off."""
    return lambda value: min(value, high)


def flat(mapping: Mapping[str, object]) -> dict[str, object]:
    """Write any mapping as a plain map."""
    return dict(mapping)
