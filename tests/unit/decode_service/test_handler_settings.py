"""Settings of one decode machine."""

import pytest

from tests.unit.decode_service.driver import SHM, ZMQ, make_settings, rank


def test_offer_is_found_by_name() -> None:
    """Each plane's offer is found by its name, and an unknown name is an error."""
    settings = make_settings(rank(1))
    assert (settings.offer("shm"), settings.offer("zmq")) == (SHM, ZMQ)
    with pytest.raises(KeyError):
        settings.offer("mooncake")
