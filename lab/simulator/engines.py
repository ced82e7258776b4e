"""The engines around a simulated deployment: they ask for rooms early, late, twice, halfway or never, and use ids again."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from lab.simulator.decode_process import DecodeProcess
from lab.simulator.memory import ViolationError
from lab.simulator.prefill_process import PrefillProcess
from lab.simulator.process import Process
from protocol.layout import WriterKey

if TYPE_CHECKING:
    from lab.simulator.world import World

AFTER_HEALING = 2
"""Requests that may still come when all faults are over."""
RETRY_S = 0.5
"""How soon an engine tries again to use an id that is refused."""


@dataclass(slots=True)
class Request:
    """One request of the engines. ``content`` names what is computed for it, also where its room's id was used before."""

    room: str
    content: str
    group: str
    num_tokens: int
    registered_late_s: float
    submitted_late_s: float
    unregistered: str = ""
    """A decode rank whose engine never hears of it."""
    unsubmitted: WriterKey | None = None
    """A prefill rank whose engine never submits it."""
    unfinished: WriterKey | None = None
    """A prefill rank whose engine stops halfway."""
    patience_s: float = 0.0
    """How long the engines go on trying while the id is refused."""
    owners: dict[WriterKey, str] = field(default_factory=dict)
    """For each prefill rank of the group, the life that holds its pages."""
    silent: set[str] = field(default_factory=set)
    """Processes whose engines are still to speak of it."""
    taken: set[str] = field(default_factory=set)
    """Decode ranks that took it."""
    began: float = 0.0
    ended: float | None = None


class Engines:
    """A closed loop of requests over one deployment."""

    def __init__(self, world: "World", random: Random) -> None:
        self._world = world
        self._random = random
        self.requests: dict[str, Request] = {}
        """By room; the latest where an id is used again."""
        self.open: set[str] = set()
        self._pending: list[Request] = []

    @property
    def idle(self) -> bool:
        """Whether no request is open or still to come."""
        return not self._pending and not self.open

    def plan(self) -> None:
        """Draw every request, and begin."""
        options, random = self._world.options, self._random
        for number in range(options.requests):
            self._pending.append(self._draw(f"r{number}"))
        for request in self._pending[: options.faults.unregistered_rooms]:
            request.unregistered = random.choice(list(self._world.decodes))
        for request in self._pending[-options.faults.unsubmitted_rooms :] if options.faults.unsubmitted_rooms else ():
            writer = random.choice(self._world.group(request.group)).writer
            if random.random() < 0.5:
                request.unsubmitted = writer
            else:
                request.unfinished = writer
        for number in range(min(options.faults.reused_rooms, options.requests)):
            self._world.events.after(options.room_deadline_s * (0.5 + random.random()), partial(self._reuse, f"r{number}"))
        self._issue()

    def heal(self) -> None:
        """Ask for a few more rooms and no others: they show that new work goes through, and the end is near."""
        del self._pending[AFTER_HEALING:]

    def close_if_over(self, room: str) -> None:
        """Make place for the next request if everybody who lives and was told of this one has ended it."""
        if room not in self.open or self.requests[room].silent:
            return
        decodes = all(not d.alive or room in d.ended or room not in d.registered for d in self._world.decodes.values())
        senders = (*self._world.prefills.values(), *self._world.former)
        prefills = all(not p.alive or room in p.ended or room not in p.submitted for p in senders)
        if decodes and prefills:
            self.open.discard(room)
            self.requests[room].ended = self._world.events.now
            self._world.events.after(self._world.options.think_s * self._random.random(), self._issue)

    def _draw(self, room: str) -> Request:
        options, random = self._world.options, self._random
        return Request(
            room=room,
            content=room,
            group=f"g{random.randrange(options.groups)}",
            num_tokens=random.randint(1, options.max_tokens),
            registered_late_s=random.choice([0.0, 0.0, 0.01, 1.0, 4.0]),
            submitted_late_s=random.choice([0.0, 0.0, 0.05, 1.0]),
        )

    def _issue(self) -> None:
        while self._pending and len(self.open) < self._world.options.concurrency:
            self._start(self._pending.pop(0))

    def _reuse(self, room: str) -> None:
        """Use the id of a room that is over for everybody: on the decode side first, as soon as that takes it again."""
        former = self.requests.get(room)
        if former is None or room in self.open or self._world.network.healed:
            return
        again = self._draw(room)
        again.content, again.patience_s = f"{former.content}+", self._world.options.room_deadline_s * 2
        self._start(again)

    def _start(self, request: Request) -> None:
        world = self._world
        self.requests[request.room] = request
        self.open.add(request.room)
        request.began = world.events.now
        for decode in world.decodes.values():
            if decode.name != request.unregistered:
                late = request.registered_late_s * self._random.random()
                register = partial(self._register, decode, request)
                self._at(late, decode, request, partial(self._insist, decode, request, register))
        for prefill in world.group(request.group):
            if prefill.writer != request.unsubmitted:
                late = request.submitted_late_s * self._random.random()
                submit = partial(self._submit, prefill, request)
                self._at(late, prefill, request, partial(self._insist, prefill, request, submit))
        world.events.after(world.options.room_deadline_s * 6, partial(self._give_up, request))

    def _at(self, delay: float, process: Process, request: Request, action: Callable[[], None]) -> None:
        request.silent.add(process.name)

        def speak() -> None:
            request.silent.discard(process.name)
            action()
            self.close_if_over(request.room)

        def reach() -> None:
            if not process.alive:
                request.silent.discard(process.name)
                self.close_if_over(request.room)
            process.deliver(speak)

        self._world.events.after(delay, reach)

    def _insist(self, process: Process, request: Request, action: Callable[[], bool]) -> None:
        """Do something that may be refused while the id is remembered, until it is not or patience ends."""
        waited = self._world.events.now - request.began
        if not action() and waited < request.patience_s:
            process.after(RETRY_S, partial(self._insist, process, request, action))

    def _register(self, decode: DecodeProcess, request: Request) -> bool:
        taken = decode.register_room(request.room, request.group, request.num_tokens)
        if taken:
            request.taken.add(decode.name)
            self._world.results["ids_used_again"] += bool(request.patience_s)
        if taken and self._repeats() and decode.register_room(request.room, request.group, request.num_tokens):
            raise ViolationError(f"{decode.name} registers room {request.room} twice")
        return taken

    def _submit(self, prefill: PrefillProcess, request: Request) -> bool:
        """The first portion; the others follow by themselves."""
        if request.patience_s and not request.taken.issuperset(self._world.decodes):
            return False
        cuts = sorted({request.num_tokens, *(self._random.randint(1, request.num_tokens) for _ in range(2))})
        decode = list(self._world.decodes)
        owner = request.owners.get(prefill.writer)
        request.owners[prefill.writer] = prefill.owner
        if not prefill.submit(request.room, request.content, decode, 0, cuts[0]):
            if owner is not None:
                request.owners[prefill.writer] = owner
            return False
        if self._repeats():
            prefill.submit(request.room, request.content, decode, 0, cuts[0])
        self._submit_rest(prefill, request, cuts)
        return True

    def _submit_rest(self, prefill: PrefillProcess, request: Request, cuts: list[int]) -> None:
        start, *rest = cuts
        if not rest:
            prefill.finish(request.room)
            if self._repeats():
                prefill.finish(request.room)
            return
        if prefill.writer == request.unfinished:
            return

        def go_on() -> None:
            if prefill.submit(request.room, request.content, list(self._world.decodes), start, rest[0] - start):
                self._submit_rest(prefill, request, rest)

        prefill.after(self._world.options.write_s * self._random.random(), go_on)

    def _repeats(self) -> bool:
        repeats = self._random.random() < self._world.options.faults.repeated_calls
        self._world.results["repeated_calls"] += repeats
        return repeats

    def _give_up(self, request: Request) -> None:
        """A request whose processes died before they heard of it would keep the closed loop waiting."""
        if self.requests[request.room] is request:
            self.open.discard(request.room)
            self._issue()
