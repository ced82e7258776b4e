"""Chaos runs with the daemons' own timers, all shortened by one factor."""

import pytest

from decode_service.config import DecodeServiceConfig
from lab.chaos.timers import DECODE_TIMERS, FACTOR, FENCE_S, LEASE_S, PREFILL_TIMERS, QUARANTINE_S
from prefill_service.config import PrefillServiceConfig
from runtime.settings import Settings, load


@pytest.mark.parametrize(
    ("settings", "flags"),
    [(DecodeServiceConfig, DECODE_TIMERS), (PrefillServiceConfig, PREFILL_TIMERS)],
    ids=["decode", "prefill"],
)
def test_every_ratio_is_kept(settings: type[Settings], flags: tuple[str, ...]) -> None:
    """The shortened settings are valid, and each is its default divided by the factor; those of rooms are left alone."""
    given = dict(zip(flags[::2], flags[1::2], strict=True))
    values = {flag.removeprefix("--").replace("-", "_"): value for flag, value in given.items()}
    short = load(settings, file=None, environ={}, flags=values).config
    default = settings()
    assert {"retry_limit_s", "abort_retry_s"} <= values.keys()
    assert all(getattr(short, name) == pytest.approx(getattr(default, name) / FACTOR) for name in values)
    assert not {"room_deadline_s", "room_tombstone_s", "room_deadline_cap"} & values.keys()


def test_what_scenarios_wait_for_is_what_daemons_are_told() -> None:
    """The lease, the fence behind it and the quarantine are the documented ones, shortened."""
    assert pytest.approx((1.0, 1.2, 3.0)) == (LEASE_S, FENCE_S, QUARANTINE_S)
