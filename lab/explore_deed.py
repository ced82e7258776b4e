"""One step of a small deployment, from one state to the next, with every promise checked on the way."""

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from decode_service import outputs as to_do_at_decode
from decode_service.handler import DecodeStagingHandler
from decode_service.handler_settings import PlaneOffer
from lab.explore_snapshot import digest, dump, load
from lab.explore_state import Facts, Link, Machine, RunningScatter, RunningWrite, State
from lab.simulator.decode_checks import DecodeChecks
from lab.simulator.memory import ViolationError, checksum_of, source_bytes
from prefill_service import outputs as to_do_at_prefill
from prefill_service.handler import PrefillStagingHandler
from protocol import codec
from protocol.layout import WriterKey
from protocol.messages import Abort, AbortAck, Subscribe, Unsubscribe
from protocol.watermark import START, is_watermark_ready

if TYPE_CHECKING:
    from lab.explore_world import SmallWorld

DECODE = "d"


class Deed:
    """A state that is being changed. Machines that no verb touches stay as they are."""

    def __init__(self, world: "SmallWorld", state: State) -> None:
        self._world = world
        self._state = state
        self.now = state.now
        self._machines = dict(state.machines)
        self._wire = dict(state.wire)
        self._writes = list(state.writes)
        self._scatters = list(state.scatters)
        self._memory = dict(state.memory)
        self._mapped = set(state.mapped)
        self._abandoned = set(state.abandoned)
        self._lives = dict(state.lives)
        self._arrived = set(state.arrived)
        self._ended = set(state.ended)

    def verb(self, name: str, verb: str, *args: Hashable) -> None:
        """Let a machine do something, and carry out what it wants. What it did before in the same situation is remembered."""
        machine = self._machines[name]
        key = (name, machine.digest, verb, args, self.now)
        reaction = self._world.reactions.get(key)
        if reaction is None:
            loaded = load(machine.blob)
            # It may have been kept at another time: what it will do depends on what is due, not on that.
            loaded.state.now = min(loaded.state.now, self.now)
            outputs = _perform(loaded, verb, args, self.now)
            if name == DECODE:
                outputs += loaded.fan_out(self.now, 8)
                DecodeChecks(DECODE).after_step(loaded)
            reaction = self._world.reactions[key] = (self._world.known(keep(loaded)), outputs)
        self._machines[name], outputs = reaction
        self._check_watermark(machine.facts, self._machines[name].facts)
        for output in outputs:
            if name == DECODE:
                self._run_decode(output)
            else:
                self._run_prefill(name, output)

    def replace(self, name: str, machine: Machine) -> None:
        """Another life of a machine."""
        self._machines[name] = machine

    def done(self) -> State:
        """The state after this step."""
        return State(
            now=self.now,
            machines=tuple(self._machines.items()),
            wire=tuple(sorted((link, queue) for link, queue in self._wire.items() if queue)),
            writes=tuple(sorted(self._writes)),
            scatters=tuple(self._scatters),
            memory=tuple(self._memory.items()),
            mapped=frozenset(self._mapped),
            abandoned=frozenset(self._abandoned),
            lives=tuple(self._lives.items()),
            arrived=frozenset(self._arrived),
            ended=frozenset(self._ended),
            budget=self._state.budget,
        )

    # ---- the wire ---------------------------------------------------------------------------------------------------------

    def put(self, link: Link, frames: tuple[bytes, ...]) -> None:
        """One more message on its way."""
        self._wire[link] = (*self._wire.get(link, ()), frames)

    def take(self, link: Link) -> tuple[bytes, ...]:
        """The oldest message of a link."""
        first, *rest = self._wire[link]
        self._wire[link] = tuple(rest)
        return first

    def deliver(self, link: Link) -> str:
        """Let the oldest message arrive; returns its type."""
        source, target = link
        frames = self.take(link)
        if target == DECODE:
            self.verb(DECODE, "hear", source, frames)
        else:
            self.verb(target, "hear", DECODE, frames)
            self._check_belief(self._machines[target].facts)
        return frames[0].decode()

    # ---- what runs --------------------------------------------------------------------------------------------------------

    def advance(self, write: RunningWrite) -> None:
        """Half of a write, or its end."""
        self._writes.remove(write)
        half = write.num_bytes // 2
        if write.steps == 0 and half:
            self._write(write, 0, half)
            self._writes.append(write._replace(steps=1))
            return
        self._write(write, half, write.num_bytes)
        self.verb(write.prefill, "write_finished", write.write_id, checksum_of(self._payload(write)))

    def scatter(self, scatter: RunningScatter) -> None:
        """Verify every slice and copy it to its pages."""
        self._scatters.remove(scatter)
        job, memory = scatter.job, self._memory[scatter.epoch]
        found = {part.layout.writer: memory[part.offset : part.offset + part.num_bytes] for part in job.slices}
        bad = tuple(part.layout.writer for part in job.slices if checksum_of(found[part.layout.writer]) != part.checksum)
        if bad:
            raise ViolationError(f"the bytes of chunk {job.chunk} of room {job.room} are wrong, and nothing damaged them")
        for writer, block in found.items():
            if block != _content(job.room, job.chunk, writer, len(block)):
                raise ViolationError(f"chunk {job.chunk} of room {job.room} consists of something else")
        if len(found) != self._world.shape.writers:
            raise ViolationError(f"chunk {job.chunk} of room {job.room} is scattered without all of its writers")
        if (job.room, job.chunk) in self._arrived:
            raise ViolationError(f"chunk {job.chunk} of room {job.room} is scattered twice")
        if any((who, room) == (DECODE, job.room) for who, room, _ in self._ended):
            raise ViolationError(f"chunk {job.chunk} is scattered into pages of room {job.room}, which the engine has back")
        self._arrived.add((job.room, job.chunk))
        self.verb(DECODE, "scatter_finished", job.alloc_id, ())

    def crash(self, name: str) -> None:
        """Kill a prefill rank and start it again; what it has sent is still on its way, what was sent to it is not."""
        self._writes = [write for write in self._writes if write.prefill != name]
        for who, session in [key for key in self._mapped if key[0] == name]:
            self._mapped.discard((who, session))
            self._abandoned.add(session)
        self._wire.pop((DECODE, name), None)
        self._lives[name] += 1
        self.replace(name, self._world.prefill(name, self._lives[name]))
        self.verb(name, "add_peer", DECODE)

    def _write(self, write: RunningWrite, first: int, last: int) -> None:
        start, stop = write.offset + first, write.offset + last
        if start == stop:
            return
        if problem := self._problem(write, start, stop):
            raise ViolationError(f"{write.prefill} writes [{start}, {stop}) of grant {write.alloc_id}: {problem}")
        memory = bytearray(self._memory[write.epoch])
        memory[start:stop] = self._payload(write)[first:last]
        self._memory[write.epoch] = bytes(memory)

    def _problem(self, write: RunningWrite, start: int, stop: int) -> str:
        if any(
            part.offset < stop and start < part.offset + part.num_bytes
            for scatter in self._scatters
            if scatter.epoch == write.epoch
            for part in scatter.job.slices
        ):
            return "these bytes are being scattered"
        facts = self._machines[DECODE].facts
        if write.epoch != facts.epoch:
            return ""
        place = next((grant[1:] for grant in facts.grants if grant[0] == write.alloc_id), None)
        if place is None:
            return "the grant has ended"
        return "" if is_watermark_ready(facts.watermark, *place) else "its place is not free yet"

    def _check_belief(self, facts: Facts) -> None:
        truth = self._machines[DECODE].facts
        if facts.epoch == truth.epoch and facts.watermark > truth.watermark:
            raise ViolationError(f"a prefill believes {facts.watermark}, and it is {truth.watermark}")

    def _check_watermark(self, before: Facts, after: Facts) -> None:
        if before.epoch == after.epoch and after.watermark < before.watermark:
            raise ViolationError(f"a watermark fell from {before.watermark} to {after.watermark}")

    def _payload(self, write: RunningWrite) -> bytes:
        return _content(write.room, write.chunk, self._world.writer(write.prefill), write.num_bytes)

    # ---- outputs ----------------------------------------------------------------------------------------------------------

    def _run_decode(self, output: to_do_at_decode.Output) -> None:
        epoch = self._machines[DECODE].facts.epoch
        match output:
            case to_do_at_decode.Send(route=route, message=message):
                self.put((DECODE, route.decode()), tuple(codec.encode(message)))
            case to_do_at_decode.ScatterChunk():
                self._scatters.append(RunningScatter(output, epoch))
            case to_do_at_decode.ProbeQuiet(session=session):
                if not any(mapped == session for _, mapped in self._mapped):
                    self.verb(DECODE, "session_quiet", session, session in self._abandoned)
            case to_do_at_decode.RoomDone(room=room):
                self._end(DECODE, room, done=True)
            case to_do_at_decode.RoomFailed(room=room):
                self._end(DECODE, room, done=False)
            case to_do_at_decode.ReplaceRegion():
                self._memory[epoch + 1] = bytes(self._world.shape.ring_bytes)
                self.verb(DECODE, "region_replaced", epoch + 1)
            case _:
                pass

    def _run_prefill(self, name: str, output: to_do_at_prefill.Output) -> None:
        match output:
            case to_do_at_prefill.Send(message=message):
                self._check_word(name, message)
                self.put((name, DECODE), tuple(codec.encode(message)))
            case to_do_at_prefill.OpenPlane(session=session):
                self._mapped.add((name, session))
                self.verb(name, "plane_opened", DECODE, session)
            case to_do_at_prefill.ClosePlane(session=session):
                self._mapped.discard((name, session))
            case to_do_at_prefill.WriteChunk():
                self._begin_write(name, output)
            case to_do_at_prefill.RoomDone(room=room):
                self._end(name, room, done=True)
            case to_do_at_prefill.RoomFailed(room=room):
                self._end(name, room, done=False)
            case _:
                pass

    def _begin_write(self, name: str, order: to_do_at_prefill.WriteChunk) -> None:
        write = RunningWrite(
            prefill=name,
            life=self._lives[name],
            write_id=order.write_id,
            session=order.session,
            room=order.room,
            chunk=order.chunk,
            alloc_id=order.alloc_id,
            offset=order.offset,
            num_bytes=order.num_bytes,
            epoch=self._machines[name].facts.epoch,
        )
        self._writes.append(write)

    def _check_word(self, name: str, message: object) -> None:
        """Who says that its writes have ended must not be writing."""
        mine = [write for write in self._writes if write.prefill == name]
        match message:
            case Abort(session=session, room=room) | AbortAck(session=session, room=room):
                lies = [write for write in mine if (write.session, write.room) == (session, room)]
            case Subscribe(stopped=session) | Unsubscribe(session=session):
                lies = [write for write in mine if write.session == session]
            case _:
                return
        if lies:
            raise ViolationError(f"{name} says that its writes have ended and writes {lies[0]}")

    def _end(self, who: str, room: str, *, done: bool) -> None:
        if any((who, room) == (other, known) for other, known, _ in self._ended):
            raise ViolationError(f"{who} reports the end of room {room} twice")
        busy = [write for write in self._writes if write.prefill == who and write.room == room]
        scattering = [scatter for scatter in self._scatters if who == DECODE and scatter.job.room == room]
        if busy or scattering:
            raise ViolationError(f"{who} gives back the pages of room {room} while it works on them")
        self._ended.add((who, room, done))


def keep(machine: DecodeStagingHandler | PrefillStagingHandler) -> Machine:
    """A machine after a verb, with what the others may know of it."""
    facts = _decode_facts(machine) if isinstance(machine, DecodeStagingHandler) else _prefill_facts(machine)
    return Machine(dump(machine), digest(machine), facts)


def _decode_facts(handler: DecodeStagingHandler) -> Facts:
    grants = handler.state.grants
    return Facts(
        epoch=handler.settings.epoch,
        watermark=grants.allocator.get_watermark(),
        grants=tuple((grant.alloc_id, grant.allocation.round, grant.end) for grant in grants),
        owes=bool(handler._closing.aborting.pending),  # noqa: SLF001 - as an operator would read it in a snapshot
        deadline=handler.next_deadline(),
    )


def _prefill_facts(handler: PrefillStagingHandler) -> Facts:
    peer = handler.state.peers.get(DECODE)
    session = peer.session if peer is not None else None
    return Facts(
        epoch=session.terms.epoch if session is not None else 0,
        watermark=session.gate.watermark if session is not None else START,
        owes=peer is not None and bool(peer.aborts),
        deadline=handler.next_deadline(),
    )


def _perform(
    machine: DecodeStagingHandler | PrefillStagingHandler, verb: str, args: tuple[Any, ...], now: float
) -> tuple[Any, ...]:
    """Call one verb; what a key cannot hold is made here."""
    outputs: tuple[Any, ...]
    match machine, verb, args:
        case DecodeStagingHandler(), "hear", (source, frames):
            outputs = machine.receive(source.encode(), codec.decode_to_decode(frames), now)
        case PrefillStagingHandler(), "hear", (source, frames):
            outputs = machine.receive(source, codec.decode_to_prefill(frames), now)
        case DecodeStagingHandler(), "session_quiet", (session, died):
            outputs = machine.session_quiet(session, now, died=died)
        case DecodeStagingHandler(), "region_replaced", (epoch,):
            outputs = machine.region_replaced(epoch, offer(epoch), now)
        case _, "abort_room", (room,):
            outputs = machine.abort_room(room, now=now, reason="enough")
        case _:
            outputs = getattr(machine, verb)(*args, now)
    return outputs


def offer(epoch: int) -> tuple[PlaneOffer, ...]:
    """The plane of an epoch."""
    return (PlaneOffer("shm", {"epoch": epoch}, two_sided=False, same_host=True),)


def _content(room: str, chunk: int, writer: WriterKey, num_bytes: int) -> bytes:
    return source_bytes("", room, chunk, writer, 0, num_bytes)
