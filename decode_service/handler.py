"""One decode rank as a pure machine: messages and events in, outputs out, time as an argument.

Laws: a verb never blocks, never raises for anything a peer did, and returns everything it wants done. ``now`` never falls
between two calls. The caller reads its sockets until they are empty before ``tick``, so that a process that was itself stopped
hears what its peers said meanwhile before it judges their silence.

    receive, receive_data ---> |            | ---> Send, CopyPiece, ScatterChunk
    piece_copied, scatter_... -> |  handler   | ---> RoomDone, RoomFailed
    register_room, abort_room -> |            | ---> ProbeQuiet, SessionClosed
    tick(now) <--- next_deadline()

The parts: ``subscribing`` (sessions), ``hearing`` (who speaks), ``granting`` (requests), ``completing`` (bytes and verdicts),
``closing`` (every early end), ``replacing`` (new memory for a pinned ring), ``watching`` (deadlines).
"""

from copy import copy
from random import Random

from decode_service.aborting import Aborting
from decode_service.allocator import StagingAllocator
from decode_service.closing import Closing
from decode_service.completing import Completing
from decode_service.fanout import WatermarkFanout
from decode_service.granting import Granting
from decode_service.grants import GrantTable
from decode_service.handler_settings import DecodeHandlerSettings, PlaneOffer
from decode_service.hearing import Hearing
from decode_service.outputs import Output
from decode_service.parking import Parking
from decode_service.pieces import Pieces
from decode_service.replacing import Replacing
from decode_service.rooms import Room, RoomEnd, RoomRefused, RoomTable
from decode_service.sessions import SessionTable
from decode_service.snapshot import take_snapshot
from decode_service.state import DecodeState, TimerKey, TimerKind
from decode_service.subscribing import Subscribing
from decode_service.turns import Turns
from decode_service.watching import Watching
from protocol.errors import RemoteProtocolError
from protocol.identifiers import ID_EXPECTED, is_id
from protocol.layout import PageRun, WriterKey
from protocol.limits import MAX_ROOM_TOKENS
from protocol.messages import DataPiece, Goodbye, Subscribe, ToDecode, ToPrefill, WatermarkUpdate


class DecodeStagingHandler:
    """The decode side of the staging protocol for one rank and one epoch of its ring."""

    def __init__(
        self,
        settings: DecodeHandlerSettings,
        allocator: StagingAllocator,
        random: Random,
        fanout: WatermarkFanout | None = None,
    ) -> None:
        self.state = DecodeState(
            settings=settings,
            sessions=SessionTable(2 * settings.max_sessions),
            rooms=RoomTable(settings.max_rooms, settings.max_tombstones, settings.room_deadline_s),
            grants=GrantTable(allocator),
            parking=Parking(settings.max_parked_per_session, settings.max_early_aborts),
            turns=Turns(),
            # Not ``or``: a fan-out without subscribers has length 0.
            fanout=WatermarkFanout(settings.watermark_retry_s, settings.retry_limit_s) if fanout is None else fanout,
            random=random,
        )
        self._closing = Closing(self.state, Aborting(self.state))
        self._granting = Granting(self.state, self._closing)
        self._completing = Completing(self.state, self._closing, Pieces(self.state))
        self._subscribing = Subscribing(self.state, self._closing)
        self._hearing = Hearing(self.state, self._closing, self._granting, self._completing)
        self._replacing = Replacing(self.state, self._closing)
        self._watching = Watching(self.state, self._closing, self._granting, self._replacing)

    @property
    def settings(self) -> DecodeHandlerSettings:
        """What this rank is, in its current epoch."""
        return self.state.settings

    # ---- what peers say -------------------------------------------------------------------------------------------------

    def receive(self, route: bytes, message: ToDecode, now: float) -> tuple[Output, ...]:
        """Take one valid message. ``route`` is where it came from on the control socket; empty if it came on a data socket."""
        self._at(now)
        if isinstance(message, Subscribe):
            self._subscribing.subscribe(route, message)
        else:
            self._hearing.hear(route, message)
        return self._collect()

    def receive_data(self, piece: DataPiece, payload_bytes: int, now: float) -> tuple[Output, ...]:
        """Judge the header of a piece *before* its payload touches the ring: a ``CopyPiece``, or nothing."""
        self._at(now)
        self._hearing.hear_piece(piece, payload_bytes)
        return self._collect()

    def receive_error(self, route: bytes, error: RemoteProtocolError, now: float) -> tuple[Output, ...]:
        """Something undecodable came from ``route``: answer if it claims a session that lives."""
        self._at(now)
        self._hearing.hear_noise(route, error)
        return self._collect()

    # ---- what the shell reports -----------------------------------------------------------------------------------------

    def piece_copied(self, copy_id: int, now: float) -> tuple[Output, ...]:
        """A ``CopyPiece`` has been carried out."""
        self._at(now)
        self._completing.piece_copied(copy_id)
        self._replacing.settle()
        return self._collect()

    def scatter_finished(self, alloc_id: int, bad_writers: tuple[WriterKey, ...], now: float) -> tuple[Output, ...]:
        """A ``ScatterChunk`` has been carried out; with bad writers nothing was copied to the pages."""
        self._at(now)
        self._completing.scatter_finished(alloc_id, bad_writers)
        self._replacing.settle()
        return self._collect()

    def scatter_failed(self, alloc_id: int, message: str, now: float) -> tuple[Output, ...]:
        """A ``ScatterChunk`` could not be carried out: a fault on this side."""
        self._at(now)
        self._completing.scatter_failed(alloc_id, message)
        self._replacing.settle()
        return self._collect()

    def session_quiet(self, session_id: str, now: float, *, died: bool = False) -> tuple[Output, ...]:
        """The plane has proof that no process of this session can write; ``died``: its process is gone, pages and all."""
        self._at(now)
        session = self.state.sessions.get(session_id)
        if session is None:
            return self._collect()
        if died:
            self._closing.fail_rooms_of_life(session, "its process is gone")
        if session.fenced:
            self._closing.prove_quiet(session)
        else:
            reason = "its process is gone" if died else "it closed its plane"
            self._closing.end_session(session, reason, quiet=True, life_over=died)
        return self._collect()

    def region_replaced(self, epoch: int, planes: tuple[PlaneOffer, ...], now: float) -> tuple[Output, ...]:
        """A ``ReplaceRegion`` has been carried out: everything from now on belongs to the new epoch."""
        self._at(now)
        self._replacing.replaced(epoch, planes)
        return self._collect()

    def region_unavailable(self, reason: str, now: float) -> tuple[Output, ...]:
        """A ``ReplaceRegion`` could not be carried out: the ring stays pinned until proof comes."""
        self._at(now)
        self._replacing.unavailable(reason)
        return self._collect()

    def send_failed(
        self,
        route: bytes,  # noqa: ARG002 - a watermark is owed to its session, wherever that is by now
        message: ToPrefill,
        reason: str,
        now: float,
    ) -> tuple[Output, ...]:
        """A ``Send`` would have blocked or had nobody to go to. Only watermarks need help: all else is asked for again."""
        self._at(now)
        self.state.counters[f"sends_failed_{reason}"] += 1
        session = self.state.sessions.get(getattr(message, "session", "") or "")
        if session is not None:
            session.sends_failed += 1
            session.send_failed = (reason, now)
        if isinstance(message, WatermarkUpdate):
            self.state.fanout.set_aside(message.session, now)
        return self._collect()

    # ---- what the engine wants ------------------------------------------------------------------------------------------

    def register_room(
        self, room_id: str, group: str, num_tokens: int, destination: PageRun, now: float, deadline_s: float | None = None
    ) -> tuple[Output, ...]:
        """Expect ``num_tokens`` tokens of this room from that prefill group. Raises ``RoomRefused`` and changes nothing."""
        self._at(now)
        if self.state.draining:
            raise RoomRefused("draining", "this decode rank is draining and takes no new rooms")
        if not is_id(room_id):
            raise RoomRefused("invalid", f"room: expected {ID_EXPECTED}")
        if not 0 < num_tokens <= MAX_ROOM_TOKENS:
            raise RoomRefused("invalid", f"num_tokens: expected 1 to {MAX_ROOM_TOKENS}, got {num_tokens}")
        if self._closing.aborting.is_pending(room_id):
            raise RoomRefused("room_closed", f"room {room_id!r} is still being aborted; use a new room id")
        deadline = self.state.settings.room_deadline_s if deadline_s is None else deadline_s
        room = Room(room_id, group, num_tokens, self.state.settings.chunk_tokens, destination, deadline, now)
        self.state.rooms.add(room)
        self.state.timers.set(TimerKey(TimerKind.ROOM, room=room_id), now + deadline * self.state.settings.room_deadline_cap)
        reason = self.state.parking.early_abort(room_id, group, now)
        if reason is not None:
            self._closing.fail_room(room, "aborted_by_prefill", reason)
        self._granting.room_registered(room)
        return self._collect()

    def abort_room(self, room_id: str, reason: str, now: float) -> tuple[Output, ...]:
        """Fail a live room at the engine's wish; one that is over stays as it is. Raises ``RoomRefused`` for an unknown one."""
        self._at(now)
        room = self.state.rooms.live(room_id)
        if room is not None:
            self._closing.fail_room(room, "aborted", reason)
        elif self.state.rooms.over(room_id) is None:
            raise RoomRefused("unknown_room", f"room {room_id!r} is not known on this rank")
        return self._collect()

    def room_end(self, room_id: str) -> RoomEnd | None:
        """How a room ended, ``None`` while it lives. Raises ``RoomRefused`` if no such room is known."""
        end = self.state.rooms.over(room_id)
        if end is None and self.state.rooms.live(room_id) is None:
            raise RoomRefused("unknown_room", f"room {room_id!r} is not known on this rank")
        return end

    def register_wm_subscriber(self, route: bytes, session_id: str, now: float) -> tuple[Output, ...]:
        """Send a new subscriber the current watermark at once; a known one returns early with nothing to send."""
        self._at(now)
        self.state.register_subscriber(session_id, route)
        return self._collect()

    # ---- time -----------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> tuple[Output, ...]:
        """Do everything that is due. Call it with empty sockets."""
        self._at(now)
        for key in self.state.timers.pop_due(now):
            self._watching.due(key)
        self.state.rooms.forget_old(now)
        self.state.turns.forget_idle(self.state.grants.live_bytes_of.__contains__)
        return self._collect()

    def fan_out(self, now: float, budget: int) -> tuple[Output, ...]:
        """Watermarks still owed: everybody who waits for one, and at most ``budget`` others."""
        self._at(now)
        return self._collect(budget)

    @property
    def has_fan_out(self) -> bool:
        """Whether ``fan_out`` has something to send now."""
        return self.state.fanout.has_owed

    def next_deadline(self) -> float | None:
        """When ``tick`` or ``fan_out`` must be called at the latest, if nothing else happens."""
        watch = self.state.now + self.state.settings.watch_s if len(self.state.rooms) else None
        deadlines = (self.state.timers.next(), self.state.fanout.next_deadline(), self.state.rooms.next_deadline(), watch)
        return min((at for at in deadlines if at is not None), default=None)

    def drain(self, now: float) -> tuple[Output, ...]:
        """Grant nothing new and say so to every session; what is granted may finish."""
        self._at(now)
        self.state.draining = True
        for session in self.state.sessions.all_current():
            self.state.send(session, Goodbye(session.id, "this decode rank is draining"))
        return self._collect()

    def as_of(self, now: float) -> DecodeState:
        """What is known, as somebody sees it who looks on at ``now``. It is the machine's own memory: only to be read."""
        view = copy(self.state)
        view.now = max(now, self.state.now)
        return view

    def snapshot(self) -> dict[str, object]:
        """Everything an operator may ask about this rank, as plain values."""
        return take_snapshot(self.state)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is granted and no copy of ours runs."""
        return not len(self.state.grants) and not self.state.retired_grants

    # ---- inside ---------------------------------------------------------------------------------------------------------

    def _at(self, now: float) -> None:
        assert now >= self.state.now, "time never falls"
        gap = now - self.state.now
        if len(self.state.rooms) and gap > 2 * self.state.settings.watch_s:
            self.state.paused_s += gap - self.state.settings.watch_s
            self.state.counters["pauses"] += 1
        self.state.now = now

    def _collect(self, budget: int = 0) -> tuple[Output, ...]:
        self._granting.take_turns()
        for session_id in self.state.fanout.take(self.state.now, budget):
            self.state.send_watermark(session_id)
        out, self.state.out = tuple(self.state.out), []
        return out
