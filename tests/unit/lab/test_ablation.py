"""The scenario holds by arithmetic before any daemon is started."""

from itertools import pairwise

import pytest

from decode_service.allocator import Allocation, StagingAllocator
from lab.ablation import (
    AFTER_DRAIN,
    ARMS,
    BEFORE_DRAIN,
    CHUNK_TOKENS,
    CONCURRENCY,
    PROFILE_REQUESTS,
    RING_TOKENS,
    profile_requests,
    scenario_shape,
    warmup_requests,
)
from lab.defects import ParkedAllocator
from protocol.watermark import START, is_watermark_ready


def after_the_drain(ring: StagingAllocator) -> tuple[Allocation, ...]:
    """Move the requests before the drain through the ring, one at a time, and grant those after it."""
    for tokens in BEFORE_DRAIN:
        granted = ring.assign(tokens)
        assert isinstance(granted, Allocation)
        assert is_watermark_ready(ring.get_watermark(), granted.round, granted.offset + tokens)
        ring.free(granted.alloc_id)
    late = [ring.assign(tokens) for tokens in AFTER_DRAIN]
    return tuple(granted for granted in late if isinstance(granted, Allocation))


def test_there_are_four_arms_and_eleven_requests() -> None:
    """The arms are the four combinations; eleven requests, then 846; three places in the loop."""
    assert [(arm.name, arm.restart, arm.snapshot) for arm in ARMS] == [
        ("neither", False, False),
        ("restart_only", True, False),
        ("snapshot_only", False, True),
        ("both", True, True),
    ]
    assert (len(warmup_requests()), PROFILE_REQUESTS, CONCURRENCY, len(AFTER_DRAIN)) == (11, 846, 3, 3)


def test_each_later_session_gets_one_request_larger_than_half_of_the_ring() -> None:
    """The first four share the sessions of rank 0; the next three go to ranks 1, 2 and 3; everything is a single chunk."""
    requests = warmup_requests()
    assert [request.group for request in requests[:7]] == [0, 0, 0, 0, 1, 2, 3]
    assert sum(BEFORE_DRAIN) < RING_TOKENS
    assert all(2 * tokens > RING_TOKENS for tokens in AFTER_DRAIN)
    assert all(tokens <= CHUNK_TOKENS for tokens in (request.num_tokens for request in requests))
    shape = scenario_shape()
    assert shape.ring_bytes == shape.chunk_bytes(RING_TOKENS)


def test_a_parked_head_refuses_every_later_chunk_for_ever() -> None:
    """The ring's own watermark lets none of the three pass, so a snapshot of it cannot help either."""
    ring = ParkedAllocator(RING_TOKENS)
    late = after_the_drain(ring)
    assert ring.get_watermark() == (0, sum(BEFORE_DRAIN))
    assert not any(
        is_watermark_ready(ring.get_watermark(), granted.round, granted.offset + tokens)
        for granted, tokens in zip(late, AFTER_DRAIN, strict=True)
    )


def test_a_restarted_ring_lets_one_pass_and_an_untold_session_none() -> None:
    """The true watermark opens the first chunk; (0, 0) opens none, since the drain has raised the round."""
    ring = StagingAllocator(RING_TOKENS)
    late = after_the_drain(ring)
    ends = [granted.offset + tokens for granted, tokens in zip(late, AFTER_DRAIN, strict=True)]
    assert [is_watermark_ready(ring.get_watermark(), granted.round, end) for granted, end in zip(late, ends, strict=True)] == [
        True,
        False,
        False,
    ]
    assert not any(is_watermark_ready(START, granted.round, end) for granted, end in zip(late, ends, strict=True))


def test_the_profile_is_mixed_and_repeatable() -> None:
    """Rooms have names of their own, sizes reach several chunks, and every group has its share."""
    shape = scenario_shape()
    requests = profile_requests(shape, seed=3)
    assert requests == profile_requests(shape, seed=3)
    assert len({request.room for request in (*requests, *warmup_requests())}) == PROFILE_REQUESTS + 11
    assert max(request.num_tokens for request in requests) > 2 * CHUNK_TOKENS
    assert {request.group for request in requests} == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("name", "repair", "decode", "prefill"),
    [
        ("neither", False, ["restart", "snapshot", "repair"], ["repair"]),
        ("restart_only", True, ["snapshot"], []),
        ("both", True, [], []),
    ],
)
def test_an_arm_takes_away_what_it_says(name: str, *, repair: bool, decode: list[str], prefill: list[str]) -> None:
    """The command lines of an arm's daemons name each missing behaviour."""
    programs = next(arm for arm in ARMS if arm.name == name).programs(repair=repair)
    for command, missing in ((programs.decode, decode), (programs.prefill, prefill)):
        assert [value for flag, value in pairwise(command) if flag == "--without"] == missing
        assert command[-1] == "serve"
