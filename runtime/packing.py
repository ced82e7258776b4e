"""Messages and outputs as plain tuples of numbers and texts, for keeping very many of them.

The garbage collector walks through every object that could be part of a cycle. Ten thousand kept messages would make each of
its full walks tens of milliseconds longer, during which a daemon's loop stands still. Tuples of nothing but atoms are none of
its business, so they cost memory and no time. Packing takes a few microseconds, unpacking is left to whoever reads.

A packed value is an atom as it is, or a tuple that begins with a code: what it was made from.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from operator import attrgetter
from sys import getsizeof
from threading import Lock
from typing import Any, Final

Packed = None | bool | int | float | str | bytes | tuple[Any, ...]

ATOMS: Final = frozenset({type(None), bool, int, float, str, bytes})
_TUPLE, _ATOMS, _ENUM, _MAPPING, _FIRST_CLASS = range(5)
"""A tuple of packed items; a tuple kept as it is; a member of an enum; a mapping; from then on, classes as they were met."""
_INT_BYTES: Final = 36
_SEEN_BY_HEAD: Final = 64
"""Longer tuples that begin with a number are lists of page numbers; nobody looks at each of them."""

_Members = Callable[[Any], Iterable[object]]

_CLASSES: Final[list[type]] = []
_PLANS: Final[dict[type, tuple[int, _Members]]] = {}
_ENUM_PLANS: Final[dict[type, dict[Any, tuple[Any, ...]]]] = {}
_LEARNING: Final = Lock()


class PackError(TypeError):
    """Something that no verb of a machine should be given or return."""


class Packer:
    """Packs, and sums up what the packed values weigh in ``weight``: estimated bytes, never too low by much."""

    def __init__(self) -> None:
        self.weight = 0

    def pack(self, value: Any) -> Packed:  # noqa: ANN401 - any argument or output
        """Raises ``PackError``."""
        kind = type(value)
        plan = _PLANS.get(kind)
        if plan is not None:
            code, get = plan
            members = tuple(get(value))
        elif kind in ATOMS:
            self.weight += getsizeof(value)
            return value  # type: ignore[no-any-return]  # an atom
        elif kind in _ENUM_PLANS:
            return _ENUM_PLANS[kind][value]
        elif kind is tuple or kind is list:
            if len(value) > _SEEN_BY_HEAD and type(value[0]) is int:
                self.weight += 40 + _INT_BYTES * len(value)
                return (_ATOMS, tuple(value))
            code, members = _TUPLE, tuple(value)
        elif isinstance(value, Mapping):
            code, members = _MAPPING, (*value, *value.values())
        else:
            _learn(kind)
            return self.pack(value)
        self.weight += 56 + 8 * len(members)
        if ATOMS.issuperset(map(type, members)):
            self.weight += sum(map(getsizeof, members))
            return (code, *members)
        return (code, *[self.pack(member) for member in members])


def unpack(packed: Packed) -> Any:  # noqa: ANN401 - whatever was packed
    """A value equal to the one that was packed. Lists come back as tuples."""
    if not isinstance(packed, tuple):
        return packed
    code, *members = packed
    if code == _ATOMS:
        return members[0]
    if code == _ENUM:
        kind: Any = _CLASSES[members[0] - _FIRST_CLASS]
        return kind[members[1]]
    values = [unpack(member) for member in members]
    if code == _TUPLE:
        return tuple(values)
    if code == _MAPPING:
        half = len(values) // 2
        return dict(zip(values[:half], values[half:], strict=True))
    return _CLASSES[code - _FIRST_CLASS](*values)


def _learn(kind: type) -> None:
    """Take in a class that is met for the first time. Raises ``PackError`` for one whose members are unknown."""
    with _LEARNING:  # several daemons of one process have a loop each
        if kind in _PLANS or kind in _ENUM_PLANS:
            return
        code = len(_CLASSES) + _FIRST_CLASS
        if issubclass(kind, Enum):
            _CLASSES.append(kind)
            _ENUM_PLANS[kind] = {member: (_ENUM, code, member.name) for member in kind}
        else:
            members = _members_of(kind)
            _CLASSES.append(kind)
            _PLANS[kind] = (code, members)


def _members_of(kind: type) -> _Members:
    if is_dataclass(kind) and all(entry.init for entry in fields(kind)):
        names = [entry.name for entry in fields(kind)]
        return attrgetter(*names) if len(names) > 1 else partial(_each, names)
    if hasattr(kind, "_fields"):
        return tuple
    raise PackError(f"{kind.__module__}.{kind.__qualname__} cannot be recorded")


def _each(names: list[str], value: object) -> list[object]:
    return [getattr(value, name) for name in names]
