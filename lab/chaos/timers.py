"""The daemons' own timers, all of them shorter by one factor, so that a scenario takes seconds and their ratios stay."""

from decode_service.config import DecodeServiceConfig
from prefill_service.config import PrefillServiceConfig
from runtime.settings import Settings, declarations

FACTOR = 10
"""How many times shorter every duration is than its default."""

_ROOMS = frozenset({"room_deadline_s", "room_tombstone_s"})
"""Kept as they are: no scenario waits for them, and a slow machine must not meet them."""


def short_timers(settings: type[Settings]) -> list[str]:
    """Flags that divide every duration of a daemon by ``FACTOR``."""
    shortened = [row for row in declarations(settings) if row.unit == "s" and row.name not in _ROOMS]
    return [text for row in shortened for text in (row.flag, f"{default_s(settings, row.name) / FACTOR:g}")]


def default_s(settings: type[Settings], name: str) -> float:
    """The default of a duration in seconds."""
    row = next(row for row in declarations(settings) if row.name == name)
    return float(row.default_text(settings))


HEARTBEAT_S = default_s(DecodeServiceConfig, "heartbeat_s") / FACTOR
LEASE_S = default_s(DecodeServiceConfig, "lease_s") / FACTOR
FENCE_S = LEASE_S + default_s(DecodeServiceConfig, "grace_s") / FACTOR
"""Silence after which a decode rank fences a session."""
QUARANTINE_S = default_s(DecodeServiceConfig, "quarantine_s") / FACTOR

DECODE_TIMERS = tuple(short_timers(DecodeServiceConfig))
PREFILL_TIMERS = tuple(short_timers(PrefillServiceConfig))
