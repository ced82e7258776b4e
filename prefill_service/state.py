"""What the parts of the prefill machine share: its tables, its timers, the outputs being collected, and the current time.

Each public verb of the handler sets ``now``, lets the parts append to ``out``, and hands over what was collected. No part keeps
a copy of anything that stands here.
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import NamedTuple

from prefill_service.handler_settings import PrefillHandlerSettings
from prefill_service.outputs import Channel, Output, Send
from prefill_service.rooms import RoomTable
from prefill_service.sessions import Peer, Session
from prefill_service.writes import WriteQueue
from protocol.codec import frame_name
from protocol.messages import ToDecode
from protocol.timers import Backoff, Timers


class TimerKind(Enum):
    """What a deadline is for."""

    SUBSCRIBE = "subscribe"
    STOP_WAIT = "stop_wait"
    LEASE = "lease"
    HEARTBEAT = "heartbeat"
    PROBE = "probe"
    TURN = "turn"
    CHUNK = "chunk"
    ABORT = "abort"
    ROOM = "room"


class TimerKey(NamedTuple):
    """A deadline: its kind and what it is about."""

    kind: TimerKind
    peer: str = ""
    room: str = ""
    chunk: int = 0


@dataclass(slots=True, eq=False)
class PrefillState:
    """The whole memory of one prefill machine."""

    settings: PrefillHandlerSettings
    random: Random
    rooms: RoomTable
    peers: dict[str, Peer] = field(default_factory=dict)
    writes: WriteQueue = field(default_factory=WriteQueue)
    timers: Timers[TimerKey] = field(default_factory=Timers)
    counters: Counter[str] = field(default_factory=Counter)
    """What was dropped, ignored or repeated, by static name."""
    out: list[Output] = field(default_factory=list)
    now: float = 0.0
    draining: bool = False
    progress_at: float | None = None
    """When a write last ended well, or a chunk was last scattered."""
    over: tuple[str, str] | None = None
    """Code and reason once this life takes no more rooms for good."""

    def emit(self, output: Output) -> None:
        """Collect one output of the verb that runs now."""
        self.out.append(output)

    def send(self, peer: str, message: ToDecode, channel: Channel = Channel.CONTROL) -> None:
        """Collect one message."""
        if (known := self.peers.get(peer)) is not None:
            known.sent[frame_name(type(message))] = self.now
        self.emit(Send(peer, message, channel))

    def backoff(self, first_s: float) -> Backoff:
        """Retry intervals from ``first_s`` up to the common limit."""
        return Backoff(first_s, max(first_s, self.settings.retry_limit_s))

    def retry(self, key: TimerKey, backoff: Backoff) -> None:
        """Make ``key`` due after the next interval of ``backoff``."""
        self.timers.set(key, self.now + backoff.next_interval(self.random))

    def session_of(self, endpoint: str) -> Session | None:
        """The session with that peer if chunks may move in it."""
        peer = self.peers.get(endpoint)
        return peer.session if peer is not None and peer.is_current else None
