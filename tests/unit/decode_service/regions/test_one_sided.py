"""A ring behind an engine: registered once, described, and never called quiet."""

import pytest

from decode_service.regions.base import Quietness
from decode_service.regions.memory import AnonymousRing
from decode_service.regions.one_sided import OneSidedPlane
from runtime.errors import StartError
from runtime.one_sided import OneSidedError, Target, address_of
from tests.unit.one_sided import ScriptedEngine


def test_the_ring_is_registered_once_and_described() -> None:
    """The engine learns of the whole ring, and its description is what prefills are sent."""
    ring, engine = AnonymousRing(4096), ScriptedEngine()

    def make(address: int, num_bytes: int) -> Target:
        engine.register(address, num_bytes)
        return engine

    plane = OneSidedPlane("nixl", ring.buffer, make)
    assert engine.registered == [(address_of(ring.buffer), 4096)]
    assert plane.descriptor() == {"address": address_of(ring.buffer), "num_bytes": 4096}
    assert plane.quietness("any") is Quietness.NOT_PROVEN
    plane.forget("any")
    assert plane.quietness("any") is Quietness.NOT_PROVEN
    plane.close()
    assert engine.closed == 1
    ring.close()


def test_an_engine_that_refuses_is_a_start_error() -> None:
    """The operator hears which plane, why, and what to do."""
    ring = AnonymousRing(4096)

    def make(address: int, num_bytes: int) -> Target:
        raise OneSidedError(f"no device for {num_bytes} bytes at {address:#x}")

    with pytest.raises(StartError, match=r"offer the mooncake plane: no device for 4096 bytes .* leave this plane out"):
        OneSidedPlane("mooncake", ring.buffer, make)
    ring.close()
