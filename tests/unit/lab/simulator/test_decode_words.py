"""The observer of a decode rank's wire finds what must not be said."""

import pytest

from decode_service.outputs import RoomDone, Send
from lab.simulator.decode_words import MAX_REWRITES, DecodeWords
from lab.simulator.memory import ViolationError
from lab.simulator.options import Options
from lab.simulator.rules import Rules
from lab.simulator.world import World
from protocol.messages import (
    Abort,
    ChunkDone,
    ChunkReady,
    DoneStatus,
    GrantSlice,
    GrantStatus,
    HeartbeatAck,
    StagingReq,
    StagingRsp,
    ToPrefill,
    WatermarkUpdate,
)
from protocol.watermark import START

world = World(Options(), Rules())
world.start()
HANDLER = world.decodes["d0"].handler


def say(words: DecodeWords, *messages: ToPrefill) -> None:
    """Let the rank say something, over an empty ring at watermark (0, 0)."""
    words.said(tuple(Send(b"route", message) for message in messages), HANDLER)


def test_a_watermark_is_the_true_one_and_follows_each_heartbeat() -> None:
    """Larger than the truth is a lie; an acknowledgement without one is too little."""
    words = DecodeWords("d0")
    say(words, HeartbeatAck("s", 1), WatermarkUpdate(0, 0, "s"))
    with pytest.raises(ViolationError, match="says that the watermark is"):
        say(words, WatermarkUpdate(1, 0, "s"))
    with pytest.raises(ViolationError, match="without the current watermark"):
        say(words, HeartbeatAck("s", 2), WatermarkUpdate(0, 0, "other"))


def test_nobody_is_granted_who_has_not_asked() -> None:
    """Asking for a former room of that id does not count."""
    words = DecodeWords("d0")
    granted = StagingRsp("s", "r", 0, GrantStatus.GRANTED, START, GrantSlice(1, 0, 0, 1, 0, 1))
    words.heard(StagingReq("s", "r", 0, 0, 1))
    say(words, granted)
    words.room_begins("r")
    with pytest.raises(ViolationError, match="did not ask"):
        say(words, granted)


def test_verdicts_answer_words_and_do_not_change() -> None:
    """An unannounced attempt is not judged, an accepted one not rejected, a damaged slice not asked for without end."""
    words = DecodeWords("d0")
    with pytest.raises(ViolationError, match="not announced"):
        say(words, ChunkDone("s", "r", 0, 1, 1, DoneStatus.SCATTERED))
    for attempt in range(1, MAX_REWRITES + 2):
        words.heard(ChunkReady("s", "r", 0, 1, attempt, 1, None))
    for attempt in range(1, MAX_REWRITES + 1):
        say(words, ChunkDone("s", "r", 0, 1, attempt, DoneStatus.REJECTED, "checksum"))
    with pytest.raises(ViolationError, match="asks for grant 1"):
        say(words, ChunkDone("s", "r", 0, 1, MAX_REWRITES + 1, DoneStatus.REJECTED, "checksum"))


def test_a_room_that_was_given_up_is_never_done() -> None:
    """Failed is final."""
    words = DecodeWords("d0")
    say(words, Abort("s", "r", 1, "enough"))
    with pytest.raises(ViolationError, match="given up room r"):
        words.said((RoomDone("r"),), HANDLER)
