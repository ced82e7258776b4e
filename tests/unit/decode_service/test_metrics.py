"""Every counter of the machine is exported once, under a bounded name, and peers have bounded series."""

import re
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from decode_service.metrics import COUNTERS, describe
from decode_service.snapshot import take_snapshot
from runtime.metrics import MAX_LABELLED_PEERS, LoopCollector
from tests.unit.decode_service.driver import Driver

ROOT = Path(__file__).resolve().parents[3]


def measured(driver: Driver) -> dict[str, Any]:
    """As the daemon's loop would measure it."""
    state = driver.handler.as_of(driver.now)
    shot = take_snapshot(state, MAX_LABELLED_PEERS) | {"rank": 0, "sends": {"sent": 3}, "grant_states": {}, "fenced_count": 0}
    return {"ranks": [shot], "ready": True}


def scraped(driver: Driver) -> str:
    """What a scrape would get."""
    registry = CollectorRegistry()
    registry.register(LoopCollector(lambda: measured(driver), describe))
    return generate_latest(registry).decode()


def test_counters_have_names_of_their_own_or_are_events() -> None:
    """A named one, one of a kind with its label, and one that is just an event."""
    driver = Driver(1)
    driver.handler.state.counters.update({"grants": 4, "malformed_type": 2, "room_failed_deadline": 1, "abort_acks_ignored": 7})
    text = scraped(driver)
    assert 'pd_staging_grants_total{rank="0"} 4.0' in text
    assert 'pd_staging_malformed_messages_total{code="type",rank="0"} 2.0' in text
    assert 'pd_staging_rooms_failed_total{code="deadline",rank="0"} 1.0' in text
    assert 'pd_staging_events_total{event="abort_acks_ignored",rank="0"} 7.0' in text
    assert 'pd_staging_sends_total{outcome="sent",rank="0"} 3.0' in text


def test_named_counters_are_counted_by_the_machine() -> None:
    """No metric stands for a counter that nobody counts."""
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "decode_service").glob("*.py"))
    assert [name for name in COUNTERS if not re.search(rf'counters\["{name}"\]', source)] == []


def test_series_by_prefill_are_bounded() -> None:
    """Beyond the bound they are counted and not listed; no room and no session is ever a label."""
    driver = Driver(1, ring=1000)
    for number in range(MAX_LABELLED_PEERS + 3):
        driver.join(0, group=f"g{number}")
    driver.register("secret-room", group="g0")
    text = scraped(driver)
    assert text.count("pd_staging_session_silence_seconds{") == MAX_LABELLED_PEERS
    assert 'pd_staging_sessions_without_series{rank="0"} 3.0' in text
    assert "secret-room" not in text
    assert "00000000000000e0-" not in text


def test_units_and_totals() -> None:
    """Seconds and bytes are named at the end, ``_total`` stands on counters only, and every name has our prefix."""
    driver = Driver(1, ring=1000)
    session = driver.join()
    driver.register("r")
    driver.grant([session], "r")
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", scraped(driver), re.MULTILINE):
        assert name.startswith("pd_staging_")
        assert name.endswith("_total") == (kind == "counter")
