"""Decode ranks that lack one rule about sessions."""

from typing import Any

import pytest

from decode_service.completing import Completing
from decode_service.grants import Grant
from decode_service.hearing import Hearing
from decode_service.sessions import SessionTable
from decode_service.state import DecodeState
from decode_service.subscribing import Subscribing
from protocol.messages import DoneStatus
from tests.simulation.mutants import Register, nothing

subscriptions = Register()


@subscriptions.without("a newer life gets a session of its own")
def new_life_gets_the_old_session(patch: pytest.MonkeyPatch) -> None:
    """The same prefill is always the same session."""
    patch.setattr(Subscribing, "_supersede", nothing)


@subscriptions.without("an older life is turned away")
def old_life_is_taken_back(patch: pytest.MonkeyPatch) -> None:
    """A process that was replaced takes its place again."""
    patch.setattr(SessionTable, "newest_life", lambda *_: 0)


@subscriptions.without("a changed offer ends the session")
def offer_cannot_change(patch: pytest.MonkeyPatch) -> None:
    """A plane that does not open is offered again and again."""
    patch.setattr(Subscribing, "_same_offer", lambda *_: True)


@subscriptions.without("what a life says has stopped is proof")
def stopped_is_ignored(patch: pytest.MonkeyPatch) -> None:
    """A lost session is given back to who gave it up."""
    patch.setattr(Subscribing, "_take_stopped", nothing)


@subscriptions.without("only a life's own word says that it has stopped")
def anybody_stops_anybody(patch: pytest.MonkeyPatch) -> None:
    """A subscription that is late, or of another life, frees memory that is being written."""

    def take(self: Subscribing, message: Any) -> None:
        for session in self.state.sessions.all():
            if session.request.prefill_id == message.prefill_id and session.incarnation != message.incarnation:
                self.closing.prove_quiet(session)

    patch.setattr(Subscribing, "_take_stopped", take)


@subscriptions.without("answers go to where a session was heard last")
def route_is_kept(patch: pytest.MonkeyPatch) -> None:
    """After a reconnect nobody is reached any more."""

    def heard(self: DecodeState, session: Any, _route: bytes) -> None:
        session.last_received = self.now
        self.fanout.heard_from(session.id)

    patch.setattr(DecodeState, "heard_from", heard)


@subscriptions.without("whoever speaks in a session that is over is told so")
def strangers_are_ignored(patch: pytest.MonkeyPatch) -> None:
    """A prefill that missed the end of its session hears of it when its lease lapses."""
    patch.setattr(Hearing, "_hear_stranger", nothing)


@subscriptions.without("a fenced session may do nothing")
def fenced_sessions_are_obeyed(patch: pytest.MonkeyPatch) -> None:
    """Its requests are answered like anybody's."""
    patch.setattr(SessionTable, "current", SessionTable.get)


@subscriptions.without("a verdict is about what was announced")
def accepted_words_are_rejected(patch: pytest.MonkeyPatch) -> None:
    """A repeat of an accepted word is judged anew, and not in its favour."""

    def repeat(self: Completing, session: Any, _grant: Grant, message: Any) -> None:
        self._answer(session, message, DoneStatus.REJECTED, "size")

    patch.setattr(Completing, "_answer_repeat", repeat)
