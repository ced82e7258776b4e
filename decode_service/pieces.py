"""Two-sided planes: payload arrives in pieces, and this side does all the writing.

Each piece is judged before a byte of it is copied, by session, grant, slice and attempt, so a stale or fenced writer can touch
nothing. Pieces lie on a grid of ``piece_bytes`` within the writer's slice; one bit per piece says which were taken, so a
repeated one is copied once.
"""

from dataclasses import dataclass, field

from decode_service.grants import Grant, GrantState, WriterSlot
from decode_service.outputs import CopyPiece
from decode_service.sessions import Session
from decode_service.state import DecodeState
from protocol.messages import DataPiece


@dataclass(slots=True, eq=False)
class Pieces:
    """Lets pieces into the ring and knows which copies run."""

    state: DecodeState
    _copies: dict[int, tuple[Grant, WriterSlot]] = field(default_factory=dict)
    _next_copy_id: int = 1

    def arrived(self, session: Session, piece: DataPiece, payload_bytes: int) -> None:
        """Order the copy of a piece if its session, grant, slice and attempt all say so; count every other."""
        grant = self.state.grants.get(piece.alloc_id)
        slot = grant.slots.get(session.writer) if grant is not None else None
        problem = "no_grant" if grant is None or slot is None else self._problem(session, grant, slot, piece, payload_bytes)
        if grant is None or slot is None or problem:
            self.state.counters[f"pieces_refused_{problem}"] += 1
            return
        slot.pieces |= 1 << piece.offset // self._piece_bytes(session)
        slot.copies += 1
        grant.room.copies += 1
        self._copies[self._next_copy_id] = (grant, slot)
        offset = grant.allocation.offset + slot.offset + piece.offset
        self.state.emit(CopyPiece(self._next_copy_id, offset, piece.num_bytes))
        self._next_copy_id += 1

    def copied(self, copy_id: int) -> tuple[Grant, WriterSlot]:
        """One copy has ended: where it went. The caller settles the room."""
        grant, slot = self._copies.pop(copy_id)
        slot.copies -= 1
        return grant, slot

    def all_arrived(self, session: Session, slot: WriterSlot) -> bool:
        """Whether every byte of the slice has been taken for copying in its current attempt."""
        count = -(-slot.num_bytes // self._piece_bytes(session))
        return slot.pieces == (1 << count) - 1

    def _piece_bytes(self, session: Session) -> int:
        return self.state.settings.offer(session.answer.plane).piece_bytes

    def _problem(self, session: Session, grant: Grant, slot: WriterSlot, piece: DataPiece, payload_bytes: int) -> str:
        if not session.two_sided or slot.session != session.id or (grant.room.id, grant.chunk) != (piece.room, piece.chunk):
            return "not_its_grant"
        if grant.state is not GrantState.OPEN or not grant.ready or slot.quiet or slot.claimed is not None:
            return "grant_closed"
        if piece.attempt != slot.rejected + 1:
            return "attempt"
        size = self._piece_bytes(session)
        if not 0 <= piece.offset < slot.num_bytes or piece.offset % size:
            return "offset"
        if not piece.num_bytes == payload_bytes == min(size, slot.num_bytes - piece.offset):
            return "size"
        return "repeated" if slot.pieces >> (piece.offset // size) & 1 else ""
