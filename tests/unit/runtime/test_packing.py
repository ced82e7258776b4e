"""Packed values come back equal, whatever they were made from."""

from enum import Enum
from threading import Thread

import pytest

from decode_service.outputs import ScatterChunk, Send
from protocol.errors import RemoteProtocolError
from protocol.layout import PageRun
from protocol.messages import GrantSlice, GrantStatus, StagingReq, StagingRsp, Subscribe
from protocol.watermark import Watermark
from runtime.packing import PackError, pack, pack_block, unpack, unpack_block
from tests.unit.lab.machines import LAYOUT

GRANTED = StagingRsp("s-1", "room", 3, GrantStatus.GRANTED, Watermark(1, 2), GrantSlice(9, 0, 1, 64, 0, 64))
VALUES = (
    *(None, True, 7, 1.5, "text", b"\x00\xff", (), (1, 2), ("a", (1.0, None))),
    *(GRANTED, GrantStatus.BUSY, Watermark(4, 5), {"a": 1, "b": (GrantStatus.DONE,)}),
    (Send(b"route", GRANTED), ScatterChunk(1, "r", 0, 0, 8, PageRun(tuple(range(100)), 3), ())),
)


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_what_was_packed_comes_back(value: object) -> None:
    """Atoms, tuples, mappings, members of enums, messages and outputs are equal to what went in, class and all."""
    back = unpack(pack(value))
    assert back == value
    assert type(back) is type(value)


def test_a_block_comes_back_in_its_order() -> None:
    """A block holds the same values, in less room than each of them by itself, and may be empty."""
    packed = [pack(value) for value in VALUES * 3]
    block = pack_block(packed)
    assert list(unpack_block(block)) == [*VALUES * 3]
    assert len(block) < sum(map(len, packed)) / 2
    assert list(unpack_block(pack_block([]))) == []


def test_members_that_only_look_plain_are_packed() -> None:
    """A pair of numbers, and a layout, within a message come back as what they were."""
    request = Subscribe(1, (1, 2), ("xxh3",), "p", "g", 5, None, 64, LAYOUT, ("shm",), "host")
    back = unpack(pack(request))
    assert back == request
    assert type(back.versions) is tuple
    assert back.layout == LAYOUT


def test_an_exception_comes_back() -> None:
    """What the codec raised, and the machine is told, keeps its fields."""
    back = unpack(pack(RemoteProtocolError("too_large", "frames", "less", "s-1")))
    assert (back.code, back.field, back.expected, back.session) == ("too_large", "frames", "less", "s-1")


def test_a_list_is_copied() -> None:
    """What a caller does to its list afterwards changes nothing."""
    pages = [1, 2]
    packed = pack((pages, "room"))
    pages.append(3)
    assert unpack(packed) == ((1, 2), "room")


def test_it_takes_little_room() -> None:
    """A message is packed into little more than its texts and numbers."""
    assert len(pack(StagingReq("s" * 24, "room-1", 0, 0, 64))) < 24 + 6 + 20


def test_what_is_too_large_or_odd_is_an_error() -> None:
    """A number that no machine uses is one kind of error; text of any kind is none."""
    with pytest.raises(PackError):
        pack((1 << 70,))
    assert unpack(pack("\udc80")) == "\udc80"


def test_what_has_no_fields_is_refused() -> None:
    """An object whose members nobody can tell is an error, and leaves nothing behind."""

    class Odd:
        """Neither a dataclass nor a tuple."""

    for _ in range(2):
        with pytest.raises(PackError, match="Odd"):
            pack((Odd(),))


def test_two_threads_may_meet_a_class_at_once() -> None:
    """A class that several threads pack for the first time gets one code."""

    class Colour(Enum):
        """Seen by nobody before."""

        RED = "red"

    packed: list[bytes] = []
    threads = [Thread(target=lambda: packed.append(pack(Colour.RED))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(packed)) == 1
