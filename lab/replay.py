"""Feed a dump of the flight recorder to the machines that made it, and see whether they decide again what they had decided.

The machines are the shipped ones, made from the memory that the dump begins with. Every entry is given to its machine with the
time it came at; what the machine does is compared with what is written, output by output. The first difference ends the replay
of that machine: what follows it proves nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields

from decode_service import explaining as decode_explaining
from decode_service.handler import DecodeStagingHandler
from lab.flight_words import Outcome, call_text, outcome_text, text
from prefill_service import explaining as prefill_explaining
from prefill_service.handler import PrefillStagingHandler
from runtime.flight_file import Flight, ReadMachine
from runtime.recorder import Entry, Raised, verbs_of
from runtime.thawing import ThawError


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first entry at which the machine decided otherwise."""

    serial: int
    entry: str
    recorded: str
    replayed: str

    def __str__(self) -> str:
        return f"entry {self.serial}, {self.entry}: recorded {self.recorded}; replayed {self.replayed}"


@dataclass(slots=True)
class Replayed:
    """One machine of a dump, and how far its replay came."""

    name: str
    kind: str
    seed: int | None
    entries: int
    """How many the dump has."""
    first_serial: int
    replayed: int = 0
    divergence: Divergence | None = None
    obstacle: str = ""
    """Why it could not be replayed at all."""
    now: float = 0.0
    machine: object = field(default=None, repr=False)

    @property
    def succeeded(self) -> bool:
        """Whether every entry that was to be replayed was, with the same outcome."""
        return self.divergence is None and not self.obstacle

    def to_map(self) -> dict[str, object]:
        """Plain values, for JSON."""
        found = self.divergence
        divergence = None if found is None else {item.name: getattr(found, item.name) for item in fields(found)}
        return {
            "machine": self.name,
            "class": self.kind,
            "seed": self.seed,
            "entries": self.entries,
            "first_entry": self.first_serial,
            "replayed": self.replayed,
            "divergence": divergence,
            "obstacle": self.obstacle,
        }


def replay_flight(flight: Flight, until: int | None = None) -> list[Replayed]:
    """Replay every machine of a dump, each up to and with entry ``until`` of it (all without it)."""
    return [replay_machine(machine, until) for machine in flight.machines]


def replay_machine(read: ReadMachine, until: int | None = None) -> Replayed:
    """Replay one machine."""
    first = read.entries[0].serial if read.entries else read.total + 1
    result = Replayed(read.name, read.kind, read.seed, len(read.entries), first)
    if not read.nodes:
        result.obstacle = "its memory was too large to be recorded, so there is nothing to start from"
        return result
    try:
        result.machine = read.start()
    except ThawError as error:
        result.obstacle = str(error)
        return result
    verbs = frozenset(verbs_of(type(result.machine)))
    for entry in read.entries:
        if until is not None and entry.serial > until:
            break
        if entry.verb not in verbs:
            result.obstacle = f"entry {entry.serial}: {entry.verb!r} is no verb of {read.kind}"
            break
        outcome = _outcome(result.machine, entry)
        if outcome != entry.outcome:
            result.divergence = _divergence(entry, outcome)
            break
        result.replayed, result.now = result.replayed + 1, time_of(result.machine, entry)
    return result


def time_of(machine: object, entry: Entry) -> float:
    """The time at which the entry came, on its daemon's clock. Where ``now`` stands among the arguments only its verb knows."""
    now = entry.named.get("now")
    if now is None:
        code = getattr(type(machine), entry.verb).__code__
        now = entry.arguments[code.co_varnames.index("now") - 1]
    assert isinstance(now, float | int)
    return float(now)


def explanations(machine: object) -> Iterator[str]:
    """What the machine would tell an operator now about every room that is live in it."""
    if isinstance(machine, DecodeStagingHandler):
        decode = [decode_explaining.explain_ring(machine.state)]
        decode += [decode_explaining.explain_room(machine.state, room.id) for room in machine.state.rooms]
        for found in (entry for entries in decode for entry in entries):
            yield from (found.summary, *(f"  {line}" for line in found.lines), *(f"  next: {step}" for step in found.next))
    elif isinstance(machine, PrefillStagingHandler):
        prefill = [prefill_explaining.explain_room(machine.state, room.id) for room in machine.state.rooms]
        for told in (entry for entries in prefill for entry in entries):
            yield from (told.summary, *(f"  {line}" for line in told.lines), *(f"  next: {step}" for step in told.next))


def trace(read: ReadMachine, reached: int, clock: float, lines: int) -> Iterator[str]:
    """The last ``lines`` of the first ``reached`` entries: serial, time relative to ``clock``, call; below it the outputs."""
    try:
        machine = read.start() if read.nodes else None
    except ThawError:
        machine = None
    for entry in read.entries[max(0, reached - lines) : reached]:
        at = "" if machine is None else f"{time_of(machine, entry) - clock:+.6f} s"
        yield f"{entry.serial:>7}  {at:>14}  {call_text(entry)}"
        if isinstance(entry.outcome, Raised):
            yield f"{'':>25}! {entry.outcome.kind}: {entry.outcome.message}"
        else:
            yield from (f"{'':>25}> {text(output)}" for output in entry.outcome)


def _outcome(machine: object, entry: Entry) -> Outcome:
    try:
        outputs: Sequence[object] = getattr(machine, entry.verb)(*entry.arguments, **entry.named)
    except Exception as error:  # noqa: BLE001 - a verb that raised must raise again: it is compared like an output
        return Raised(type(error).__name__, str(error))
    return tuple(outputs)


def _divergence(entry: Entry, outcome: Outcome) -> Divergence:
    recorded, replayed = entry.outcome, outcome
    if isinstance(recorded, tuple) and isinstance(replayed, tuple):
        # What both begin with is no news.
        same = next((at for at, pair in enumerate(zip(recorded, replayed, strict=False)) if pair[0] != pair[1]), None)
        same = min(len(recorded), len(replayed)) if same is None else same
        recorded, replayed = recorded[same:], replayed[same:]
    return Divergence(entry.serial, call_text(entry), outcome_text(recorded), outcome_text(replayed))
