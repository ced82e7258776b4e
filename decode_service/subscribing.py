"""``SUBSCRIBE``: who gets a session, which one, and over which plane.

The same life of a prefill asking again gets the same session, because the answer may have been lost. A newer life fences the
older one; an older life is told that it is over. Whatever does not fit is refused at once, with every difference named.
"""

from dataclasses import dataclass, replace

from decode_service.closing import Closing
from decode_service.handler_settings import PlaneOffer
from decode_service.negotiating import choose_plane
from decode_service.outputs import Send
from decode_service.sessions import Session
from decode_service.state import DecodeState, TimerKey, TimerKind
from protocol import PROTOCOL_VERSION
from protocol.codec import frame_name
from protocol.errors import LayoutError
from protocol.layout import (
    MAX_DIFFERENCES,
    LayoutDifference,
    expected_writers,
    layout_differences,
    validate_layout,
    writer_slice,
)
from protocol.messages import Refused, RefusedCode, Subscribe, Subscribed


@dataclass(slots=True, eq=False)
class Subscribing:
    """Decides about each ``SUBSCRIBE`` and opens sessions."""

    state: DecodeState
    closing: Closing
    _next_session: int = 1

    def subscribe(self, route: bytes, message: Subscribe) -> None:
        """Answer with a session and the watermark, or with a refusal."""
        refusal = self._mismatch(message) or self._supersede(message)
        if refusal is None:
            self._take_stopped(message)
            self._take_lost(message)
            current = self.state.sessions.of_prefill(message.prefill_id)
            if current is not None and self._answer_current(current, route, message):
                return
            refusal = self._obstacle(message)
        plane = choose_plane(self.state.settings, message)
        if refusal is None and plane is not None:
            self._open(route, message, plane)
            return
        self.state.counters["subscribes_refused"] += 1
        self.state.emit(Send(route, refusal or self._no_plane(message)))

    def _mismatch(self, message: Subscribe) -> Refused | None:
        settings = self.state.settings
        low, high = message.versions
        if not low <= PROTOCOL_VERSION <= high:
            row = LayoutDifference("versions", f"{low} to {high}", str(PROTOCOL_VERSION))
            return Refused(message.attempt, RefusedCode.VERSION, "no common protocol version", (row,))
        if message.decode_rank not in {None, settings.decode_rank}:
            row = LayoutDifference("decode_rank", str(message.decode_rank), str(settings.decode_rank))
            return Refused(message.attempt, RefusedCode.WRONG_RANK, "another decode rank answers here", (row,))
        return self._layout_mismatch(message)

    def _layout_mismatch(self, message: Subscribe) -> Refused | None:
        """What a peer says about itself is checked before any arithmetic is done with it."""
        try:
            validate_layout(message.layout)
        except LayoutError as error:
            rows = tuple(LayoutDifference("layout", problem[:200], "") for problem in error.problems[:MAX_DIFFERENCES])
            return Refused(message.attempt, RefusedCode.LAYOUT, "no rank can have the KV layout that was sent", rows)
        rows = layout_differences(message.layout, self.state.settings.layout)
        if message.chunk_tokens != self.state.settings.chunk_tokens:
            ours = str(self.state.settings.chunk_tokens)
            rows += (LayoutDifference("chunk_tokens", str(message.chunk_tokens), ours),)
        return Refused(message.attempt, RefusedCode.LAYOUT, "the KV layouts cannot be matched", rows) if rows else None

    def _supersede(self, message: Subscribe) -> Refused | None:
        """Let a newer life end the older one, and turn an older one away."""
        newest = self.state.sessions.newest_life(message.prefill_id)
        if message.incarnation < newest:
            text = f"a newer life of {message.prefill_id!r} has subscribed; this one is over"
            return Refused(message.attempt, RefusedCode.SUPERSEDED, text)
        current = self.state.sessions.of_prefill(message.prefill_id)
        if current is not None and message.incarnation > current.incarnation:
            self.closing.end_session(current, "a newer life subscribed", quiet=False, life_over=True)
        return None

    def _answer_current(self, current: Session, route: bytes, message: Subscribe) -> bool:
        """Answer out of the session this life has. ``False`` if it negotiates anew, and so has none any more.

        A changed offer says nothing about writes that still run: only ``stopped`` does. One that was overtaken by a later
        attempt is dropped, since its prefill takes no answer to it and may be using what the later one got.
        """
        if self._same_offer(current.request, message):
            self._repeat(current, route, message)
            return True
        if message.attempt < current.answer.attempt:
            self.state.counters["subscribes_overtaken"] += 1
            return True
        self.closing.end_session(current, "it negotiates anew", quiet=False, life_over=False)
        return False

    def _take_lost(self, message: Subscribe) -> None:
        """A prefill that cannot promise anything about a session of its own is not given that session again."""
        lost = self.state.sessions.get(message.lost) if message.lost is not None else None
        life = (message.prefill_id, message.incarnation)
        if lost is not None and (lost.request.prefill_id, lost.incarnation) == life:
            self.closing.end_session(lost, "its prefill lost it", quiet=False, life_over=False)

    def _take_stopped(self, message: Subscribe) -> None:
        stopped = self.state.sessions.get(message.stopped) if message.stopped is not None else None
        if stopped is None or stopped.request.prefill_id != message.prefill_id:
            return
        if stopped.incarnation != message.incarnation:
            self.state.counters["stopped_ignored"] += 1
        elif stopped.fenced:
            self.closing.prove_quiet(stopped)
        else:
            self.closing.end_session(stopped, "its prefill gave it up", quiet=True, life_over=False)

    def _same_offer(self, old: Subscribe, new: Subscribe) -> bool:
        return (old.planes, old.layout, old.group, old.host_id, old.features) == (
            new.planes,
            new.layout,
            new.group,
            new.host_id,
            new.features,
        )

    def _obstacle(self, message: Subscribe) -> Refused | None:
        settings, sessions = self.state.settings, self.state.sessions
        if self.state.draining:
            return Refused(message.attempt, RefusedCode.DRAINING, "this decode rank is draining")
        if len(sessions) >= settings.max_sessions:
            text = f"{len(sessions)} sessions, limit {settings.max_sessions}"
            return Refused(message.attempt, RefusedCode.TOO_MANY_SESSIONS, text)
        writer = writer_slice(message.layout, settings.layout).writer
        holder = sessions.of_writer(message.group, writer)
        if holder is not None:
            text = f"prefill {holder.request.prefill_id!r} is that writer of group {message.group!r} already"
            return Refused(message.attempt, RefusedCode.WRITER_TAKEN, text)
        return self._group_mismatch(message)

    def _group_mismatch(self, message: Subscribe) -> Refused | None:
        fields = ("tp_size", "pp_size", "stage_bounds")
        for other in self.state.sessions.of_group(message.group):
            rows = tuple(
                LayoutDifference(f"group.{name}", str(getattr(message.layout, name)), str(getattr(other.layout, name)))
                for name in fields
                if getattr(message.layout, name) != getattr(other.layout, name)
            )
            if rows:
                text = f"it differs from {other.request.prefill_id!r} of the same group (second column)"
                return Refused(message.attempt, RefusedCode.LAYOUT, text, rows)
        return None

    def _no_plane(self, message: Subscribe) -> Refused:
        settings = self.state.settings
        rows = (
            LayoutDifference("planes", ", ".join(message.planes), ", ".join(offer.name for offer in settings.planes)),
            LayoutDifference("host_id", message.host_id, settings.host_id),
        )
        return Refused(message.attempt, RefusedCode.NO_PLANE, "no data plane that both sides can use", rows)

    def _repeat(self, session: Session, route: bytes, message: Subscribe) -> None:
        self.state.heard_from(session, route)
        session.answer = replace(session.answer, attempt=max(message.attempt, session.answer.attempt))
        self.state.send(session, replace(session.answer, attempt=message.attempt))
        self.state.send_watermark(session.id)

    def _open(self, route: bytes, message: Subscribe, plane: PlaneOffer) -> None:
        settings = self.state.settings
        writers = expected_writers(message.layout, settings.layout)
        session = Session(
            id=f"{settings.epoch:016x}-{self._next_session}",
            request=message,
            answer=self._answer(message, plane),
            two_sided=plane.two_sided,
            slice=writer_slice(message.layout, settings.layout),
            writers=writers,
            last_received=self.state.now,
        )
        self._next_session += 1
        self.state.sessions.add(session)
        self.state.counters["sessions_opened"] += 1
        self.state.timers.set(TimerKey(TimerKind.LEASE, session.id), self.state.now + 2 * settings.heartbeat_s)
        session.heard[frame_name(Subscribe)] = session.told[frame_name(Subscribed)] = self.state.now
        self.state.emit(Send(route, session.answer))
        self.state.register_subscriber(session.id, route)
        self.closing.fail_rooms_of_other_lives(session)

    def _answer(self, message: Subscribe, plane: PlaneOffer) -> Subscribed:
        settings = self.state.settings
        return Subscribed(
            attempt=message.attempt,
            incarnation=message.incarnation,
            version=PROTOCOL_VERSION,
            features=tuple(feature for feature in settings.features if feature in message.features),
            session=f"{settings.epoch:016x}-{self._next_session}",
            decode_id=settings.decode_id,
            decode_incarnation=settings.decode_incarnation,
            decode_rank=settings.decode_rank,
            epoch=settings.epoch,
            ring_size=self.state.grants.allocator.total_size,
            plane=plane.name,
            region=plane.descriptor,
            heartbeat_s=settings.heartbeat_s,
            lease_s=settings.lease_s,
            layout=settings.layout,
        )
