"""A prefill rank's machine is told what the operator decided."""

from dataclasses import fields
from pathlib import Path

from prefill_service.handler import PrefillStagingHandler
from prefill_service.handler_settings import PrefillHandlerSettings
from prefill_service.plane_access import PlaneAccess
from prefill_service.surroundings import Identity, Surroundings
from runtime.connections import Connections
from runtime.endpoint import open_context
from runtime.loop import EventLoop
from runtime.planes import select_planes
from runtime.workers import WorkerPool
from tests.unit.embedded import LAYOUT, prefill_config


def test_every_shared_setting_reaches_the_machine(tmp_path: Path) -> None:
    """Whatever configuration and machine call by one name has one value; identity and page size come from the engine."""
    changes = {"probe_s": 0.25, "room_deadline_s": 12.0, "max_rooms": 17, "max_writes_in_flight": 2, "checksums": False}
    config = prefill_config(tmp_path, **changes)
    loop, context = EventLoop(), open_context(1, 16)
    workers = WorkerPool(loop, 1, "worker")
    connections = Connections(loop, None, insecure=False)
    access = PlaneAccess(select_planes(("zmq", "shm")))
    shared = (config, context, loop, workers, 5, "host")
    around = Surroundings(*shared, PrefillStagingHandler, lambda _: None, connections, access)
    settings = around.settings(Identity("p-3", "g"), LAYOUT, 16)
    named = {field.name for field in fields(PrefillHandlerSettings)} & {field.name for field in fields(config)}
    for name in named - {"prefill_id", "group", "host_id", "planes"}:
        assert getattr(settings, name) == getattr(config, name)
    assert (settings.prefill_id, settings.group, settings.page_size, settings.incarnation) == ("p-3", "g", 16, 5)
    assert (settings.features, settings.planes) == ((), ("zmq", "shm"))
    workers.close()
    loop.close()
    context.term()
