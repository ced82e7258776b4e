"""The wire form of one dataclass: an ordered table of its fields, checked against the dataclass when it is built.

So the wire can never drift from ``protocol/messages.py`` unnoticed: a field that is added there without a row here stops the
import of the codec.
"""

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast

from protocol.errors import Fault
from protocol.wire_fields import Reader, Unfit, Writer

T = TypeVar("T")

REQUIRED: Final = object()
"""Default of a field that every peer must send. No reader accepts it."""


class Field(NamedTuple):
    """One key of a map: how it is read and written, and what it means to leave it out."""

    name: str
    read: Reader
    default: object = REQUIRED
    write: Writer | None = None


class Record(Generic[T]):
    """The wire form of one dataclass: a map whose keys are its field names, in order.

    A field with a default may be left out by a peer, and is left out by ``write`` while it has that value. Keys that are not in
    the table are ignored: they belong to a newer peer. ``check`` raises ``Unfit`` for values that cannot go together.
    """

    def __init__(self, kind: type[T], *fields: Field, check: Callable[[T], None] | None = None) -> None:
        declared = tuple(field.name for field in dataclasses.fields(cast(Any, kind)))
        if declared != tuple(field.name for field in fields):
            raise TypeError(f"{kind.__name__} has the fields {declared}, not those of its wire table")
        self.kind = kind
        self._reads = tuple((field.name, field.read, field.default) for field in fields)
        self._writes = tuple((field.name, field.write) for field in fields if field.write is not None)
        self._defaults = tuple((field.name, field.default) for field in fields if field.default is not REQUIRED)
        self._get = tuple((name, attrgetter(name)) for name in declared)
        self._check = check

    def read(self, value: object) -> T:
        """Build the dataclass from a decoded map; raise ``Unfit`` with the path of the first field that does not fit."""
        if type(value) is not dict:
            raise Unfit(Fault.WRONG_TYPE, "a map")
        arguments = []
        field = ""
        try:
            for field, read, default in self._reads:
                raw = value.get(field, default)
                arguments.append(default if raw is default and default is not REQUIRED else read(raw))
        except Unfit as unfit:
            if field not in value:
                unfit = Unfit(Fault.MISSING_FIELD, unfit.expected)
            raise unfit.within(field) from None
        record = self.kind(*arguments)
        if self._check is not None:
            self._check(record)
        return record

    def write(self, record: T) -> dict[str, object]:
        """Build the map that a peer's ``read`` turns into an equal record."""
        body: dict[str, object] = {name: get(record) for name, get in self._get}
        for field, default in self._defaults:
            if body[field] == default:
                del body[field]
        for field, write in self._writes:
            if (value := body.get(field)) is not None:
                body[field] = write(value)
        return body
