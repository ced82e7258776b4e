"""Ring memory knows who may write it, who reads it, and when it is gone."""

import pytest

from lab.simulator.memory import RingMemory, ViolationError, checksum_of, source_bytes
from protocol.layout import WriterKey


def test_a_write_is_asked_for_and_bytes_being_read_are_out_of_bounds() -> None:
    """Whoever owns the ring may object, and a scatter always does."""
    memory = RingMemory("m", bytearray(8), lambda alloc_id, *_: "not yours" if alloc_id == 2 else None)
    memory.write(1, 2, b"abc")
    assert memory.data == b"\0\0abc\0\0\0"
    with pytest.raises(ViolationError, match="not yours"):
        memory.write(2, 0, b"x")
    memory.being_read[1] = (4, 6)
    memory.write(1, 2, b"ab")
    with pytest.raises(ViolationError, match="being scattered"):
        memory.write(1, 5, b"x")


def test_another_host_must_not_write_what_was_given_back() -> None:
    """A mapping protects; an address does not."""
    memory = RingMemory("m", bytearray(4), released=True)
    memory.write(1, 0, b"x")
    with pytest.raises(ViolationError, match="given back"):
        memory.write_by_address(1, 0, b"x")


def test_damage_changes_the_checksum() -> None:
    """One flipped byte is found."""
    block = source_bytes("p/1", "r", 0, WriterKey(0, 0), 0, 16)
    memory = RingMemory("m", bytearray(block))
    memory.flip(3)
    assert checksum_of(memory.data) != checksum_of(block)
    assert source_bytes("p/2", "r", 0, WriterKey(0, 0), 0, 16) != block
