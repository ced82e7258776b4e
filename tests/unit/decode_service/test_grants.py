"""Grants: how slices are laid out, which grants the watermark lets pass, and what may be released."""

import pytest

from decode_service.allocator import Oversized, StagingAllocator
from decode_service.grants import Grant, GrantState, GrantTable, lay_out
from decode_service.rooms import Room
from protocol.layout import PageRun, WriterKey, expected_writers
from protocol.messages import ChunkReady
from tests.unit.decode_service.driver import rank

W0, W1 = WriterKey(0, 0), WriterKey(1, 0)
WORD = ChunkReady("a", "r", 0, 1, 1, 40, None)


def open_grant(table: GrantTable, tokens: int = 4) -> Grant:
    """A grant of ``tokens`` tokens for two writers, 20 bytes each."""
    writers = expected_writers(rank(2), rank(1))
    room = Room("r", "g", tokens, 4, PageRun((0,)), 10.0, 0.0)
    grant = table.open(room, 0, lay_out(writers, {W0: "a", W1: "b"}, tokens), 0.0)
    assert isinstance(grant, Grant)
    return grant


def close(table: GrantTable, grant: Grant) -> None:
    """End a grant whose writers are all quiet."""
    for slot in grant.slots.values():
        slot.proven = True
    table.end(grant)


def test_slices_lie_one_after_the_other() -> None:
    """Each writer's slice begins where the former ends; together they are the grant, as each writer is told it."""
    grant = open_grant(GrantTable(StagingAllocator(100)))
    assert [(w, slot.session, slot.offset, slot.num_bytes) for w, slot in grant.slots.items()] == [
        (W0, "a", 0, 40),
        (W1, "b", 40, 40),
    ]
    told = grant.slice_of(W1)
    assert (told.alloc_id, told.offset, told.end, told.round, told.writer_offset, told.writer_bytes) == (
        grant.alloc_id,
        0,
        80,
        0,
        40,
        40,
    )


def test_oversized_opens_nothing() -> None:
    """A grant that no ring of this size can hold leaves the table as it was."""
    table = GrantTable(StagingAllocator(79))
    writers = expected_writers(rank(2), rank(1))
    room = Room("r", "g", 4, 4, PageRun((0,)), 10.0, 0.0)
    assert table.open(room, 0, lay_out(writers, {W0: "a", W1: "b"}, 4), 0.0) == Oversized(80, 79)
    assert (len(table), list(table), list(table.newly_ready(0.0))) == (0, [], [])


def test_grants_become_ready_once_in_order() -> None:
    """Each grant is reported when the true watermark lets it pass, once; one that ended unready never is."""
    table = GrantTable(StagingAllocator(100))
    first, second, third = (open_grant(table) for _ in range(3))
    assert list(table.newly_ready(0.0)) == [first]
    assert list(table.newly_ready(0.0)) == []
    close(table, second)
    close(table, first)
    assert list(table.newly_ready(0.0)) == [third]
    assert (first.ready, second.ready, third.ready) == (True, False, True)
    assert table.oldest() is third
    assert table.get(third.alloc_id) is third
    assert table.get(first.alloc_id) is None


def test_writer_that_may_write_is_not_ended() -> None:
    """Ending a grant that somebody may still write is a bug of ours, and is stopped; so is ending one twice."""
    table = GrantTable(StagingAllocator(100))
    grant = open_grant(table)
    with pytest.raises(AssertionError):
        table.end(grant)
    close(table, grant)
    with pytest.raises(AssertionError):
        table.end(grant)
    assert table.oldest() is None


def test_releasable_needs_everything() -> None:
    """Closed, both writers quiet, no copy and no scatter of ours, no failed write: one of them missing is enough to stay."""
    grant = open_grant(GrantTable(StagingAllocator(100)))
    first, second = grant.slots.values()
    first.proven, second.ready = True, WORD
    seen = [grant.is_releasable]
    grant.state = GrantState.CLOSED
    assert [*seen, grant.is_releasable] == [False, True]
    for change, undo in ((("copies", 1), ("copies", 0)), (("proven", False), ("proven", True))):
        setattr(first, *change)
        assert not grant.is_releasable
        setattr(first, *undo)
    for name in ("scatter_running", "tainted"):
        setattr(grant, name, True)
        assert not grant.is_releasable
        setattr(grant, name, False)
    assert grant.is_releasable


def test_pinned_ring_does_not_collect_what_ended() -> None:
    """Grants that come and go behind one that stays leave nothing in the table."""
    table = GrantTable(StagingAllocator(100))
    open_grant(table)
    for _ in range(1000):
        close(table, open_grant(table))
        list(table.newly_ready(0.0))
    assert (len(table), len(table._unready)) == (1, 0)
