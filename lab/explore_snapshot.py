"""Machines as bytes, to go back to a state; and as a number, to know it again whatever way led there.

The *digest* says what a machine will do from here on. It leaves out counters, records kept for people and the moments that only
room deadlines look at (they lie beyond the horizon of a search), and reads timers as what is due when.
"""

import copyreg
import io
import itertools
import pickle
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from random import Random
from typing import Any

from decode_service.handler_settings import DecodeHandlerSettings
from decode_service.rooms import RoomClock
from prefill_service.handler_settings import PrefillHandlerSettings
from protocol.layout import ModelLayout, RankLayout, WriterSlice
from protocol.timers import Timers

CONSTANT = (DecodeHandlerSettings, PrefillHandlerSettings, ModelLayout, RankLayout, WriterSlice)
"""Values that no verb changes: kept once per process, by number."""
LEFT_OUT = frozenset(
    {
        *("counters", "heard", "history", "random", "_random", "out", "now", "since", "message", "last_answer"),
        *("progress_at", "granted_at", "closed_at", "submitted_at", "registered_at", "watermark_moved_at", "clock"),
    }
)
"""Fields that change nothing that a machine does within the horizon, or that every state has in common."""
_ATOMS = frozenset({int, float, str, bytes, bool, type(None)})
_constants: list[object] = []
_numbers: dict[int, int] = {}
"""By identity, and every value that was ever looked up stays alive, or an identity could come to mean another value."""
_numbers_by_text: dict[str, int] = {}
_alive: list[object] = []


class NoJitter(Random):
    """Chance as a constant: every repetition after its full interval, every number at its lowest."""

    def random(self) -> float:
        """No jitter."""
        return 0.0

    def randrange(self, *_: int) -> int:  # type: ignore[override]
        """The lowest number."""
        return 0


def dump(machine: object) -> bytes:
    """Everything needed to go on from here."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = _REDUCTIONS
    pickler.dump(machine)
    return buffer.getvalue()


def load(blob: bytes) -> Any:  # noqa: ANN401 - one of two machines: the caller knows which
    """A machine that goes on from there."""
    return pickle.loads(blob)  # noqa: S301 - made by ``dump`` in this process, and never written anywhere


def digest(machine: object) -> int:
    """The same number for machines that will do the same."""
    parts: list[object] = []
    _walk(machine, {}, parts)
    return hash(tuple(parts))


def constant(number: int) -> object:
    """The constant kept under that number."""
    return _constants[number]


def _keep(value: object) -> tuple[Callable[[int], object], tuple[int]]:
    number = _numbers.get(id(value))
    if number is None:
        number = _numbers_by_text.setdefault(repr(value), len(_constants))
        if number == len(_constants):
            _constants.append(value)
        _numbers[id(value)] = number
        _alive.append(value)
    return constant, (number,)


def _reduce_count(counter: "itertools.count[int]") -> tuple[type, tuple[int]]:
    return itertools.count, (int(repr(counter)[len("count(") : -1]),)


_REDUCTIONS: dict[type, Callable[[Any], Any]] = {
    **copyreg.dispatch_table,
    **dict.fromkeys(CONSTANT, _keep),
    itertools.count: _reduce_count,
    Counter: lambda _: (Counter, ()),
}


def _walk(value: object, seen: dict[int, int], parts: list[object]) -> None:
    """Flatten a value: objects by their fields, each object once, whatever else refers to it by its number."""
    kind = type(value)
    if kind in _ATOMS or isinstance(value, Enum):
        parts.append(value)
    elif isinstance(value, tuple | list | deque):
        parts.append(len(value))
        for item in value:
            _walk(item, seen, parts)
    elif isinstance(value, Counter) or kind is RoomClock:
        return
    elif isinstance(value, dict):
        parts.append(len(value))
        for item in value.items():
            _walk(item, seen, parts)
    elif (flat := _flat(value)) is not None:
        parts.append(flat)
    elif id(value) in seen:
        parts.append(seen[id(value)])
    else:
        seen[id(value)] = len(seen)
        _walk_object(value, seen, parts)


def _flat(value: object) -> object:
    """What stands for a value that is looked at as a whole; ``None`` if it must be walked."""
    if type(value) in CONSTANT:
        return _keep(value)[1]
    if isinstance(value, set | frozenset):
        return tuple(sorted(value))
    if isinstance(value, bytearray):
        return bytes(value)
    return repr(value) if isinstance(value, itertools.count) else None


def _walk_object(value: object, seen: dict[int, int], parts: list[object]) -> None:
    parts.append(type(value).__name__)
    if isinstance(value, Timers):
        parts.extend(sorted((at, repr(key)) for key, (at, _) in value._deadline.items()))  # noqa: SLF001 - what is due, and when
        return
    for name in _names(type(value), value):
        _walk(getattr(value, name), seen, parts)


_field_names: dict[type, tuple[str, ...]] = {}


def _names(kind: type, value: object) -> tuple[str, ...]:
    names = _field_names.get(kind)
    if names is None:
        found = [field.name for field in fields(kind)] if is_dataclass(kind) else list(vars(value))
        names = _field_names[kind] = tuple(name for name in found if name not in LEFT_OUT)
    return names
