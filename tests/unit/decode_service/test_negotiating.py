"""The plane of a session is the best that both sides have, and every other one has its reason."""

from dataclasses import replace

import pytest

from decode_service.handler_settings import PlaneOffer
from decode_service.negotiating import choose_plane, planes_not_taken
from tests.unit.decode_service.driver import Driver, make_settings, rank

OFFERS = tuple(PlaneOffer(name, {}, name == "zmq", name == "shm") for name in ("shm", "nixl", "mooncake", "zmq"))


@pytest.mark.parametrize(
    ("planes", "host", "taken"),
    [
        (("zmq", "mooncake", "nixl", "shm"), "host", "shm"),
        (("zmq", "mooncake", "nixl", "shm"), "elsewhere", "nixl"),
        (("zmq", "mooncake"), "host", "mooncake"),
        (("zmq",), "host", "zmq"),
        (("shm",), "elsewhere", None),
        (("rdma",), "host", None),
    ],
)
def test_the_best_common_plane(planes: tuple[str, ...], host: str, taken: str | None) -> None:
    """D's order counts, and shared memory only where there is some."""
    settings = replace(make_settings(rank(1)), planes=OFFERS, host_id="host")
    request = Driver(1).subscribe_message(planes=planes, host_id=host)
    offer = choose_plane(settings, request)
    assert (offer.name if offer is not None else None) == taken


def test_every_other_plane_has_its_reason() -> None:
    """Not offered here, not offered there, out of reach, or merely not the best."""
    settings = replace(make_settings(rank(1)), planes=OFFERS, host_id="host")
    request = Driver(1).subscribe_message(planes=("shm", "nixl", "zmq", "rdma"), host_id="elsewhere")
    assert planes_not_taken(settings, request, "nixl") == {
        "shm": "no shared memory: host_id is elsewhere there and host here",
        "mooncake": "the prefill does not offer it",
        "zmq": "nixl is preferred",
        "rdma": "this decode rank does not offer it",
    }
