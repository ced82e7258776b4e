"""What an id may look like, and how the numbers that tell two lives apart are put together.

Ids are ASCII so that they travel in a plain frame, a log line and a metric label unchanged. Some of them also become part of a
file name (``decode_id`` and ``session`` name the shared memory of the ``shm`` plane), and those come from a peer: they are
*names*, a narrower alphabet without path separators.
"""

import re
from typing import Final

from protocol.limits import MAX_ID_BYTES, MAX_UINT63

ID_EXPECTED: Final = f"1 to {MAX_ID_BYTES} printable ASCII characters"
NAME_EXPECTED: Final = f"1 to {MAX_ID_BYTES} of A-Z a-z 0-9 . _ : - and no dot in front"

_NAME = re.compile(r"[A-Za-z0-9_:-][A-Za-z0-9._:-]*")
_RANDOM_BITS: Final = 16
_RANDOM_MASK: Final = (1 << _RANDOM_BITS) - 1


class IdentifierError(ValueError):
    """A text that cannot be used as an id. ``field`` says whose, ``expected`` what would have been right."""

    def __init__(self, field: str, expected: str) -> None:
        super().__init__(f"{field}: expected {expected}")
        self.field = field
        self.expected = expected


def is_id(text: str) -> bool:
    """Say whether ``text`` is 1 to 128 printable ASCII characters (space included)."""
    return 0 < len(text) <= MAX_ID_BYTES and text.isascii() and text.isprintable()


def is_name(text: str) -> bool:
    """Say whether ``text`` is an id that may become part of a file name."""
    return len(text) <= MAX_ID_BYTES and _NAME.fullmatch(text) is not None


def check_id(text: str, field: str) -> str:
    """Return ``text`` if it is an id; raise ``IdentifierError`` naming ``field`` otherwise."""
    if not is_id(text):
        raise IdentifierError(field, ID_EXPECTED)
    return text


def check_name(text: str, field: str) -> str:
    """Return ``text`` if it is a name; raise ``IdentifierError`` naming ``field`` otherwise."""
    if not is_name(text):
        raise IdentifierError(field, NAME_EXPECTED)
    return text


def make_incarnation(time_ns: int, random_bits: int) -> int:
    """Build the number of one process life from its start time and 16 random bits: ordered by time, below 2**63.

    The clock and the random source are the caller's. Two starts within the same 65.5 microseconds are told apart by the random
    bits alone, and their order is then arbitrary.
    """
    return (time_ns & MAX_UINT63 & ~_RANDOM_MASK) | (random_bits & _RANDOM_MASK)
