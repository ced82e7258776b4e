"""What can happen to a small deployment, and what comes of it: the shipped machines and codec, one step at a time.

Messages keep their order on each link, as on one connection, unless a fault disturbs it. Time stands still while anything can
be delivered or carried out; then it goes to the next deadline of any machine.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from decode_service.allocator import StagingAllocator
from decode_service.handler import DecodeStagingHandler
from decode_service.handler_settings import DecodeHandlerSettings
from lab.explore_deed import Deed, keep, offer
from lab.explore_snapshot import NoJitter
from lab.explore_state import Budget, Link, Machine, State
from lab.simulator.memory import ViolationError
from prefill_service.handler import PrefillStagingHandler
from prefill_service.handler_settings import PrefillHandlerSettings
from protocol.layout import ModelLayout, PageRun, RankLayout, TensorSpec, WriterKey

DECODE = "d"
FIRST_EPOCH = 1
BEYOND_S = 1000.0
"""Heartbeats and leases lie beyond the horizon: the simulator has time for them."""
DEADLINE_S = 5.0
"""Of rooms: only those fail by it whose prefill died before it had said a word."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The bounds of a search: who there is, how small the ring is, how many chunks go through it, and how much may go wrong."""

    name: str
    groups: tuple[str, ...]
    """The group of each prefill rank; two ranks of one group are two writers of every chunk."""
    rooms: tuple[tuple[str, str, int], ...]
    """Room, group, and chunks of it."""
    ring_bytes: int
    budget: Budget
    horizon_s: float = 60.0
    """Virtual seconds after which everything must have ended."""

    @property
    def prefills(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(f"p{i}" for i in range(len(self.groups)))

    @property
    def writers(self) -> int:
        """Writers of each chunk."""
        return len(self.groups) // len(set(self.groups))


class SmallWorld:
    """All steps of one shape."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.reactions: dict[Hashable, tuple[Machine, tuple[Any, ...]]] = {}
        """What each machine did in each situation so far."""
        self._known: dict[int, Machine] = {}
        self.model = ModelLayout(((TensorSpec("kv", shape.writers, 1, "uint8"),),))

    def start(self) -> State:
        """Rooms are registered and submitted; nobody has a session yet."""
        machines = ((DECODE, self._decode()), *((name, self.prefill(name, 1)) for name in self.shape.prefills))
        state = State(
            now=0.0,
            machines=machines,
            wire=(),
            writes=(),
            scatters=(),
            memory=((FIRST_EPOCH, bytes(self.shape.ring_bytes)),),
            mapped=frozenset(),
            abandoned=frozenset(),
            lives=tuple((name, 1) for name in self.shape.prefills),
            arrived=frozenset(),
            ended=frozenset(),
            budget=self.shape.budget,
        )
        deed = Deed(self, state)
        for room, group, chunks in self.shape.rooms:
            deed.verb(DECODE, "register_room", room, group, chunks, PageRun(()))
            for name in self.members(group):
                deed.verb(name, "submit_chunk", room, (DECODE,), 0, chunks, PageRun(tuple(range(chunks))))
                deed.verb(name, "finish_room", room)
        return deed.done()

    def successors(self, state: State) -> Iterator[tuple[str, State]]:
        """Every step from here, with its name. Raises ``ViolationError`` if one breaks a promise.

        Where a prefill rank has a message to read and writes nothing, what happens to that rank next commutes with everything
        that happens elsewhere (which can only add messages behind this one), so those steps wait for the states that follow.
        """
        first = self._independent(state)
        if first is not None:
            yield from self._steps_of(state, first)
            return
        moves = False
        for name, step in (*self._deliveries(state), *self._work(state)):
            moves = True
            yield name, step
        if not moves:
            yield "time passes", self._tick(state)
        if state.budget.total:
            spent = replace(state, budget=state.budget._replace(total=state.budget.total - 1))
            for link, _ in spent.wire:
                yield from self._disturb(spent, link)
            for who in (DECODE, *self.shape.prefills):
                yield from self._strike(spent, who)

    def _independent(self, state: State) -> str | None:
        """A prefill rank whose next steps commute with all others."""
        writing = {write.prefill for write in state.writes}
        for (source, target), _ in state.wire:
            if source == DECODE and target not in writing:
                deed = Deed(self, state)
                deed.deliver((source, target))
                if deed.done().mapped == state.mapped:
                    return target
        return None

    def _steps_of(self, state: State, prefill: str) -> Iterator[tuple[str, State]]:
        link = (DECODE, prefill)
        deed = Deed(self, state)
        yield f"{DECODE} -> {prefill}: {deed.deliver(link)}", deed.done()
        if state.budget.total:
            spent = replace(state, budget=state.budget._replace(total=state.budget.total - 1))
            yield from self._disturb(spent, link)
            yield from self._strike(spent, prefill)

    def is_over(self, state: State) -> bool:
        """Whether everybody has been told everything and owes nothing."""
        if state.writes or state.scatters:
            return False
        told = {(who, room) for who, room, _ in state.ended}
        lives = dict(state.lives)
        for room, group, _ in self.shape.rooms:
            senders = [name for name in self.members(group) if lives[name] == 1]
            if any((who, room) not in told for who in (DECODE, *senders)):
                return False
        return not any(machine.facts.owes or machine.facts.grants for _, machine in state.machines)

    def check_end(self, state: State) -> None:
        """Where messages were lost and nothing else happened, every room is done; raises ``ViolationError``."""
        budget, all_of_it = state.budget, self.shape.budget
        failed = [(who, room) for who, room, done in state.ended if not done]
        if failed and (budget.crashes, budget.aborts) == (all_of_it.crashes, all_of_it.aborts):
            raise ViolationError(f"stuck: {failed} failed although only messages were lost or repeated")

    def members(self, group: str) -> list[str]:
        """The prefill ranks of a group."""
        return [name for name, own in zip(self.shape.prefills, self.shape.groups, strict=True) if own == group]

    # ---- what happens by itself -------------------------------------------------------------------------------------------

    def _deliveries(self, state: State) -> Iterator[tuple[str, State]]:
        for link, _ in state.wire:
            deed = Deed(self, state)
            yield f"{link[0]} -> {link[1]}: {deed.deliver(link)}", deed.done()

    def _work(self, state: State) -> Iterator[tuple[str, State]]:
        for write in state.writes:
            deed = Deed(self, state)
            deed.advance(write)
            yield f"{write.prefill} writes grant {write.alloc_id}, step {write.steps + 1}", deed.done()
        for scatter in state.scatters:
            deed = Deed(self, state)
            deed.scatter(scatter)
            yield f"grant {scatter.job.alloc_id} is scattered", deed.done()

    def _tick(self, state: State) -> State:
        deadlines = [machine.facts.deadline for _, machine in state.machines if machine.facts.deadline is not None]
        now = max(state.now, min(deadlines, default=self.shape.horizon_s + 1.0))
        if now > self.shape.horizon_s:
            raise ViolationError(f"stuck: nothing has ended by {self.shape.horizon_s:g} s")
        deed = Deed(self, replace(state, now=now))
        for name, machine in state.machines:
            if machine.facts.deadline is not None and machine.facts.deadline <= now:
                deed.verb(name, "tick")
        return deed.done()

    # ---- what goes wrong --------------------------------------------------------------------------------------------------

    def _disturb(self, spent: State, link: Link) -> Iterator[tuple[str, State]]:
        """The oldest message of a link is lost, or will come once more behind all others."""
        name = f"{link[0]} -> {link[1]}"
        deed = Deed(self, spent)
        frames = deed.take(link)
        yield f"{name}: {frames[0].decode()} is lost", deed.done()
        deed = Deed(self, spent)
        deed.put(link, frames)
        yield f"{name}: {frames[0].decode()} will come again", deed.done()

    def _strike(self, spent: State, who: str) -> Iterator[tuple[str, State]]:
        """A process dies and comes back, or its engine gives a room up."""
        if spent.budget.crashes and who != DECODE:
            deed = Deed(self, replace(spent, budget=spent.budget._replace(crashes=spent.budget.crashes - 1)))
            deed.crash(who)
            yield f"{who} is killed and starts again", deed.done()
        if not spent.budget.aborts or dict(spent.lives).get(who, 1) > 1:
            return
        base = replace(spent, budget=spent.budget._replace(aborts=spent.budget.aborts - 1))
        for room, group, _ in self.shape.rooms:
            takes_part = who == DECODE or who in self.members(group)
            if takes_part and not any((who, room) == (other, known) for other, known, _ in base.ended):
                deed = Deed(self, base)
                deed.verb(who, "abort_room", room)
                yield f"{who}: its engine gives up {room}", deed.done()

    # ---- machines ---------------------------------------------------------------------------------------------------------

    def known(self, machine: Machine) -> Machine:
        """The machine that does the same and is kept already, if there is one."""
        return self._known.setdefault(machine.digest, machine)

    def writer(self, name: str) -> WriterKey:
        """Which slice of a chunk is a prefill rank's."""
        group = self.shape.groups[self.shape.prefills.index(name)]
        return WriterKey(self.members(group).index(name), 0)

    def prefill(self, name: str, life: int) -> Machine:
        """A new life of a prefill rank."""
        return keep(PrefillStagingHandler(self._prefill_settings(name, life), NoJitter()))

    def _prefill_settings(self, name: str, life: int) -> PrefillHandlerSettings:
        group = self.shape.groups[self.shape.prefills.index(name)]
        rank = self.writer(name).tp_rank
        return PrefillHandlerSettings(
            prefill_id=name,
            group=group,
            incarnation=life,
            layout=RankLayout(self.model, rank, self.shape.writers, 0, 1, (0, 1)),
            page_size=1,
            chunk_tokens=1,
            planes=("shm",),
            host_id="host",
            room_deadline_s=DEADLINE_S,
        )

    def _decode(self) -> Machine:
        settings = DecodeHandlerSettings(
            decode_id=DECODE,
            decode_rank=0,
            decode_incarnation=1,
            epoch=FIRST_EPOCH,
            host_id="host",
            layout=RankLayout(self.model, 0, 1, 0, 1, (0, 1)),
            chunk_tokens=1,
            planes=offer(FIRST_EPOCH),
            room_deadline_s=DEADLINE_S,
            heartbeat_s=BEYOND_S,
            lease_s=BEYOND_S,
            watch_s=BEYOND_S,
        )
        return keep(DecodeStagingHandler(settings, StagingAllocator(self.shape.ring_bytes), NoJitter()))
