"""Who is speaking, and what it means: a current session is obeyed, a fenced one is taken as a source of proof at most.

A session that is not current is told so, unless its message was itself a last word that wants no answer.
"""

from dataclasses import dataclass
from typing import assert_never

from decode_service.closing import Closing
from decode_service.completing import Completing
from decode_service.granting import Granting
from decode_service.outputs import Send
from decode_service.sessions import Session
from decode_service.state import DecodeState, TimerKey, TimerKind
from protocol.codec import frame_name
from protocol.errors import RemoteProtocolError
from protocol.messages import (
    Abort,
    AbortAck,
    ChunkReady,
    DataPiece,
    Error,
    ErrorCode,
    Heartbeat,
    HeartbeatAck,
    StagingReq,
    Unsubscribe,
    WriteFailed,
)

FromSession = StagingReq | ChunkReady | WriteFailed | Abort | AbortAck | Heartbeat | Unsubscribe


@dataclass(slots=True, eq=False)
class Hearing:
    """Hands each message of a session to the part that knows what to do."""

    state: DecodeState
    closing: Closing
    granting: Granting
    completing: Completing

    def hear(self, route: bytes, message: FromSession) -> None:
        """Take one message that names a session."""
        session = self.state.sessions.current(message.session)
        if session is None:
            self._hear_stranger(route, message)
            return
        self.state.heard_from(session, route)
        session.heard[frame_name(type(message))] = self.state.now
        self._dispatch(session, message)

    def hear_piece(self, piece: DataPiece, payload_bytes: int) -> None:
        """Take the header of one piece of payload."""
        session = self.state.sessions.current(piece.session)
        if session is None:
            self.state.counters["pieces_refused_session"] += 1
            return
        self.state.heard_from(session, b"")
        session.heard[frame_name(DataPiece)] = self.state.now
        self.completing.piece_arrived(session, piece, payload_bytes)

    def hear_noise(self, route: bytes, error: RemoteProtocolError) -> None:
        """Count what is no message, and answer it if it claims a current session."""
        self.state.counters[f"malformed_{error.code}"] += 1
        if error.session is not None and self.state.sessions.current(error.session) is not None and route:
            self.state.emit(Send(route, Error(error.session, ErrorCode.MALFORMED, str(error)[:512], error.field[:64])))

    def _hear_stranger(self, route: bytes, message: FromSession) -> None:
        """Somebody speaks with a session that is not current: take proof if it is proof, and say that the session is over."""
        session = self.state.sessions.get(message.session)
        if session is not None:
            self._take_proof(session, message)
        if route and not isinstance(message, AbortAck | Unsubscribe):
            self.state.counters["unknown_session"] += 1
            text = "this session is not current; subscribe again"
            self.state.emit(Send(route, Error(message.session, ErrorCode.UNKNOWN_SESSION, text, type(message).__name__)))

    def _take_proof(self, session: Session, message: FromSession) -> None:
        match message:
            case AbortAck():
                self.closing.abort_acknowledged(session, message.room, message.abort_id)
            case ChunkReady():
                self.completing.ready_from_fenced(session, message)
            case WriteFailed():
                self.completing.write_failed(session, message)
            case Unsubscribe():
                self.closing.prove_quiet(session)
            case Abort():
                self.closing.prove_quiet(session, message.room)
            case StagingReq() | Heartbeat():
                pass
            case _:
                assert_never(message)

    def _dispatch(self, session: Session, message: FromSession) -> None:
        match message:
            case StagingReq():
                self.granting.request(session, message)
            case ChunkReady():
                self.completing.chunk_ready(session, message)
            case Heartbeat():
                self._answer_heartbeat(session, message)
            case Abort():
                self._aborted_by(session, message)
            case AbortAck():
                self.closing.abort_acknowledged(session, message.room, message.abort_id)
            case Unsubscribe():
                self.closing.end_session(session, f"it left: {message.reason}", quiet=True, life_over=True)
            case WriteFailed():
                self.completing.write_failed(session, message)
            case _:
                assert_never(message)

    def _answer_heartbeat(self, session: Session, message: Heartbeat) -> None:
        session.seen, session.blocked = message.seen, message.blocked
        self.state.send(session, HeartbeatAck(session.id, message.seq))
        self.state.send_watermark(session.id)

    def _forget_requests(self, session: Session, room: str) -> None:
        """Its writer does not wait for answers any more, and parked requests are bounded for each session."""
        for chunk in self.state.parking.drop_room(session.id, room):
            self.state.timers.cancel(TimerKey(TimerKind.PARK, session.id, room, chunk))

    def _aborted_by(self, session: Session, message: Abort) -> None:
        """A prefill gave a room up, and by saying so proves that its writes into it have ended."""
        self.state.send(session, AbortAck(session.id, message.room, message.abort_id))
        room = self.state.rooms.live(message.room)
        if room is not None and room.group == session.group:
            self.closing.fail_room(room, "aborted_by_prefill", message.reason)
        elif room is None and self.state.rooms.over(message.room) is None:
            until = self.state.now + self.state.settings.park_s
            self.state.parking.abort_early(message.room, session.group, message.reason, until)
            self._forget_requests(session, message.room)
        self.closing.prove_quiet(session, message.room)
