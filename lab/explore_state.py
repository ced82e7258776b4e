"""One state of a small deployment: two prefill ranks, one decode rank, what is on the wire between them, and what runs."""

from dataclasses import dataclass
from typing import NamedTuple

from decode_service.outputs import ScatterChunk
from protocol.watermark import START, Watermark

Link = tuple[str, str]


class RunningWrite(NamedTuple):
    """A write of a prefill rank. ``steps``: how many of its two halves are done."""

    prefill: str
    life: int
    write_id: int
    session: str
    room: str
    chunk: int
    alloc_id: int
    offset: int
    num_bytes: int
    epoch: int
    steps: int = 0


class RunningScatter(NamedTuple):
    """A scatter of the decode rank, over the memory of that epoch."""

    job: ScatterChunk
    epoch: int


class Budget(NamedTuple):
    """How many faults may still happen."""

    total: int
    crashes: int
    aborts: int


class Facts(NamedTuple):
    """What a step of one machine needs to know of another, and the clock of all."""

    epoch: int = 0
    """Of the decode rank, or of the session that a prefill rank has."""
    watermark: Watermark = START
    """The true one, or the one believed."""
    grants: tuple[tuple[int, int, int], ...] = ()
    """``(alloc_id, round, end)`` of each grant of the decode rank."""
    owes: bool = False
    """Whether it has aborts to repeat."""
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine as bytes, what it will do as a number, and what may be known of it."""

    blob: bytes
    digest: int
    facts: Facts


@dataclass(frozen=True, slots=True)
class State:
    """Everything that decides what can happen next. Time is virtual, in seconds."""

    now: float
    machines: tuple[tuple[str, Machine], ...]
    wire: tuple[tuple[Link, tuple[tuple[bytes, ...], ...]], ...]
    """Messages on their way, by link, in the order in which they were sent."""
    writes: tuple[RunningWrite, ...]
    scatters: tuple[RunningScatter, ...]
    memory: tuple[tuple[int, bytes], ...]
    """The bytes of each epoch's ring."""
    mapped: frozenset[tuple[str, str]]
    """Sessions whose plane is open: ``(prefill, session)``."""
    abandoned: frozenset[str]
    """Sessions whose process died with its plane open."""
    lives: tuple[tuple[str, int], ...]
    arrived: frozenset[tuple[str, int]]
    """Chunks in their pages."""
    ended: frozenset[tuple[str, str, bool]]
    """``(who, room, done)``: what each engine was told."""
    budget: Budget

    def key(self) -> int:
        """Equal for states that go on alike."""
        return hash(
            (
                round(self.now, 6),
                tuple(machine.digest for _, machine in self.machines),
                self.wire,
                self.writes,
                self.scatters,
                self.memory,
                self.mapped,
                self.abandoned,
                self.lives,
                self.arrived,
                self.ended,
                self.budget,
            )
        )
