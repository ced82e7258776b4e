"""A dump of a daemon's flight recorders as one file of JSON lines, and back.

Each line is ``{"sum": DIGEST, "body": BODY}``, where the digest is the xxh3-64 of every body up to and with this one, so a line
that was altered, lost or cut is found and named. It proves no origin: a dump is as trustworthy as whoever sent it.

    {"flight": {...}}                  the dump: format, versions, daemon, reason, both clocks
      {"machine": {...}}               one machine: name, class, seed, settings, numbers of nodes and entries
        {"value": ...}                 a value that later lines refer to; may come before any line
        {"node": [kind, class, ...]}   the memory that it starts from, node 0 first
        {"entry": [...]}               serial, verb, arguments, named arguments, outcome
    {"end": {...}}                     how many machines there were
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import xxhash

from runtime.freezing import Encoder, to_json
from runtime.recorder import Entry, Raised, Recording
from runtime.thawing import Decoder, ThawError

FORMAT: Final = "pd-staging flight"
FORMAT_VERSION: Final = 1
MAX_LINE_CHARACTERS: Final = 64 << 20


class FlightError(ValueError):
    """A file that is no dump, or one that was damaged. ``line`` counts from 1."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"line {line}: {problem}")
        self.line = line


@dataclass(slots=True)
class ReadMachine:
    """One machine of a dump. ``entries`` have their arguments and outputs as objects again."""

    name: str
    kind: str
    seed: int | None
    total: int
    settings: object = None
    nodes: list[tuple[str, str, Any]] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    decoder: Decoder = field(default_factory=Decoder)

    def start(self) -> object:
        """A machine with the memory that the first entry found. Raises ``ThawError``; each call makes another machine."""
        return self.decoder.thaw(self.nodes)


@dataclass(frozen=True, slots=True)
class Flight:
    """A whole dump."""

    head: dict[str, Any]
    machines: tuple[ReadMachine, ...]


def dump_lines(head: dict[str, object], recordings: Sequence[Recording]) -> Iterator[str]:
    """The lines of a dump, each with its newline."""
    digest = xxhash.xxh3_64()
    for body in _bodies({"format": FORMAT, "format_version": FORMAT_VERSION, **head}, recordings):
        digest.update(body.encode())
        yield f'{{"sum":"{digest.hexdigest()}","body":{body}}}\n'


def read_flight(path: Path) -> Flight:
    """Read a dump. Raises ``FlightError`` for the first line that is wrong, ``OSError`` for a file that cannot be read."""
    reader = _Reader()
    digest = xxhash.xxh3_64()
    with path.open(encoding="utf-8", errors="replace") as file:
        number = 0
        while text := file.readline(MAX_LINE_CHARACTERS):
            number += 1
            body = _checked(number, text, digest)
            try:
                reader.take(body)
            except FlightError:
                raise
            except (ThawError, KeyError, IndexError, TypeError, ValueError, RecursionError) as error:
                raise FlightError(number, f"cannot be understood: {error}") from error
    if not reader.ended:
        raise FlightError(number + 1, "the dump ends here, before its end was written")
    return Flight(reader.head, tuple(reader.machines))


def _bodies(head: dict[str, object], recordings: Sequence[Recording]) -> Iterator[str]:
    encoder = Encoder()
    yield _line("flight", head)
    for recording in recordings:
        yield from _machine(encoder, recording)
    yield _line("end", {"machines": len(recordings)})


def _machine(encoder: Encoder, recording: Recording) -> Iterator[str]:
    nodes = () if recording.start is None else recording.start.nodes
    settings = encoder.plain(recording.settings)
    yield from _new_values(encoder)
    about = {"name": recording.machine, "class": recording.kind, "seed": recording.seed, "total": recording.total}
    yield _line("machine", {**about, "nodes": len(nodes), "entries": recording.count, "settings": settings})
    for node in nodes:
        plain = [node.kind, node.name, encoder.plain(node.content)]
        yield from _new_values(encoder)
        yield _line("node", plain)
    for entry in recording.entries():
        plain = [entry.serial, entry.verb, *map(encoder.plain, (entry.arguments, entry.named, _outcome(entry)))]
        yield from _new_values(encoder)
        yield _line("entry", plain)


def _outcome(entry: Entry) -> dict[str, object]:
    if isinstance(entry.outcome, Raised):
        return {"raised": (entry.outcome.kind, entry.outcome.message)}
    return {"outputs": entry.outcome}


def _new_values(encoder: Encoder) -> Iterator[str]:
    yield from (f'{{"value":{text}}}' for text in encoder.take_new_values())


def _line(kind: str, content: object) -> str:
    return to_json({kind: content})


_BODY: Final = '","body":'
_BODY_AT: Final = len('{"sum":"') + 16


def _checked(number: int, text: str, digest: "xxhash.xxh3_64") -> dict[str, Any]:
    """The body of a line whose digest is right."""
    if not text.startswith('{"sum":"') or not text.startswith(_BODY, _BODY_AT) or not text.endswith("}\n"):
        raise FlightError(number, "this is no line of a flight recorder's dump")
    body = text[_BODY_AT + len(_BODY) : -2]
    digest.update(body.encode())
    if digest.hexdigest() != text[len('{"sum":"') : _BODY_AT]:
        raise FlightError(number, "its digest does not match: the dump was altered or damaged here or just before")
    try:
        read = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise FlightError(number, f"its body is no JSON ({error})") from error
    if not isinstance(read, dict) or len(read) != 1:
        raise FlightError(number, "its body has not exactly one kind")
    return read


class _Reader:
    """Takes the bodies in their order."""

    def __init__(self) -> None:
        self.head: dict[str, Any] = {}
        self.machines: list[ReadMachine] = []
        self.ended = False
        self._decoder = Decoder()

    def take(self, body: dict[str, Any]) -> None:
        """Take the next line. Raises what its content deserves; the caller adds the line's number."""
        ((kind, content),) = body.items()
        if self.ended or (not self.head and kind != "flight"):
            raise ValueError(f"{kind!r} is not expected here")
        match kind:
            case "flight":
                self._begin(content)
            case "value":
                self._decoder.add_value(content)
            case "machine":
                self._settle()
                # One decoder per machine, since each numbers its own nodes; shared values are numbered through.
                self._decoder = self._decoder.sibling()
                self.machines.append(self._machine(content))
            case "node":
                node_kind, name, plain = content
                self.machines[-1].nodes.append((str(node_kind), str(name), plain))
            case "entry":
                self.machines[-1].entries.append(self._entry(content))
            case "end":
                self._settle()
                if content["machines"] != len(self.machines):
                    raise ValueError(f"{content['machines']} machines were written, {len(self.machines)} are here")
                self.ended = True
            case _:
                raise ValueError(f"{kind!r} is of no known kind")

    def _begin(self, head: dict[str, Any]) -> None:
        found = (head.get("format"), head.get("format_version"))
        if self.head or found != (FORMAT, FORMAT_VERSION):
            raise ValueError(f"expected {FORMAT!r} version {FORMAT_VERSION}, found {found[0]!r} version {found[1]!r}")
        self.head = head

    def _machine(self, about: dict[str, Any]) -> ReadMachine:
        self._expected = (about["nodes"], about["entries"])
        settings = self._decoder.value(about["settings"])
        return ReadMachine(about["name"], about["class"], about["seed"], about["total"], settings, decoder=self._decoder)

    def _settle(self) -> None:
        if self.machines and (len(self.machines[-1].nodes), len(self.machines[-1].entries)) != self._expected:
            raise ValueError(f"machine {self.machines[-1].name!r} has not the nodes and entries that were written")

    def _entry(self, content: list[Any]) -> Entry:
        serial, verb, arguments, named, outcome = content
        read = self._decoder.value(outcome)
        made = Raised(*read["raised"]) if "raised" in read else read["outputs"]
        return Entry(serial, verb, self._decoder.value(arguments), self._decoder.value(named), made)
