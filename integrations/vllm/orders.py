"""What the scheduler's half of the connector tells the workers' half with each step. vLLM carries these to every TP rank."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Load:
    """A request of the decode engine waits for this room; every rank reports the request exactly once."""

    request: str
    room: str
    group: str
    num_tokens: int
    """Tokens of the whole room, from the prompt's first."""
    blocks: tuple[int, ...]
    """One for each block of the room, in order; ``DISCARD`` where nothing may be written."""


DISCARD = -1
"""In the place of a block: the tokens that belong there are dropped."""
NULL_BLOCK = 0
"""vLLM puts it where a block is not there (any more)."""


@dataclass(frozen=True, slots=True)
class Release:
    """Nobody will read this room: let the prefill engine have its blocks back at once. Nothing is reported."""

    room: str
    group: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Submission:
    """Tokens ``[token_start, + num_tokens)`` of a request's room are computed by this step, or have been before."""

    room: str
    endpoints: tuple[str, ...]
    token_start: int
    num_tokens: int
    blocks: tuple[int, ...]
    """Blocks of the room from its first token on, at least to the end of these tokens."""


@dataclass(frozen=True, slots=True)
class Finish:
    """No more tokens of this room will come; every rank reports the request once the room has ended."""

    request: str
    room: str


@dataclass(frozen=True, slots=True)
class Abandon:
    """Give a room up. With a ``request``, every rank reports it once the room has ended."""

    room: str
    reason: str
    request: str | None = None


@dataclass(frozen=True, slots=True)
class Decline:
    """A room that a decode engine may wait for under this name, and of which nothing will come. Nothing is reported."""

    room: str
    endpoints: tuple[str, ...]
    reason: str


@dataclass(slots=True)
class ConsumerOrders:
    """Of one step of a decode engine."""

    loads: list[Load] = field(default_factory=list)
    releases: list[Release] = field(default_factory=list)
    is_idle: bool = False
    """The step computes nothing."""


@dataclass(slots=True)
class ProducerOrders:
    """Of one step of a prefill engine. ``computed``: the blocks that the step writes, if layers are sent as they are saved."""

    preempted: list[Abandon] = field(default_factory=list)
    """Their blocks may be written again by this very step."""
    computed: frozenset[int] = frozenset()
    submissions: list[Submission] = field(default_factory=list)
    finishes: list[Finish] = field(default_factory=list)
    abandoned: list[Abandon] = field(default_factory=list)
    declined: list[Decline] = field(default_factory=list)
    is_idle: bool = False
    """The step computes nothing."""


Orders = ConsumerOrders | ProducerOrders
