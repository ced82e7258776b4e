"""Settings refuse what could not work, with every problem at once."""

import pytest

from tests.unit.prefill_service.bench import make_settings


def test_defaults_are_those_of_the_protocol() -> None:
    """Timers that nobody sets have the documented values."""
    settings = make_settings()
    retries = (settings.subscribe_retry_s, settings.request_retry_s, settings.ready_retry_s, settings.abort_retry_s)
    assert retries == (0.2, 0.2, 0.2, 0.2)
    assert (settings.retry_limit_s, settings.probe_s) == (2.0, 0.05)
    assert (settings.room_deadline_s, settings.room_deadline_cap) == (300.0, 4.0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prefill_id": ""}, "prefill_id: expected"),
        ({"group": "g" * 129}, "group: expected"),
        ({"incarnation": -1}, "incarnation is -1"),
        ({"chunk_tokens": 0}, "chunk_tokens is 0"),
        ({"page_size": 0}, "page_size is 0"),
        ({"planes": ()}, "planes are"),
        ({"planes": ("shm", "shm")}, "planes are"),
        ({"probe_s": 0.0}, "probe_s is 0.0"),
        ({"room_deadline_cap": -1.0}, "room_deadline_cap is -1.0"),
        ({"max_rooms": 0}, "max_rooms is 0"),
    ],
)
def test_impossible_value_is_named(change: dict[str, object], words: str) -> None:
    """Each problem says which setting, what it is and what was expected."""
    with pytest.raises(ValueError, match=words):
        make_settings(**change)


def test_all_problems_at_once() -> None:
    """Two mistakes need one look."""
    with pytest.raises(ValueError, match=r"chunk_tokens is 0.*max_peers is 0"):
        make_settings(chunk_tokens=0, max_peers=0)
