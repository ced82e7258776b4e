"""A machine's flight recorder: the latest things that entered it, what it decided each time, and a memory to start again from.

A machine is pure: the same memory and the same entries lead to the same outputs. So the recorder keeps *segments*. Each begins
with the machine's memory at that moment (``runtime/freezing.py``) and has every verb that was called since: its name, its
arguments with ``now``, and the outputs. When the newest segment holds half of what may be kept, another one begins and all but
the latest full one go. So between half and all of the bound is kept, and what is kept can be replayed from its first entry.

Recording writes nothing down: that is left to whoever dumps, in any thread. It costs a few microseconds per verb, to pack
arguments and outputs and to press many entries into one block (``runtime/packing.py``), and one copy of the machine's
changeable memory per half of the bound. A memory that would take more than half of a segment is not copied: such a segment can
be read, and not replayed.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Final, NamedTuple, Self, cast, get_origin

from runtime.freezing import FreezeError, Frozen, TooLargeError, class_name, freeze
from runtime.packing import PackError, pack, pack_block, unpack_block

_ENTRY_BYTES: Final = 48
"""What keeping an entry, or a block, costs besides its own bytes."""
_BLOCK_BYTES: Final = 32 << 10
"""Bytes of entries that become a block: 0.1 ms of work. Twice as many take a tenth less room."""


@dataclass(frozen=True, slots=True)
class Raised:
    """A verb that raised instead of deciding."""

    kind: str
    message: str


class Entry(NamedTuple):
    """One call of one verb."""

    serial: int
    """Counts the calls of this machine from 1."""
    verb: str
    arguments: tuple[object, ...]
    named: Mapping[str, object]
    outcome: "tuple[object, ...] | Raised"


@dataclass(frozen=True, slots=True)
class Block:
    """Entries that follow each other, as few bytes."""

    count: int
    packed: bytes

    @classmethod
    def of(cls, entries: Sequence[bytes]) -> Self:
        """Of packed entries."""
        return cls(len(entries), pack_block(entries))


@dataclass(slots=True, eq=False)
class Segment:
    """Entries that follow each other, after the memory in which the first of them found the machine."""

    start: Frozen | None
    """``None`` if the machine was too large to be copied: such entries can be read, and not replayed."""
    weight: int
    """Bytes that it keeps, those of the memory estimated."""
    count: int = 0
    """Entries."""
    parts: list[Block | bytes] = field(default_factory=list)
    """Blocks, and after them the latest entries, each packed by itself."""
    loose: int = 0
    """What those entries weigh."""

    def add(self, packed: bytes) -> None:
        """Keep one more entry."""
        weight = len(packed) + _ENTRY_BYTES
        self.parts.append(packed)
        self.count += 1
        self.weight += weight
        self.loose += weight
        if self.loose >= _BLOCK_BYTES:
            entries = _loose(self.parts)
            block = Block.of(entries)
            # In one step: whoever reads meanwhile has these entries once.
            self.parts[-len(entries) :] = [block]
            self.weight += len(block.packed) + _ENTRY_BYTES - self.loose
            self.loose = 0

    def blocks(self) -> Iterator[Block]:
        """Everything it keeps at this moment, oldest first. Any thread."""
        parts = tuple(self.parts)
        latest = _loose(parts)
        yield from (part for part in parts if isinstance(part, Block))
        if latest:
            yield Block.of(latest)


@dataclass(frozen=True, slots=True)
class Recording:
    """What is known of one machine at one moment."""

    machine: str
    kind: str
    seed: int | None
    settings: object
    start: Frozen | None
    blocks: tuple[Block, ...]
    total: int
    """Calls of this machine since its birth."""

    @property
    def count(self) -> int:
        """How many entries are kept."""
        return sum(block.count for block in self.blocks)

    def entries(self) -> Iterator[Entry]:
        """What entered the machine, oldest first."""
        return (Entry(*values) for block in self.blocks for values in unpack_block(block.packed))


class Recorder:
    """Records one machine from its birth on. ``attach`` once; everything else on any thread."""

    def __init__(self, name: str, max_bytes: int, max_entries: int) -> None:
        self.name = name
        self.total = 0
        self._max_bytes = max(1, max_bytes // 2)
        self._max_entries = max(1, max_entries // 2)
        self._machine: Any = None
        self._seed: int | None = None
        self._settings: object = None
        self._inside = False
        self._segments: tuple[Segment, ...] = ()

    def attach(self, machine: object, settings: object, seed: int | None = None) -> None:
        """Record every verb of ``machine`` from now on. ``settings`` and ``seed`` are what it was born with."""
        self._machine, self._settings, self._seed = machine, settings, seed
        self._begin_segment()
        for name in verbs_of(type(machine)):
            # On this object alone: the class stays what simulations and replays run.
            setattr(machine, name, self._recorded(name, getattr(machine, name)))

    @property
    def weight(self) -> int:
        """Bytes that are kept, those of the memories estimated."""
        return sum(segment.weight for segment in self._segments)

    def recording(self) -> Recording:
        """Everything kept, as it stands. Any thread, even while the machine's own thread hangs."""
        segments, total = self._segments, self.total
        whole = next((place for place, segment in enumerate(segments) if segment.start is not None), 0)
        blocks = tuple(block for segment in segments[whole:] for block in segment.blocks())
        kind = class_name(type(self._machine))
        return Recording(self.name, kind, self._seed, self._settings, segments[whole].start, blocks, total)

    def _recorded(self, name: str, verb: Callable[..., tuple[object, ...]]) -> Callable[..., tuple[object, ...]]:
        def call(*arguments: object, **named: object) -> tuple[object, ...]:
            if self._inside:  # a verb that calls another one of the same machine
                return verb(*arguments, **named)
            self._inside = True
            try:
                outputs = verb(*arguments, **named)
            except Exception as error:
                self._add(name, arguments, named, Raised(type(error).__name__, str(error)))
                raise
            finally:
                self._inside = False
            self._add(name, arguments, named, outputs)
            if self._is_full():
                self._begin_segment()
            return outputs

        return call

    def _add(
        self, verb: str, arguments: tuple[object, ...], named: Mapping[str, object], outcome: tuple[object, ...] | Raised
    ) -> None:
        self.total += 1
        try:
            packed = pack((self.total, verb, arguments, named, outcome))
        except PackError:
            # What is recorded must never end what records. After a gap nothing before it is of use.
            self._segments = ()
            self._begin_segment()
            return
        self._segments[-1].add(packed)

    def _is_full(self) -> bool:
        segment = self._segments[-1]
        return segment.weight >= self._max_bytes or segment.count >= self._max_entries

    def _begin_segment(self) -> None:
        try:
            # With a heavier memory there would be little room for entries, and another copy of it after each few of them.
            start = freeze(self._machine, max_weight=self._max_bytes // 2)
        except (TooLargeError, FreezeError):  # what is recorded must never end what records
            start = None
        # A new tuple each time: whoever reads has the old one or the new one, and nothing between.
        self._segments = (*self._segments[-1:], Segment(start, 0 if start is None else start.weight))


def _loose(parts: Sequence[Block | bytes]) -> list[bytes]:
    """The entries behind the last block."""
    latest = list(takewhile(lambda part: isinstance(part, bytes), reversed(parts)))
    return cast("list[bytes]", latest[::-1])


def verbs_of(machine: type) -> tuple[str, ...]:
    """The public methods of a machine that take ``now`` and return outputs: all ways in which something enters it."""
    public = (name for name in dir(machine) if not name.startswith("_"))
    return tuple(name for name in public if _is_verb(inspect.getattr_static(machine, name)))


def _is_verb(member: object) -> bool:
    if not inspect.isfunction(member):
        return False
    signature = inspect.signature(member)
    return "now" in signature.parameters and get_origin(signature.return_annotation) is tuple
