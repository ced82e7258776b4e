"""The wire form of a pool: how an engine tells its daemon where the pages are."""

from dataclasses import dataclass
from pathlib import PurePath
from typing import Self

from protocol import limits
from protocol.errors import Fault
from protocol.wire_fields import Unfit, integer, listing, text
from protocol.wire_record import Field, Record
from protocol.wire_tables import LAYOUT
from runtime.pool_layout import PoolError, PoolLayout, PoolTensor

_bytes = integer(0, limits.MAX_UINT63)
_PLACE = Record(
    PoolTensor,
    Field("layer", integer(0, limits.MAX_LAYERS - 1)),
    Field("tensor", integer(0, limits.MAX_TENSORS_PER_LAYER - 1)),
    Field("offset", _bytes),
    Field("page_stride", _bytes),
    Field("token_stride", _bytes),
    Field("head_stride", _bytes),
)
_LAYOUT = Record(
    PoolLayout,
    Field("rank", LAYOUT.read, write=LAYOUT.write),
    Field("page_size", integer(1, limits.MAX_CHUNK_TOKENS)),
    Field("num_pages", integer(1, limits.MAX_ROOM_TOKENS)),
    Field(
        "tensors",
        listing(_PLACE.read, limits.MAX_LAYERS * limits.MAX_TENSORS_PER_LAYER),
        write=lambda places: [_PLACE.write(place) for place in places],
    ),
    Field("total_bytes", integer(1, limits.MAX_UINT63)),
)


def _path(value: object) -> str:
    path: str = text(limits.MAX_TEXT_BYTES)(value)
    if "\0" in path or not PurePath(path).is_absolute():
        raise Unfit(Fault.OUT_OF_RANGE, "an absolute path")
    return path


@dataclass(frozen=True, slots=True)
class PoolDescriptor:
    """How another process finds a pool: the file's absolute path, and what lies in it."""

    path: str
    layout: PoolLayout

    def to_map(self) -> dict[str, object]:
        """Plain maps, lists, integers and text, as msgpack and JSON take them."""
        return _DESCRIPTOR.write(self)

    @classmethod
    def from_map(cls, value: object) -> Self:
        """Read what ``to_map`` made. Raises ``PoolError`` with the field and what was expected; checks form, not sense."""
        try:
            found = _DESCRIPTOR.read(value)
        except Unfit as unfit:
            raise PoolError([f"pool descriptor {unfit.path}: expected {unfit.expected}"]) from unfit
        return cls(found.path, found.layout)


_DESCRIPTOR = Record(PoolDescriptor, Field("path", _path), Field("layout", _LAYOUT.read, write=_LAYOUT.write))
