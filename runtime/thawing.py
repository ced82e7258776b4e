"""Objects from what ``runtime/freezing.py`` wrote down. A dump comes from elsewhere, so this file trusts none of it.

Only classes of the packages named in ``PACKAGES`` are looked up, none is called: an object is made empty and its members are
set one by one, so no constructor, hook or function that a dump names ever runs. Whatever does not fit raises ``ThawError``.
"""

import dataclasses
import importlib
import json
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from enum import Enum
from itertools import count
from random import Random
from typing import Any, Final, TypeVar

T = TypeVar("T")

PACKAGES: Final = ("protocol", "decode_service", "prefill_service")
MODULES: Final = ("lab.defects",)
"""Modules outside of those packages whose machines may be replayed."""

_FACTORIES: Final[dict[str, Callable[[], object]]] = {kind.__name__: kind for kind in (int, float, list, dict, set)}


class ThawError(ValueError):
    """What was read is not what this version of the machines can have written."""


def find_class(name: str) -> type:
    """The class behind ``module:Class``. Raises ``ThawError`` for a name that is none of ours."""
    module_name, _, path = name.partition(":")
    parts = module_name.split(".")
    if (parts[0] not in PACKAGES and module_name not in MODULES) or parts[-1] == "__main__" or not path.isidentifier():
        raise ThawError(f"{name!r} names no class of a machine")
    try:
        found = getattr(importlib.import_module(module_name), path)
    except (ImportError, AttributeError) as error:
        raise ThawError(f"{name!r} is not known to this version") from error
    if not isinstance(found, type) or found.__module__ != module_name:
        raise ThawError(f"{name!r} names no class of a machine")
    return found


class Decoder:
    """Values and objects of one dump, read in the order in which they were written."""

    def __init__(self) -> None:
        self._values: list[object] = []
        self._nodes: list[Any] = []

    def sibling(self) -> "Decoder":
        """A decoder for the next machine of the same dump: it knows the same values, and has nodes of its own."""
        other = Decoder()
        other._values = self._values
        return other

    def add_value(self, plain: object) -> None:
        """Take the next shared value."""
        self._values.append(self.value(plain))

    def value(self, plain: Any) -> Any:  # noqa: ANN401 - any value
        """What this JSON stands for. Raises ``ThawError``."""
        if isinstance(plain, list):
            return tuple(map(self.value, plain))
        if not isinstance(plain, dict):
            return plain
        try:
            return self._tagged(plain)
        except ThawError:
            raise
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise ThawError(f"{json.dumps(plain)[:80]} stands for no value: {error}") from error

    def thaw(self, nodes: list[tuple[str, str, Any]]) -> object:
        """The object that was frozen: node 0. Each node is its kind, its class and its content. Raises ``ThawError``."""
        try:
            self._nodes = [_empty(kind, name, content) for kind, name, content in nodes]
            for made, (kind, _, content) in zip(self._nodes, nodes, strict=True):
                self._fill(made, kind, content)
            return self._nodes[0]
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise error if isinstance(error, ThawError) else ThawError(f"no machine can be made of it: {error}") from error

    def _tagged(self, plain: dict[str, Any]) -> Any:  # noqa: ANN401, PLR0911 - any value; one return per kind
        match plain:
            case {"b": digits}:
                return bytes.fromhex(digits)
            case {"r": node}:
                return self._nodes[_index(node)]
            case {"v": place}:
                return self._values[_index(place)]
            case {"m": items}:
                return {self.value(key): self.value(item) for key, item in items}
            case {"z": items}:
                return frozenset(map(self.value, items))
            case {"e": name, "n": member}:
                return _subclass(name, Enum)[member]
            case {"n": name, "f": parts}:
                kind: Any = _subclass(name, tuple)
                return kind._make(map(self.value, parts))
            case {"c": name, "f": parts}:
                return _instance(find_class(name), [self.value(part) for part in parts])
            case _:
                raise ThawError(f"{json.dumps(plain)[:80]} is of no known kind")

    def _fill(self, made: Any, kind: str, content: Any) -> None:  # noqa: ANN401 - any container
        kind = kind.partition(" ")[0]
        if kind in {"dict", "OrderedDict", "Counter", "defaultdict"}:
            keys, values = content
            for key, item in zip(keys, values, strict=True):
                made[self.value(key)] = self.value(item)
        elif kind in {"list", "deque"}:
            made.extend(map(self.value, content[1] if kind == "deque" else content))
        elif kind == "set":
            made.update(map(self.value, content))
        elif kind == "object":
            names, members = content
            for name, member in zip(names, members, strict=True):
                object.__setattr__(made, name, self.value(member))


def _empty(kind: str, name: str, content: Any) -> Any:  # noqa: ANN401, PLR0911 - any container; one return per kind
    kind, _, detail = kind.partition(" ")
    match kind:
        case "dict" | "list" | "set":
            return {"dict": dict, "list": list, "set": set}[kind]()
        case "OrderedDict":
            return OrderedDict()
        case "Counter":
            return Counter()
        case "defaultdict":
            return defaultdict(_FACTORIES[detail])
        case "deque":
            return deque(maxlen=content[0])
        case "bytearray":
            return bytearray.fromhex(content["b"])
        case "count":
            return count(_index(content))
        case "random":
            random = Random()  # noqa: S311 - the very one that the machine had
            version, words, gauss = content
            random.setstate((version, tuple(words), gauss))
            return random
        case "object":
            return _blank(find_class(name))
        case _:
            raise ThawError(f"{kind!r} is no kind of object")


def _instance(kind: type[T], parts: list[object]) -> T:
    """A dataclass with these fields, made without its constructor."""
    if not dataclasses.is_dataclass(kind):
        raise ThawError(f"{kind.__qualname__} is no dataclass")
    made = _blank(kind)
    for field, part in zip(dataclasses.fields(kind), parts, strict=True):
        object.__setattr__(made, field.name, part)
    return made


def _blank(kind: type[T]) -> T:
    """An instance without members. Not for classes that make classes."""
    if issubclass(kind, type):
        raise ThawError(f"{kind.__qualname__} is no class of values")
    return kind.__new__(kind)


def _subclass(name: str, base: type[T]) -> type[T] | Any:  # noqa: ANN401 - an enum or a named tuple
    found = find_class(name)
    if not issubclass(found, base):
        raise ThawError(f"{name!r} is no {base.__name__}")
    return found


def _index(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ThawError(f"{value!r} is no place in a list")
    return value
