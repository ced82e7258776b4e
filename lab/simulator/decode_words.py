"""What a decode rank says, kept by an observer of its wire: true watermarks, and no grant to anybody who has not asked."""

from collections import defaultdict

from decode_service.handler import DecodeStagingHandler
from decode_service.outputs import Output, RoomDone, Send
from lab.simulator.memory import ViolationError
from protocol.messages import (
    Abort,
    ChunkDone,
    ChunkReady,
    DoneStatus,
    GrantStatus,
    HeartbeatAck,
    StagingReq,
    StagingRsp,
    Subscribed,
    ToDecode,
    WatermarkUpdate,
)

MAX_REWRITES = 3
"""How often a damaged slice may be asked for again."""


class DecodeWords:
    """One life's words."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._asked: set[tuple[str, str, int]] = set()
        self._accepted: set[tuple[str, int, int]] = set()
        self._ready: set[tuple[str, int, int]] = set()
        self._codes: dict[tuple[str, int, int], str] = {}
        self._given_up: set[str] = set()
        self._damaged: defaultdict[tuple[str, int], set[int]] = defaultdict(set)

    def room_begins(self, room: str) -> None:
        """An engine uses an id again: what was asked for the former room says nothing about this one."""
        self._asked = {key for key in self._asked if key[1] != room}
        self._given_up.discard(room)

    def heard(self, message: ToDecode) -> None:
        """Note who asks, and who gives its word."""
        if isinstance(message, StagingReq):
            self._asked.add((message.session, message.room, message.chunk))
        elif isinstance(message, ChunkReady):
            self._ready.add((message.session, message.alloc_id, message.attempt))

    def said(self, outputs: tuple[Output, ...], handler: DecodeStagingHandler) -> None:
        """Check one verb's messages. The last watermark in them is the one that is true when they leave."""
        sent = [output.message for output in outputs if isinstance(output, Send)]
        truth = handler.state.grants.allocator.get_watermark()
        for message in sent:
            if isinstance(message, WatermarkUpdate) and message.watermark > truth:
                self._fail(f"says that the watermark is {message.watermark}, and it is {truth}")
            elif isinstance(message, StagingRsp):
                self._check_response(message)
            elif isinstance(message, ChunkDone):
                self._check_verdict(message)
            elif isinstance(message, Abort):
                self._given_up.add(message.room)
        for output in outputs:
            if isinstance(output, RoomDone) and output.room in self._given_up:
                self._fail(f"has given up room {output.room} and says that it is done")
        told = {message.session for message in sent if isinstance(message, WatermarkUpdate) and message.watermark == truth}
        for message in sent:
            if isinstance(message, Subscribed | HeartbeatAck) and message.session not in told:
                self._fail(f"answers session {message.session} without the current watermark")

    def _check_response(self, message: StagingRsp) -> None:
        if message.status is GrantStatus.GRANTED and (message.session, message.room, message.chunk) not in self._asked:
            self._fail(f"grants chunk {message.chunk} of room {message.room} to a session that did not ask")

    def _check_verdict(self, message: ChunkDone) -> None:
        """A verdict answers a word; what was scattered is never rejected."""
        key = (message.session, message.alloc_id, message.attempt)
        if key not in self._ready:
            self._fail(f"judges attempt {message.attempt} of grant {message.alloc_id}, which was not announced")
        if message.status is DoneStatus.SCATTERED:
            self._accepted.add(key)
        elif message.status is DoneStatus.REJECTED and key in self._accepted:
            self._fail(f"rejects attempt {message.attempt} of grant {message.alloc_id}, which it had accepted")
        elif self._codes.setdefault(key, message.code) == "checksum":
            attempts = self._damaged[message.session, message.alloc_id]
            attempts.add(message.attempt)
            if len(attempts) > MAX_REWRITES:
                self._fail(f"asks for grant {message.alloc_id} {len(attempts)} times")

    def _fail(self, problem: str) -> None:
        raise ViolationError(f"{self._name} {problem}")
