"""The transition table of a chunk."""

import pytest

from prefill_service.chunks import TRANSITIONS, Chunk, ChunkEvent, ChunkState
from protocol.errors import LocalProtocolError
from protocol.timers import Backoff
from tests.unit.prefill_service.bench import granted


def new_chunk() -> Chunk:
    """A chunk that was just computed."""
    return Chunk("r", "d0", 0, 0, 10, Backoff(0.2, 2.0), since=0.0)


def test_the_usual_way() -> None:
    """Asked, granted, started, finished, scattered: each moves one state on and notes the time."""
    chunk = new_chunk()
    way = (ChunkEvent.ASKED, ChunkEvent.GRANTED, ChunkEvent.STARTED, ChunkEvent.FINISHED, ChunkEvent.SCATTERED)
    seen = []
    for at, event in enumerate(way, start=1):
        chunk.apply(event, float(at))
        seen.append(chunk.state)
        assert chunk.since == at
    assert seen == [
        ChunkState.REQUESTED,
        ChunkState.GRANTED,
        ChunkState.WRITING,
        ChunkState.WRITTEN,
        ChunkState.SCATTERED,
    ]


@pytest.mark.parametrize("state", list(ChunkState))
@pytest.mark.parametrize("event", list(ChunkEvent))
def test_a_missing_key_is_the_error(state: ChunkState, event: ChunkEvent) -> None:
    """An event that the table does not know for a state raises and changes nothing; the others lead where the table says."""
    chunk = new_chunk()
    chunk.state = state
    if (state, event) in TRANSITIONS:
        chunk.apply(event, 1.0)
        assert chunk.state is TRANSITIONS[state, event]
    else:
        with pytest.raises(LocalProtocolError, match="cannot happen"):
            chunk.apply(event, 1.0)
        assert chunk.state is state


def test_ends_are_final() -> None:
    """Nothing leads out of scattered or dropped."""
    assert not [key for key in TRANSITIONS if key[0] in {ChunkState.SCATTERED, ChunkState.DROPPED}]


def test_every_live_state_survives_a_lost_session_and_can_be_dropped() -> None:
    """Whatever a chunk is at, a lost session returns it to its source pages and a failed room drops it."""
    for state in set(ChunkState) - {ChunkState.SCATTERED, ChunkState.DROPPED}:
        assert TRANSITIONS[state, ChunkEvent.SESSION_LOST] is ChunkState.COMPUTED
        assert TRANSITIONS[state, ChunkEvent.DROPPED] is ChunkState.DROPPED


def test_current_grant_is_known_by_its_id() -> None:
    """Only the id of the grant it holds is current."""
    chunk = new_chunk()
    assert not chunk.is_current(3)
    chunk.grant = granted(3)
    assert chunk.is_current(3)
    assert not chunk.is_current(4)
