"""A machine's memory as plain values: taken while the machine stands still, written down later, by anybody.

``freeze`` copies what can change (lists, tables, objects) into a list of nodes and keeps what cannot (numbers, texts, frozen
dataclasses) as it is, so it costs as much as the changeable part is large. A ``Frozen`` never changes afterwards, and another
thread may encode it at leisure.

``Encoder`` turns values into JSON. Why JSON and not pickle: a dump is read on other machines, days later, by people who were
sent it. Reading one (``runtime/thawing.py``) makes objects of known classes without running a constructor, and nothing else.

    None, true, 1, 2.5, "a"          as they are            {"b": "00ff"}         bytes
    [1, 2]                           a tuple                {"r": 7}              node 7
    {"e": CLASS, "n": "OPEN"}        a member of an enum    {"v": 3}              value 3, written before
    {"n": CLASS, "f": [...]}         a named tuple          {"c": CLASS, "f": [...]}  a frozen dataclass
    {"m": [[key, value], ...]}       a mapping              {"z": [...]}          a frozen set
"""

import dataclasses
import hashlib
import json
import math
import operator
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import chain, count
from random import Random
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Final

MAX_NODES: Final = 10_000
"""Changeable objects of one machine that are worth the time to copy (a few microseconds each)."""

_ATOMS: Final = frozenset({type(None), bool, int, float, str, bytes})
_PLAIN: Final = _ATOMS - {bytes}
"""What JSON has itself."""
_SHARE_FROM: Final = 160
"""Characters from which on a frozen dataclass is written once and referred to."""


class FreezeError(TypeError):
    """Something that this file cannot copy or write: a new kind of member in a machine."""


class TooLargeError(Exception):
    """More changeable objects, or more bytes, than the limit allows to copy while the machine stands still."""


@dataclass(frozen=True, slots=True)
class Ref:
    """A node, by its place in ``Frozen.nodes``."""

    node: int


@dataclass(frozen=True, slots=True)
class Node:
    """One changeable object: its kind, its class if it has one of ours, and its content with ``Ref`` for other nodes."""

    kind: str
    name: str
    content: Any


@dataclass(frozen=True, slots=True)
class Frozen:
    """An object and everything it reaches. Node 0 is the object itself. ``weight`` estimates its bytes."""

    nodes: tuple[Node, ...]
    weight: int


to_json: Final = json.JSONEncoder(separators=(",", ":")).encode
"""One line of JSON of plain values; one encoder for all lines, since ``json.dumps`` makes another one each time."""


def class_name(kind: type) -> str:
    """``module:Class``, by which ``runtime/thawing.py`` finds it again."""
    return f"{kind.__module__}:{kind.__qualname__}"


def freeze(root: object, max_nodes: int = MAX_NODES, max_weight: float = math.inf) -> Frozen:
    """Copy ``root`` and all it reaches.

    Raises ``TooLargeError`` as soon as ``max_nodes`` or ``max_weight`` is exceeded, ``FreezeError`` for an unknown kind.
    """
    return _Freezer(max_nodes, max_weight).run(root)


class _Freezer:
    """One run of ``freeze``."""

    def __init__(self, max_nodes: int, max_weight: float) -> None:
        self._max_nodes = max_nodes
        self._max_weight = max_weight
        self._place: dict[int, Ref] = {}
        self._todo: deque[object] = deque()
        self._items = 0

    def run(self, root: object) -> Frozen:
        """Breadth first, so that depth is no matter."""
        self._ref(root)
        nodes: list[Node] = []
        while self._todo:
            nodes.append(self._node(self._todo.popleft()))
            if self._weight() > self._max_weight:
                raise TooLargeError
        return Frozen(tuple(nodes), self._weight())

    def _weight(self) -> int:
        return 200 * len(self._place) + 40 * self._items

    def _ref(self, value: object) -> Ref:
        ref = self._place.get(id(value))
        if ref is None:
            if len(self._place) >= self._max_nodes:
                raise TooLargeError
            ref = self._place[id(value)] = Ref(len(self._place))
            # The object stays alive at least until ``run`` ends, so its id names nothing else.
            self._todo.append(value)
        return ref

    def _copied(self, value: Any) -> Any:  # noqa: ANN401 - any member of any machine
        kind = type(value)
        if _is_still(kind):
            return value
        if isinstance(value, tuple):
            parts = self._all(value)
            if all(map(operator.is_, parts, value)):
                return value
            return kind._make(parts) if hasattr(kind, "_make") else parts
        return self._ref(value)

    def _all(self, values: Iterable[object]) -> tuple[object, ...]:
        values = tuple(values)
        self._items += len(values)
        kinds = set(map(type, values))
        if kinds <= _STILL:
            return values
        if kinds == {tuple} and set(map(type, chain.from_iterable(values))) <= _STILL:  # type: ignore[arg-type]
            return values  # the usual form of a large table
        return tuple([value if type(value) in _STILL else self._copied(value) for value in values])

    def _node(self, value: Any) -> Node:  # noqa: ANN401, PLR0911 - as above; one return per kind
        kind = type(value)
        if kind in {dict, OrderedDict, Counter, defaultdict}:
            made = kind.__name__ + (f" {value.default_factory.__name__}" if kind is defaultdict else "")
            return Node(made, "", (self._all(value), self._all(value.values())))
        if kind in {list, set}:
            return Node(kind.__name__, "", self._all(value))
        if kind is deque:
            return Node("deque", "", (value.maxlen, self._all(value)))
        if kind is bytearray:
            return Node("bytearray", "", bytes(value))
        if kind is count:
            # ``repr`` says what comes next without taking it: ``count(7)``.
            return Node("count", "", int(repr(value)[6:-1]))
        if kind is Random:
            return Node("random", "", value.getstate())
        return Node("object", class_name(kind), self._members(value))

    def _members(self, value: object) -> tuple[tuple[str, ...], tuple[object, ...]]:
        names, get = _plan(type(value), tuple(getattr(value, "__dict__", ())))
        try:
            return names, self._all(get(value))
        except AttributeError:  # a member that is not set yet
            names = tuple(name for name in names if hasattr(value, name))
            return names, self._all(getattr(value, name) for name in names)


class Encoder:
    """Values as JSON text. Large frozen values are written once: ``take_new_values`` has those that must be written before.

    What it keeps of a value that was written is a few bytes, however many there are and however large.
    """

    def __init__(self) -> None:
        self._new_values: list[str] = []
        self._known: dict[bytes, int] = {}
        """The number of each value that was written, by a digest of its text."""
        self._by_id: dict[int, tuple[object, dict[str, object]]] = {}

    def take_new_values(self) -> tuple[str, ...]:
        """Values that came up since this was last asked, for lines before the one that was just made."""
        texts = tuple(self._new_values)
        self._new_values.clear()
        # Lets go of the objects of that line, too: most were unpacked for it alone.
        self._by_id.clear()
        return texts

    def text(self, value: object) -> str:
        """One line of JSON."""
        return to_json(self.plain(value))

    def plain(self, value: Any) -> Any:  # noqa: ANN401, PLR0911 - any value; one return per kind
        """What ``json`` can write."""
        kind = type(value)
        if kind in _ATOMS:
            return {"b": value.hex()} if kind is bytes else value
        if kind is Ref:
            return {"r": value.node}
        if isinstance(value, Enum):
            return {"e": class_name(kind), "n": value.name}
        if isinstance(value, tuple):
            if kind is tuple and _PLAIN.issuperset(map(type, value)):
                return value  # mostly page numbers, and very many of them
            parts = self._all(value)
            return {"n": class_name(kind), "f": parts} if hasattr(kind, "_fields") else parts
        if isinstance(value, Mapping):
            return {"m": [[self.plain(key), self.plain(item)] for key, item in value.items()]}
        if isinstance(value, frozenset):
            return {"z": sorted((self.plain(item) for item in value), key=json.dumps)}
        if isinstance(value, list):
            # Only as an argument: what a caller handed over in a list is read as a sequence.
            return self._all(value)
        if dataclasses.is_dataclass(kind) and (_is_still(kind) or issubclass(kind, Exception)):
            return self._shared(value)
        raise FreezeError(f"{class_name(kind)} cannot be written down")

    def _all(self, values: Iterable[Any]) -> list[Any]:
        return [value if type(value) in _PLAIN else self.plain(value) for value in values]

    def _shared(self, value: Any) -> dict[str, object]:  # noqa: ANN401 - any frozen dataclass
        known = self._by_id.get(id(value))
        if known is not None:
            return known[1]
        kind = type(value)
        parts = self._all(getattr(value, field.name) for field in dataclasses.fields(kind))
        plain: dict[str, object] = {"c": class_name(kind), "f": parts}
        text = to_json(plain)
        if len(text) < _SHARE_FROM:
            return plain
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        if digest not in self._known:
            self._known[digest] = len(self._known)
            self._new_values.append(text)
        short: dict[str, object] = {"v": self._known[digest]}
        # With the value, so that its id names nothing else for as long as it stands here.
        self._by_id[id(value)] = (value, short)
        return short


_STILL: Final = set(_ATOMS)
"""Classes whose values never change, as far as they were met."""
_PLANS: Final[dict[tuple[type, tuple[str, ...]], tuple[tuple[str, ...], Callable[[object], Iterable[object]]]]] = {}


def _is_still(kind: type) -> bool:
    """Whether values of this class never change: atoms, members of enums, frozen dataclasses. Functions are in no memory."""
    if kind not in _STILL:
        if issubclass(kind, FunctionType | BuiltinFunctionType | MethodType):
            raise FreezeError("a machine holds a function, which is no memory")
        parameters = getattr(kind, "__dataclass_params__", None)
        if not issubclass(kind, Enum | frozenset) and (parameters is None or not parameters.frozen):
            return False
        _STILL.add(kind)
    return True


def _plan(kind: type, own: tuple[str, ...]) -> tuple[tuple[str, ...], Callable[[object], Iterable[object]]]:
    """The names of an object's members, given those in its ``__dict__``, and what gets them all."""
    plan = _PLANS.get((kind, own))
    if plan is None:
        slots = [name for base in kind.__mro__[:-1] for name in vars(base).get("__slots__", ()) if name not in _NO_MEMBERS]
        # A method that was replaced on this object alone is a listener of ours and no memory of the machine.
        names = (*slots, *(name for name in own if not callable(getattr(kind, name, None))))
        get: Callable[[object], Iterable[object]] = operator.attrgetter(*names) if len(names) > 1 else _get_each(names)
        plan = _PLANS[kind, own] = (names, get)
    return plan


def _get_each(names: tuple[str, ...]) -> Callable[[object], Iterable[object]]:
    return lambda value: [getattr(value, name) for name in names]


_NO_MEMBERS: Final = frozenset({"__dict__", "__weakref__"})
