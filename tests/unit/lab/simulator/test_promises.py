"""The observer of a prefill's wire finds a broken word."""

import pytest

from lab.simulator.memory import ViolationError
from lab.simulator.promises import Promises
from prefill_service.outputs import WriteChunk
from protocol.layout import ModelLayout, PageRun, RankLayout, TensorSpec
from protocol.messages import AbortAck, ChunkDone, ChunkReady, DoneStatus, Heartbeat, HeartbeatAck, Subscribe, Subscribed
from protocol.watermark import START

LAYOUT = RankLayout(ModelLayout(((TensorSpec("kv", 1, 1, "uint8"),),)), 0, 1, 0, 1, (0, 1))


def write(attempt: int = 1) -> WriteChunk:
    """A write of grant 7 of room r in session s."""
    return WriteChunk(1, "d", "s", "r", 0, 7, attempt, 0, 1, PageRun((0,)), 0, 1)


def subscribed() -> Promises:
    """A prefill that asked at 0 s and has a lease of 5 s."""
    promises = Promises("p")
    request = Subscribe(1, (1, 1), (), "p", "g", 1, None, 1, LAYOUT, ("shm",), "host")
    promises.sent("d", request, (), 0.0)
    answer = Subscribed(1, 1, 1, (), "s", "d", 1, 0, 1, 8, "shm", {}, 1.0, 5.0, LAYOUT)
    promises.heard("d", answer)
    return promises


def test_a_lease_runs_from_the_sending_of_what_was_answered() -> None:
    """The answer to the heartbeat of 2 s lasts until 7 s, whenever it comes."""
    promises = subscribed()
    promises.writes(write(), 4.9)
    with pytest.raises(ViolationError, match="without a valid lease"):
        promises.writes(write(), 5.0)
    promises.sent("d", Heartbeat("s", 1, START), (), 2.0)
    promises.heard("d", HeartbeatAck("s", 1))
    promises.writes(write(), 6.9)
    with pytest.raises(ViolationError, match="without a valid lease"):
        promises.writes(write(), 7.0)


def test_a_word_must_be_true_when_it_is_given_and_stay_true() -> None:
    """An acknowledgement while a write runs is a lie, and so is a write after it."""
    promises = subscribed()
    with pytest.raises(ViolationError, match="says that its writes have ended"):
        promises.sent("d", AbortAck("s", "r", 1), (write(),), 1.0)
    promises.sent("d", AbortAck("s", "r", 1), (), 1.0)
    with pytest.raises(ViolationError, match="writes into room r"):
        promises.writes(write(), 1.0)
    promises.room_begins("r")
    promises.writes(write(), 1.0)


def test_only_a_rejection_takes_a_word_back() -> None:
    """Grant 7 is written again when attempt 1 was rejected, not before."""
    promises = subscribed()
    promises.sent("d", ChunkReady("s", "r", 0, 7, 1, 1, None), (), 1.0)
    with pytest.raises(ViolationError, match="was not rejected"):
        promises.writes(write(2), 1.0)
    promises.heard("d", ChunkDone("s", "r", 0, 7, 1, DoneStatus.REJECTED, "checksum"))
    promises.writes(write(2), 1.0)
