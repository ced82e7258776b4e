"""A decode rank's machine is told what the operator decided."""

from dataclasses import fields
from pathlib import Path

from decode_service.handler_settings import DecodeHandlerSettings
from decode_service.scatter import scatter
from decode_service.surroundings import Surroundings, default_handler, default_scatter
from runtime.loop import EventLoop
from runtime.workers import WorkerPool
from tests.unit.embedded import LAYOUT, decode_config


def test_every_shared_setting_reaches_the_machine(tmp_path: Path) -> None:
    """Whatever configuration and machine call by one name has one value, even when it is not the default."""
    changes = {"lease_s": 33.0, "grace_s": 3.5, "park_s": 1.5, "max_rewrites": 9, "max_rooms": 17, "checksums": False}
    config = decode_config(tmp_path, **changes)
    loop = EventLoop()
    workers = WorkerPool(loop, 1, "worker")
    around = Surroundings(config, loop, workers, 5, "host", default_handler, default_scatter, lambda _: None)
    settings = around.settings(3, 77, LAYOUT, ())
    shared = {field.name for field in fields(DecodeHandlerSettings)} & {field.name for field in fields(config)}
    for name in shared - {"planes", "host_id"}:
        assert getattr(settings, name) == getattr(config, name)
    assert (settings.decode_rank, settings.epoch, settings.decode_incarnation, settings.host_id) == (3, 77, 5, "host")
    assert settings.features == ()
    assert default_scatter(3) is scatter
    workers.close()
    loop.close()
