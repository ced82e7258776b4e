"""What the parts of the decode machine share: its tables, its timers, the outputs being collected, and the current time.

Each public verb of the handler sets ``now``, lets the parts append to ``out``, and hands over what was collected. No part keeps
a copy of anything that stands here.
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import NamedTuple

from decode_service.fanout import WatermarkFanout
from decode_service.grants import Grant, GrantTable
from decode_service.handler_settings import DecodeHandlerSettings
from decode_service.history import GrantHistory
from decode_service.outputs import Output, Send
from decode_service.parking import Parking
from decode_service.rooms import RoomTable
from decode_service.sessions import Session, SessionTable
from decode_service.turns import Turns
from protocol.codec import frame_name
from protocol.messages import ToPrefill, WatermarkUpdate
from protocol.timers import Timers
from protocol.watermark import START, Watermark


class TimerKind(Enum):
    """What a deadline is for."""

    LEASE = "lease"
    QUIET = "quiet"
    ABORT = "abort"
    PARK = "park"
    ROOM = "room"
    QUARANTINE = "quarantine"


class TimerKey(NamedTuple):
    """A deadline: its kind and the ids it is about."""

    kind: TimerKind
    session: str = ""
    room: str = ""
    chunk: int = 0


@dataclass(slots=True, eq=False)
class DecodeState:
    """The whole memory of one decode machine."""

    settings: DecodeHandlerSettings
    sessions: SessionTable
    rooms: RoomTable
    grants: GrantTable
    parking: Parking
    turns: Turns
    fanout: WatermarkFanout
    random: Random
    timers: Timers[TimerKey] = field(default_factory=Timers)
    routes: dict[str, bytes] = field(default_factory=dict)
    """Where each session was last heard on the control socket, so that a reconnect heals by itself."""
    counters: Counter[str] = field(default_factory=Counter)
    out: list[Output] = field(default_factory=list)
    now: float = 0.0
    paused_s: float = 0.0
    """How long this process was not running while rooms lived; room clocks do not count it."""
    draining: bool = False
    replacing: bool = False
    """New memory was asked for: nothing new is granted until it is there."""
    stuck_reason: str = ""
    """Why a pinned ring could not be replaced; empty while that never happened in this epoch."""
    retired_grants: dict[int, Grant] = field(default_factory=dict)
    """Grants of former epochs in which copies of ours still run, by ``alloc_id``."""
    history: GrantHistory = field(default_factory=GrantHistory)
    """Only for those who look on."""
    watermark_moved_at: float | None = None
    _announced: Watermark = START

    @property
    def run_time(self) -> float:
        """Time as room clocks count it."""
        return self.now - self.paused_s

    def begin_epoch(self, settings: DecodeHandlerSettings, grants: GrantTable) -> None:
        """Start over with an empty ring; whoever subscribes from now on learns its watermark from the start."""
        self.settings, self.grants = settings, grants
        self._announced = START
        self.replacing, self.stuck_reason = False, ""

    def running_grant(self, alloc_id: int) -> Grant | None:
        """A grant in which a copy of ours may run, whether its region is current or retired."""
        return self.grants.get(alloc_id) or self.retired_grants.get(alloc_id)

    def has_retired_grants(self, epoch: int) -> bool:
        """Whether copies of ours still run in a former epoch."""
        return any(grant.retired_epoch == epoch for grant in self.retired_grants.values())

    def emit(self, output: Output) -> None:
        """Collect one output of the verb that runs now."""
        self.out.append(output)

    def send(self, session: Session, message: ToPrefill) -> None:
        """Send to a session's latest route."""
        session.told[frame_name(type(message))] = self.now
        self.emit(Send(self.routes[session.id], message))

    def heard_from(self, session: Session, route: bytes) -> None:
        """A session lives: its lease starts anew, and answers go to where it speaks from (empty: a data socket)."""
        session.last_received = self.now
        self.fanout.heard_from(session.id)
        if route:
            self.routes[session.id] = route

    def register_subscriber(self, session_id: str, route: bytes) -> None:
        """Owe a new session the current watermark at once; a known one only gets its route updated."""
        self.routes[session_id] = route
        self.fanout.register(session_id)

    def send_watermark(self, session_id: str) -> None:
        """The one path on which a watermark leaves: snapshot, broadcast, answer to a heartbeat."""
        watermark = self.grants.allocator.get_watermark()
        self.fanout.sent(session_id)
        session = self.sessions.get(session_id)
        if session is not None:
            session.told[frame_name(WatermarkUpdate)], session.told_watermark = self.now, watermark
        self.emit(Send(self.routes[session_id], WatermarkUpdate(watermark.round, watermark.tail, session_id)))

    def watermark_moved(self) -> None:
        """Grants were opened or ended: start the clocks of rooms that may move now, and owe everybody a changed watermark."""
        for grant in self.grants.newly_ready(self.now):
            grant.room.granted_ready += 1
            grant.room.set_clock(self.run_time)
        watermark = self.grants.allocator.get_watermark()
        if watermark != self._announced:
            assert watermark > self._announced, "the watermark of an epoch never falls"
            self._announced, self.watermark_moved_at = watermark, self.now
            self.fanout.mark()
