"""What one prefill rank owes one decode rank, and grants that do not fit it."""

from dataclasses import replace

import pytest

from prefill_service.shares import WriterShare
from protocol.errors import LayoutError
from protocol.messages import GrantSlice
from tests.unit.prefill_service.bench import rank_layout


def test_second_of_two_writers() -> None:
    """Of TP 2 to TP 1 each writer sends one head, the second behind the first."""
    share = WriterShare.between(rank_layout(1, 2, width=8), rank_layout(0, 1, width=8))
    assert share == WriterShare(before_bytes=8, token_bytes=8, total_bytes=16)


def test_rank_without_common_heads_owes_nothing() -> None:
    """Prefill rank 0 of 2 has nothing for decode rank 1 of 2."""
    share = WriterShare.between(rank_layout(0, 2), rank_layout(1, 2))
    assert share.token_bytes == 0


def test_layouts_that_do_not_match_are_an_error() -> None:
    """Other widths cannot be shared out."""
    with pytest.raises(LayoutError, match="width"):
        WriterShare.between(rank_layout(width=8), rank_layout(width=4))


@pytest.mark.parametrize("field", ["writer_offset", "writer_bytes", "end"])
@pytest.mark.parametrize("by", [-1, 1])
def test_every_number_of_a_grant_is_checked(field: str, by: int) -> None:
    """A grant that is off by one byte anywhere is named with what was expected."""
    share = WriterShare(before_bytes=8, token_bytes=8, total_bytes=16)
    right = GrantSlice(alloc_id=1, offset=20, round=0, end=20 + 160, writer_offset=80, writer_bytes=80)
    assert share.problem(right, 10, ring_size=1000) is None
    problem = share.problem(replace(right, **{field: getattr(right, field) + by}), 10, ring_size=1000)
    assert problem is not None
    assert problem.startswith(f"{field} is ")


def test_grant_past_the_ring_is_refused() -> None:
    """A grant that ends behind the ring's last byte would be written into foreign memory."""
    share = WriterShare(0, 8, 8)
    grant = GrantSlice(1, 30, 0, 110, 0, 80)
    assert share.problem(grant, 10, ring_size=110) is None
    assert share.problem(grant, 10, ring_size=109) == "end is 110, expected at most the ring's 109 bytes"


def test_the_only_writer_is_alone() -> None:
    """A writer is alone if no byte of a token is anybody else's."""
    assert WriterShare(before_bytes=0, token_bytes=8, total_bytes=8).is_alone
    assert not WriterShare(before_bytes=0, token_bytes=8, total_bytes=16).is_alone
