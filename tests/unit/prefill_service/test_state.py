"""The shared memory of the machine's parts."""

from random import Random

from prefill_service.outputs import Channel, Send
from prefill_service.rooms import RoomTable
from prefill_service.state import PrefillState, TimerKey, TimerKind
from protocol.messages import AbortAck
from tests.unit.prefill_service.bench import Bench, make_settings


def new_state(**changes: object) -> PrefillState:
    """An empty state."""
    return PrefillState(make_settings(**changes), Random(1), RoomTable(10.0))


def test_messages_take_the_control_channel_unless_said() -> None:
    """What is collected is what is sent, in order."""
    state = new_state()
    ack = AbortAck("s", "r", 1)
    state.send("d0", ack)
    state.send("d0", ack, Channel.DATA)
    assert state.out == [Send("d0", ack, Channel.CONTROL), Send("d0", ack, Channel.DATA)]


def test_retry_is_due_within_the_nominal_interval() -> None:
    """Jitter only shortens, and the interval never passes the common limit."""
    state = new_state(retry_limit_s=0.5)
    state.now = 10.0
    key, backoff = TimerKey(TimerKind.ROOM, room="r"), state.backoff(0.2)
    for limit in (0.2, 0.4, 0.5, 0.5):
        state.retry(key, backoff)
        at = state.timers.next()
        assert at is not None
        assert 10.0 + 0.8 * limit <= at <= 10.0 + limit


def test_chunks_move_only_in_a_current_session() -> None:
    """A peer that is unknown or only subscribing has no session to move in."""
    bench = Bench()
    assert bench.handler.state.session_of("d0") is None
    bench.handler.add_peer("d0", bench.now)
    assert bench.handler.state.session_of("d0") is None
    bench.connect("d1", 1)
    assert bench.handler.state.session_of("d1") is not None
