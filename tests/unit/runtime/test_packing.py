"""Packed values come back equal, weigh what they hold, and are none of the garbage collector's business."""

import gc
from enum import Enum
from threading import Thread

import pytest

from decode_service.outputs import ScatterChunk, Send
from protocol.errors import RemoteProtocolError
from protocol.layout import PageRun
from protocol.messages import GrantSlice, GrantStatus, StagingReq, StagingRsp
from protocol.watermark import Watermark
from runtime.packing import Packer, PackError, unpack

GRANTED = StagingRsp("s-1", "room", 3, GrantStatus.GRANTED, Watermark(1, 2), GrantSlice(9, 0, 1, 64, 0, 64))
VALUES = (
    *(None, True, 7, 1.5, "text", b"\x00\xff", (), (1, 2), ("a", (1.0, None))),
    *(GRANTED, GrantStatus.BUSY, Watermark(4, 5), {"a": 1, "b": (GrantStatus.DONE,)}),
    (Send(b"route", GRANTED), ScatterChunk(1, "r", 0, 0, 8, PageRun(tuple(range(100)), 3), ())),
)


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_what_was_packed_comes_back(value: object) -> None:
    """Atoms, tuples, mappings, members of enums, messages and outputs are equal to what went in, class and all."""
    back = unpack(Packer().pack(value))
    assert back == value
    assert type(back) is type(value)


def test_an_exception_comes_back() -> None:
    """What the codec raised, and the machine is told, keeps its fields."""
    back = unpack(Packer().pack(RemoteProtocolError("too_large", "frames", "less", "s-1")))
    assert (back.code, back.field, back.expected, back.session) == ("too_large", "frames", "less", "s-1")


def test_a_list_is_copied() -> None:
    """What a caller does to its list afterwards changes nothing."""
    pages = [1, 2]
    packed = Packer().pack((pages, "room"))
    pages.append(3)
    assert unpack(packed) == ((1, 2), "room")


def test_the_collector_has_nothing_to_walk_through() -> None:
    """After a walk of the collector, a packed message is no longer tracked by it."""
    packed = Packer().pack(GRANTED)
    gc.collect()
    gc.collect()
    assert not gc.is_tracked(packed)


def test_a_peer_cannot_hide_weight() -> None:
    """The weight is never below the bytes of text and the page numbers that are kept."""
    packer = Packer()
    packer.pack(StagingReq("s" * 100, "r" * 5000, 1, 2, 3))
    assert packer.weight >= 5100
    packer.weight = 0
    packer.pack(PageRun(tuple(range(10_000)), 0))
    assert packer.weight >= 80_000


def test_what_has_no_fields_is_refused() -> None:
    """An object whose members nobody can tell is an error, and leaves nothing behind."""

    class Odd:
        """Neither a dataclass nor a tuple."""

    for _ in range(2):
        with pytest.raises(PackError, match="Odd"):
            Packer().pack((Odd(),))


def test_two_threads_may_meet_a_class_at_once() -> None:
    """A class that several threads pack for the first time gets one code."""

    class Colour(Enum):
        """Seen by nobody before."""

        RED = "red"

    packed: list[object] = []
    threads = [Thread(target=lambda: packed.append(Packer().pack(Colour.RED))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(packed)) == 1
