"""A hostile world around one decode machine: any message, event or failure, in any order."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from decode_service.outputs import CopyPiece, Output, ReplaceRegion, RoomDone, RoomFailed, ScatterChunk, Send
from decode_service.rooms import RoomRefused
from protocol.errors import RemoteProtocolError
from protocol.messages import (
    Abort,
    AbortAck,
    ChunkDone,
    ChunkReady,
    DataPiece,
    DoneStatus,
    GrantSlice,
    Heartbeat,
    StagingReq,
    StagingRsp,
    Subscribed,
    Unsubscribe,
    WatermarkUpdate,
    WriteFailed,
)
from protocol.watermark import START
from tests.unit.decode_service.driver import PIECE_BYTES, SUM, Driver

ROOMS = ("r0", "r1", "r2")
PREFILLS = st.sampled_from(["g-p0", "g-p1", "h-p0"])
PLANES = st.sampled_from([("shm",), ("zmq",), ("shm", "zmq")])
small = st.integers(0, 3)


class AnythingGoes(RuleBasedStateMachine):
    """Two writers of one group and a stranger, honest or not; workers, engine, kernel and clock in any order.

    After every step the books are checked (``books.py``), and an oracle beside the machine checks that no grant ended while a
    writer that was told about it had given no proof.
    """

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver(2, ring=200, room_deadline_s=20.0, max_chunks_in_flight=3, quarantine_s=8.0)
        self.lives = {"g-p0": 1, "g-p1": 1, "h-p0": 1}
        self.sessions: dict[str, tuple[str, int, bool]] = {}
        """Prefill, life and two-sidedness of every session there ever was."""
        self.told: dict[tuple[int, str], str] = {}
        """``(alloc_id, session)`` that heard ``granted``, with the room."""
        self.proven: set[tuple[int, str]] = set()
        self.rejected: dict[tuple[int, str], int] = {}
        self.tainted: set[int] = set()
        self.slices: list[tuple[str, str, int, GrantSlice]] = []
        self.scatters: list[ScatterChunk] = []
        self.copies: list[CopyPiece] = []
        self.aborts: list[Abort] = []
        self.replacing = False
        self.live_rooms: set[str] = set()

    # ---- the oracle -----------------------------------------------------------------------------------------------------

    def live(self) -> set[int]:
        """Ids of the grants in the current ring."""
        return {grant.alloc_id for grant in self.driver.handler.state.grants}

    def step(self, before: set[int], outputs: tuple[Output, ...]) -> None:
        """Take note of what the machine wants, and check what ended."""
        for output in outputs:
            match output:
                case ScatterChunk():
                    self.scatters.append(output)
                case CopyPiece():
                    self.copies.append(output)
                case ReplaceRegion():
                    assert not self.replacing
                    self.replacing = True
                case RoomDone() | RoomFailed():
                    self.live_rooms.remove(output.room)
                case Send():
                    self.note(output.message)
                case _:
                    pass
        for alloc_id in before - self.live():
            assert alloc_id not in self.tainted
            for session in (session for told_id, session in self.told if told_id == alloc_id):
                assert (alloc_id, session) in self.proven or self.sessions[session][2], "freed on a guess"

    def note(self, message: object) -> None:
        """What a peer learns."""
        match message:
            case StagingRsp(grant=GrantSlice() as grant):
                self.told[grant.alloc_id, message.session] = message.room
                self.slices.append((message.session, message.room, message.chunk, grant))
            case ChunkDone(status=DoneStatus.REJECTED):
                key = (message.alloc_id, message.session)
                if message.attempt > self.rejected.get(key, 0):
                    self.rejected[key] = message.attempt
                    self.proven.discard(key)
            case Abort():
                self.aborts.append(message)
            case Subscribed():
                prefill = self.asking
                self.sessions[message.session] = (prefill, message.incarnation, message.plane == "zmq")
                self.driver.routes[message.session] = prefill.encode()
            case _:
                pass

    def prove(self, session: str, room: str | None = None) -> None:
        """A session says, or the kernel does, that it writes no more (into that room)."""
        self.proven |= {key for key, of in self.told.items() if key[1] == session and room in {None, of}}

    def session(self, data: st.DataObject) -> str:
        """Any session there ever was, or none of ours; mostly a recent one."""
        return data.draw(st.sampled_from([*list(self.sessions)[-4:], *self.sessions, "nobody"]))

    # ---- peers ----------------------------------------------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        """Two writers and two rooms, so that short runs get somewhere."""
        for name in ("g-p0", "g-p1"):
            self.subscribe(name, "none", ("shm",))
        self.register("r0", 6)
        self.register("r1", 4)

    @rule(
        name=PREFILLS,
        how=st.sampled_from(["none", "none", "new life", "old life"]),
        planes=PLANES,
    )
    def subscribe(self, name: str, how: str, planes: tuple[str, ...]) -> None:
        """A prefill asks for a session, perhaps in a new life, perhaps out of an old one."""
        self.lives[name] += how == "new life"
        life = self.lives[name] - (how == "old life")
        self.asking = name
        message = self.driver.subscribe_message(int(name[-1]), group=name[0], life=life, planes=planes)
        self.step(self.live(), self.driver.hear(message, name.encode()))

    @rule(data=st.data(), planes=PLANES)
    def subscribe_stopped(self, data: st.DataObject, planes: tuple[str, ...]) -> None:
        """A prefill asks for the next session and vouches for one."""
        name = data.draw(st.sampled_from(["g-p0", "g-p1"]))
        stopped = self.session(data)
        if self.sessions.get(stopped, ("", 0, False))[:2] == (name, self.lives[name]):
            self.prove(stopped)
        self.asking = name
        message = self.driver.subscribe_message(int(name[-1]), life=self.lives[name], planes=planes, stopped=stopped)
        self.step(self.live(), self.driver.hear(message, name.encode()))

    @rule(room=st.sampled_from(ROOMS), chunk=small, both=st.booleans())
    def ask(self, room: str, chunk: int, both: bool) -> None:
        """Current writers ask on the grid."""
        for name in ("g-p0", "g-p1")[: 2 if both else 1]:
            current = self.driver.handler.state.sessions.of_prefill(name)
            if current is not None:
                self.step(self.live(), self.driver.ask_all(current.id, room, chunk))

    @rule(data=st.data(), room=st.sampled_from([*ROOMS, "rx"]), chunk=st.sampled_from([0, 1, 10**9]), start=st.integers(0, 12))
    def ask_garbage(self, data: st.DataObject, room: str, chunk: int, start: int) -> None:
        """Anybody asks for anything."""
        message = StagingReq(self.session(data), room, chunk, start, data.draw(st.integers(1, 5)))
        self.step(self.live(), self.driver.hear(message))

    @precondition(lambda self: self.slices)
    @rule(data=st.data(), attempt=st.sampled_from([1, 1, 1, 2, 3, 0]), fault=st.sampled_from(["", "", "", "size", "sum"]))
    def ready(self, data: st.DataObject, attempt: int, fault: str) -> None:
        """A writer gives its word about a grant it was told, in any attempt, right or wrong."""
        session, room, chunk, grant = data.draw(st.sampled_from(self.slices[-6:]))
        key = (grant.alloc_id, session)
        if attempt == self.rejected.get(key, 0) + 1:
            self.proven.add(key)
        size = grant.writer_bytes + (fault == "size")
        message = ChunkReady(session, room, chunk, grant.alloc_id, attempt, size, None if fault == "sum" else SUM)
        self.step(self.live(), self.driver.hear(message))

    @precondition(lambda self: self.slices)
    @rule(data=st.data())
    def ready_garbage(self, data: st.DataObject) -> None:
        """A word that mixes sessions, rooms and grants."""
        _, room, chunk, grant = data.draw(st.sampled_from(self.slices))
        session = self.session(data)
        if self.told.get((grant.alloc_id, session)) == room and self.rejected.get((grant.alloc_id, session), 0) == 0:
            self.proven.add((grant.alloc_id, session))
        self.step(self.live(), self.driver.hear(ChunkReady(session, room, chunk, grant.alloc_id, 1, grant.writer_bytes, SUM)))

    @precondition(lambda self: self.slices)
    @rule(data=st.data(), index=st.integers(0, 4), attempt=st.integers(1, 2))
    def piece(self, data: st.DataObject, index: int, attempt: int) -> None:
        """A piece for a grant, from its own session or another."""
        session, room, chunk, grant = data.draw(st.sampled_from(self.slices[-6:]))
        offset = index * PIECE_BYTES
        size = max(1, min(PIECE_BYTES, grant.writer_bytes - offset))
        sender = data.draw(st.sampled_from([session, session, self.session(data)]))
        piece = DataPiece(sender, room, chunk, grant.alloc_id, attempt, offset, size)
        self.step(self.live(), self.driver.do(self.driver.handler.receive_data(piece, size, self.driver.now)))

    @precondition(lambda self: self.slices)
    @rule(data=st.data())
    def all_pieces_and_word(self, data: st.DataObject) -> None:
        """An honest writer on the two-sided plane."""
        session, room, chunk, grant = data.draw(st.sampled_from(self.slices[-3:]))
        attempt = self.rejected.get((grant.alloc_id, session), 0) + 1
        for offset in range(0, grant.writer_bytes, PIECE_BYTES):
            size = min(PIECE_BYTES, grant.writer_bytes - offset)
            piece = DataPiece(session, room, chunk, grant.alloc_id, attempt, offset, size)
            self.step(self.live(), self.driver.do(self.driver.handler.receive_data(piece, size, self.driver.now)))
        self.proven.add((grant.alloc_id, session))
        self.step(self.live(), self.driver.ready(session, room, grant, chunk, attempt))

    @precondition(lambda self: self.slices)
    @rule(data=st.data())
    def write_failed(self, data: st.DataObject) -> None:
        """A one-sided write ends without completion, or somebody says so."""
        _, room, chunk, grant = data.draw(st.sampled_from(self.slices[-6:]))
        message = WriteFailed(self.session(data), room, chunk, grant.alloc_id, 1, "?")
        outputs = self.driver.hear(message)
        self.tainted |= {live.alloc_id for live in self.driver.handler.state.grants if live.tainted}
        self.step(self.live() | self.tainted, outputs)

    @rule(data=st.data(), room=st.sampled_from(ROOMS))
    def abort(self, data: st.DataObject, room: str) -> None:
        """A prefill gives up a room."""
        session = self.session(data)
        self.prove(session, room)
        self.step(self.live(), self.driver.abort(session, room))

    @precondition(lambda self: self.aborts)
    @rule(data=st.data(), shift=st.sampled_from([0, 0, 0, 1]))
    def ack(self, data: st.DataObject, shift: int) -> None:
        """A prefill answers an abort, an old one or a wrong one too."""
        abort = data.draw(st.sampled_from(self.aborts[-8:]))
        if not shift:
            self.prove(abort.session, abort.room)
        self.step(self.live(), self.driver.hear(AbortAck(abort.session, abort.room, abort.abort_id + 10**6 * shift)))

    @rule(data=st.data(), what=st.sampled_from(["heartbeat", "heartbeat", "leave", "noise"]))
    def speak(self, data: st.DataObject, what: str) -> None:
        """Anybody lives, leaves or babbles."""
        session, before = self.session(data), self.live()
        if what == "heartbeat":
            outputs = self.driver.hear(Heartbeat(session, 1, START))
        elif what == "leave":
            self.prove(session)
            outputs = self.driver.hear(Unsubscribe(session, "bye"))
        else:
            error = RemoteProtocolError("wrong_type", "chunk", "an integer", session)
            outputs = self.driver.do(self.driver.handler.receive_error(b"x", error, self.driver.now))
        self.step(before, outputs)

    # ---- this side ------------------------------------------------------------------------------------------------------

    @rule(room=st.sampled_from(ROOMS), tokens=st.integers(1, 10))
    def register(self, room: str, tokens: int) -> None:
        """The engine expects a room."""
        before = self.live()
        self.live_rooms.add(room)
        try:
            outputs = self.driver.register(room, tokens)
        except RoomRefused as refused:
            if refused.code != "room_exists":
                self.live_rooms.discard(room)
            return
        self.step(before, outputs)

    @rule(room=st.sampled_from(ROOMS))
    def abort_room(self, room: str) -> None:
        """The engine gives up a room."""
        before = self.live()
        try:
            outputs = self.driver.do(self.driver.handler.abort_room(room, "engine", self.driver.now))
        except RoomRefused:
            return
        self.step(before, outputs)

    @precondition(lambda self: self.scatters)
    @rule(data=st.data(), how=st.sampled_from(["good", "good", "good", "bad", "bad", "failed"]))
    def finish_scatter(self, data: st.DataObject, how: str) -> None:
        """A worker is done."""
        scatter = self.scatters.pop(data.draw(st.integers(0, len(self.scatters) - 1)))
        before = self.live()
        if how == "failed":
            outputs = self.driver.do(self.driver.handler.scatter_failed(scatter.alloc_id, "x", self.driver.now))
        else:
            writers = [part.layout.writer for part in scatter.slices]
            bad = tuple(data.draw(st.sets(st.sampled_from(writers), min_size=1))) if how == "bad" else ()
            outputs = self.driver.scattered(scatter, bad)
        self.step(before, outputs)

    @precondition(lambda self: self.copies)
    @rule(data=st.data())
    def finish_copy(self, data: st.DataObject) -> None:
        """The copy of a piece has ended."""
        copy = self.copies.pop(data.draw(st.integers(0, len(self.copies) - 1)))
        self.step(self.live(), self.driver.copied(copy))

    @rule(data=st.data(), died=st.booleans())
    def quiet(self, data: st.DataObject, died: bool) -> None:
        """The kernel has proof about a session."""
        session = self.session(data)
        self.prove(session)
        self.step(self.live(), self.driver.quiet(session, died=died))

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.5, 3.0, 13.0]), alive=st.booleans())
    def wait(self, seconds: float, alive: bool) -> None:
        """Time passes."""
        before = self.live()
        current = [session.id for session in self.driver.handler.state.sessions.all_current()] if alive else []
        self.step(before, self.driver.wait(seconds, alive=current))

    @rule(seconds=st.sampled_from([2.0, 30.0]))
    def pause(self, seconds: float) -> None:
        """This process does not run for a while."""
        self.driver.pause(seconds)

    @precondition(lambda self: self.replacing)
    @rule(there=st.booleans())
    def replace(self, there: bool) -> None:
        """New memory is there, or cannot be had."""
        self.replacing = False
        if there:
            outputs = self.driver.replace_region()
            self.tainted.clear()
            self.step(set(), outputs)
        else:
            self.step(self.live(), self.driver.do(self.driver.handler.region_unavailable("none", self.driver.now)))

    @rule(data=st.data())
    def watermark_blocked(self, data: st.DataObject) -> None:
        """A watermark could not be sent."""
        message = WatermarkUpdate(0, 0, self.session(data))
        self.step(self.live(), self.driver.do(self.driver.handler.send_failed(b"x", message, "full", self.driver.now)))

    # ---- the end --------------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Once every copy has ended, every session is proven quiet and every room is over, nothing at all is left."""
        driver, state = self.driver, self.driver.handler.state
        for room in ROOMS:
            self.abort_room(room)
        while self.scatters:
            self.step(self.live(), driver.scattered(self.scatters.pop()))
        while self.copies:
            self.step(self.live(), driver.copied(self.copies.pop()))
        for session in list(self.sessions):
            self.prove(session)
            self.step(self.live(), driver.leave(session))
        assert self.live() == self.tainted
        assert self.live_rooms == set()
        if self.tainted:
            driver.replace_region()
        driver.wait(60)
        assert driver.handler.is_idle
        assert (len(state.sessions), len(state.rooms), state.rooms.tombstone_count, len(state.parking)) == (0, 0, 0, 0)
        assert (len(state.timers), state.routes, len(state.fanout), driver.handler._closing.aborting.pending) == (0, {}, 0, {})
        assert driver.handler._completing.pieces._copies == {}
        assert driver.handler.next_deadline() is None
