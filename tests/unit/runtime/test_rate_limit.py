"""Log lines per key and interval."""

from runtime.rate_limit import MAX_KEYS, RateLimit


def test_one_call_per_key_and_interval() -> None:
    """The first is admitted, the rest of the interval is counted, and the next one says how many were left out."""
    limit = RateLimit(1.0)
    assert limit.admit("a", 10.0) == 0
    assert limit.admit("a", 10.2) is None
    assert limit.admit("b", 10.2) == 0
    assert limit.admit("a", 10.9) is None
    assert limit.admit("a", 11.0) == 2


def test_memory_does_not_follow_the_number_of_keys() -> None:
    """However many peers there are, only the last ones are remembered."""
    limit = RateLimit()
    for key in range(3 * MAX_KEYS):
        limit.admit(key, 0.0)
    assert len(limit._last) == MAX_KEYS
