"""Messages and outputs as a few bytes each, for keeping very many of them.

The garbage collector walks through every object that could be part of a cycle. Ten thousand kept messages would make each of
its full walks tens of milliseconds longer, during which a daemon's loop stands still. Bytes are none of its business, are a
fifth of the size, and say exactly what they weigh. Packing takes a few microseconds; unpacking is left to whoever reads, in the
same process: the bytes name classes by the order in which this process met them. What follows each other resembles each other,
so a *block* of many packed values is a tenth of their size, for another microsecond each.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from operator import attrgetter
from threading import Lock
from types import UnionType
from typing import Any, Final, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgpack

_ATOMS: Final = frozenset({type(None), bool, int, float, str, bytes})
_TUPLE, _NUMBERS, _ENUM, _MAPPING, _FIRST_CLASS = range(5)
"""What a packed tuple begins with: items that are packed; numbers as they are; a member of an enum; a mapping; a class."""
_SEEN_BY_HEAD: Final = 64
"""Longer tuples that begin with a number are lists of page numbers; nobody looks at each of them."""
_LEVEL: Final = 1
"""Of compression: the highest one saves 5 % more and takes three times as long."""


class _Plan(NamedTuple):
    """How the instances of one class are packed."""

    code: int
    get: Callable[[Any], Iterable[object]]
    nested: tuple[int, ...]
    """Places of the members that may be more than atoms, by their annotations."""


_CLASSES: Final[list[type]] = []
_PLANS: Final[dict[type, _Plan]] = {}
_ENUM_PLANS: Final[dict[type, dict[Any, tuple[Any, ...]]]] = {}
_LEARNING: Final = Lock()


class PackError(TypeError):
    """Something that no verb of a machine should be given or return."""


def pack(value: object) -> bytes:
    """The value as bytes for ``unpack``. Raises ``PackError``."""
    try:
        packed: bytes = msgpack.packb(_flat(value), unicode_errors="surrogatepass")
    except (TypeError, ValueError, OverflowError) as error:
        raise error if isinstance(error, PackError) else PackError(str(error)) from error
    return packed


def unpack(packed: bytes) -> Any:  # noqa: ANN401 - whatever was packed
    """A value equal to the one that this process has packed. Lists come back as tuples."""
    return _whole(msgpack.unpackb(packed, use_list=False, unicode_errors="surrogatepass"))


def pack_block(packed: Sequence[bytes]) -> bytes:
    """Packed values as one block for ``unpack_block``."""
    return zlib.compress(msgpack.packb(packed), _LEVEL)


def unpack_block(block: bytes) -> Iterator[Any]:
    """The values that were packed, in their order."""
    return map(unpack, msgpack.unpackb(zlib.decompress(block)))


def _flat(value: Any) -> Any:  # noqa: ANN401, PLR0911 - any value; one return per kind
    """Atoms as they are, all else as a tuple that begins with what it was made from."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    plan = _PLANS.get(kind)
    if plan is not None:
        code, get, nested = plan
        if not nested:
            return (code, *get(value))
        members = [code, *get(value)]
        for place in nested:
            members[place] = _flat(members[place])
        return members
    if kind is tuple or kind is list:
        if len(value) > _SEEN_BY_HEAD and type(value[0]) is int:
            return (_NUMBERS, value)
        return [_TUPLE, *map(_flat, value)]
    if kind in _ENUM_PLANS:
        return _ENUM_PLANS[kind][value]
    if isinstance(value, Mapping):
        return [_MAPPING, *map(_flat, value), *map(_flat, value.values())]
    _learn(kind)
    return _flat(value)


def _whole(flat: Any) -> Any:  # noqa: ANN401 - any value
    if not isinstance(flat, tuple):
        return flat
    code, *members = flat
    if code == _NUMBERS:
        return members[0]
    if code == _ENUM:
        kind: Any = _CLASSES[members[0] - _FIRST_CLASS]
        return kind[members[1]]
    values = [_whole(member) if isinstance(member, tuple) else member for member in members]
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
            plan = _plan(kind, code)
            _CLASSES.append(kind)
            _PLANS[kind] = plan


def _plan(kind: type, code: int) -> _Plan:
    if is_dataclass(kind) and all(entry.init for entry in fields(kind)):
        names = [entry.name for entry in fields(kind)]
        get: Callable[[Any], Iterable[object]] = attrgetter(*names) if len(names) > 1 else partial(_each, names)
    elif hasattr(kind, "_fields"):
        names, get = list(kind._fields), iter
    else:
        raise PackError(f"{kind.__module__}.{kind.__qualname__} cannot be recorded")
    # The code stands before the members, so the first of them has place 1.
    nested = tuple(place for place, name in enumerate(names, start=1) if not _is_atom(kind, name))
    return _Plan(code, get, nested)


def _is_atom(kind: type, name: str) -> bool:
    """Whether a member is a number, text or bytes, or nothing, according to its annotation."""
    try:
        annotation = get_type_hints(kind)[name]
    except (NameError, KeyError):  # it names something that is imported for type checkers only
        return False
    kinds = get_args(annotation) if get_origin(annotation) in {Union, UnionType} else (annotation,)
    return _ATOMS.issuperset(kinds)


def _each(names: list[str], value: object) -> list[object]:
    return [getattr(value, name) for name in names]
