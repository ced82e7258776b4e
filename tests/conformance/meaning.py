"""Messages as plain JSON, the form in which ``docs/vectors.json`` states what frames mean.

A message is an object with its ``type`` and its fields. Nested records are objects, arrays are arrays, a watermark is
``[round, tail]``, and bytes are ``{"hex": "..."}``. Layers are listed one by one, not in runs.
"""

# Every value here is JSON or a message of any type: what it is, is looked up at run time.

import dataclasses
from collections.abc import Mapping
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from protocol.messages import DataPiece, WatermarkUpdate
from protocol.watermark import Watermark
from protocol.wire_tables import BY_KIND

KINDS: dict[str, type[Any]] = {
    "WATERMARK": WatermarkUpdate,
    "DATA": DataPiece,
    **{frame.decode(): kind for kind, (frame, _) in BY_KIND.items()},
}
NAMES = {kind: name for name, kind in KINDS.items()}


def to_meaning(message: object) -> dict[str, Any]:
    """State a message as JSON."""
    return {"type": NAMES[type(message)], **_to_json(message)}


def from_meaning(meaning: Mapping[str, Any]) -> Any:
    """Build the message that ``meaning`` states."""
    return _from_json(KINDS[meaning["type"]], {key: value for key, value in meaning.items() if key != "type"})


def _to_json(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: _to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: _to_json(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_to_json(item) for item in value]
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    return value.value if isinstance(value, Enum) else value


def _from_json(hint: Any, value: Any) -> Any:
    origin = get_origin(hint)
    if origin in (Union, UnionType) and value is not None:
        (hint,) = (option for option in get_args(hint) if option is not NoneType)
        return _from_json(hint, value)
    if value is None or origin is Mapping:
        return value and {key: _scalar(item) for key, item in value.items()}
    if origin is tuple:
        return tuple(_from_json(get_args(hint)[0], item) for item in value)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        hints = get_type_hints(hint)
        return hint(**{name: _from_json(hints[name], item) for name, item in value.items()})
    if hint is Watermark:
        return Watermark(*value)
    return hint(value) if issubclass(hint, Enum) else value


def _scalar(value: Any) -> Any:
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) else value
