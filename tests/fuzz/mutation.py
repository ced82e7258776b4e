"""Changes to an input that keep it a map, so that the fuzzer gets behind the envelope and into the fields."""

from random import Random
from typing import Any

import msgpack

from tests.fuzz.frames import RAW

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 0.5, float("inf"), float("nan")),
    *("", "s", "\u00e9", "a" * 129, "a\x00b", b"", b"\xff", [], {}, [0], [1, 2], {"k": "v"}, [[[[]]]]),
)


def mutate(data: bytes, seed: int) -> bytes | None:
    """The input with one value, key or item of its map changed; ``None`` if it holds no map."""
    if len(data) < 3 or data[0] % (RAW + 1) == RAW:
        return None
    try:
        body = msgpack.unpackb(data[2:], strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException):
        return None
    random = Random(seed)
    places = list(_places(body))
    if not places:
        return None
    container, key = random.choice(places)
    _change(container, key, random)
    packed: bytes = msgpack.packb(body)
    return data[:2] + packed


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) below a value."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in ((value, key), *_places(value[key]))]


def _change(container: Any, key: Any, random: Random) -> None:
    match random.randrange(5):
        case 0:
            del container[key]
        case 1 if isinstance(container, list):
            container.insert(key, container[key])
        case 1:
            container[random.choice(("x", "session", "stopped", "layout"))] = container[key]
        case 2 if isinstance(container[key], int):
            container[key] = max(-(2**63), min(2**64 - 1, container[key] + random.choice((-1, 1, 255, 2**32))))
        case 3 if isinstance(container[key], str):
            container[key] += random.choice(("", "0", " ", "\x7f", "\u20ac"))
        case _:
            container[key] = random.choice(VALUES)
