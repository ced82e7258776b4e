"""A rank's staging memory and its planes come and go together."""

from pathlib import Path

import pytest

from decode_service.region import StagingRegion
from decode_service.regions.memory import AnonymousRing, SharedRing
from decode_service.regions.zmq import ZmqPlane
from runtime.endpoint import open_context
from runtime.errors import StartError
from tests.unit.embedded import decode_config


def test_offers_keep_the_order_of_the_settings(tmp_path: Path) -> None:
    """Each plane is offered with what the machine must know of it, the preferred one first."""
    config = decode_config(tmp_path, planes=("zmq", "shm"))
    context = open_context(1, 16)
    data = ZmqPlane(context, "tcp://127.0.0.1:0", config.piece_bytes)
    region = StagingRegion(config, data)
    zmq, shm = region.offers()
    assert (zmq.name, zmq.two_sided, zmq.same_host, zmq.piece_bytes) == ("zmq", True, False, config.piece_bytes)
    assert (shm.name, shm.two_sided, shm.same_host, shm.piece_bytes) == ("shm", False, True, 0)
    assert isinstance(region.ring, SharedRing)
    assert shm.descriptor == {"segment": region.ring.path.name}
    assert region.plane("zmq") is data
    region.close()
    data.close()
    context.term()
    assert list((tmp_path / "shm").iterdir()) == []


def test_memory_is_shared_only_where_a_plane_needs_it(tmp_path: Path) -> None:
    """With the zmq plane alone no file is made."""
    region = StagingRegion(decode_config(tmp_path, planes=("zmq",)), None)
    assert isinstance(region.ring, AnonymousRing)
    assert list((tmp_path / "shm").iterdir()) == []
    region.close()


def test_epochs_differ(tmp_path: Path) -> None:
    """Every region is an epoch of its own, so two can exist side by side."""
    config = decode_config(tmp_path)
    first, second = StagingRegion(config, None), StagingRegion(config, None)
    assert first.epoch != second.epoch
    first.close()
    second.close()


def test_no_memory_is_a_start_error(tmp_path: Path) -> None:
    """A directory that cannot hold the ring is named."""
    with pytest.raises(StartError, match="shm_dir"):
        StagingRegion(decode_config(tmp_path, shm_dir=tmp_path / "missing"), None)
