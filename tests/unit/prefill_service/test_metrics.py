"""Every counter of the machine is exported once, under a bounded name, and peers have bounded series."""

import re
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from prefill_service.inspection import snapshot
from prefill_service.metrics import COUNTERS, describe
from runtime.metrics import MAX_LABELLED_PEERS, LoopCollector
from tests.unit.prefill_service.bench import Bench

ROOT = Path(__file__).resolve().parents[3]


def scraped(bench: Bench) -> str:
    """What a scrape would get."""
    shot: dict[str, Any] = {
        **snapshot(bench.handler.state, 200, 0),
        "rank": 0,
        "sends": {"full": 2},
        "frames_refused": {"type": 1},
        "planes_open": 1,
        "chunk_states": {},
        "gated": 0,
        "peers_current": 1,
    }
    registry = CollectorRegistry()
    registry.register(LoopCollector(lambda: {"ranks": [shot], "ready": False}, describe))
    return generate_latest(registry).decode()


def test_counters_have_names_of_their_own_or_are_events() -> None:
    """A named one, one that is just an event, and what the sockets counted."""
    bench = Bench()
    bench.connect()
    bench.handler.state.counters.update({"probes": 4, "writes_outlived": 7})
    text = scraped(bench)
    assert "pd_staging_ready 0.0" in text
    assert 'pd_staging_probes_total{rank="0"} 4.0' in text
    assert 'pd_staging_events_total{event="writes_outlived",rank="0"} 7.0' in text
    assert 'pd_staging_sends_total{outcome="full",rank="0"} 2.0' in text
    assert 'pd_staging_malformed_messages_total{code="type",rank="0"} 1.0' in text


def test_named_counters_are_counted_by_the_machine() -> None:
    """No metric stands for a counter that nobody counts."""
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "prefill_service").glob("*.py"))
    assert [name for name in COUNTERS if not re.search(rf'counters\["{name}"\]', source)] == []


def test_series_by_peer_are_bounded() -> None:
    """Beyond the bound they are counted and not listed; a room is never a label."""
    bench = Bench()
    for number in range(MAX_LABELLED_PEERS + 2):
        bench.handler.add_peer(f"d{number}", bench.now)
    bench.whole_room("secret-room")
    text = scraped(bench)
    assert text.count("pd_staging_peer_subscribed{") == MAX_LABELLED_PEERS
    assert 'pd_staging_peers_without_series{rank="0"} 2.0' in text
    assert "secret-room" not in text
