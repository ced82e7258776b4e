"""What every rank of one prefill daemon shares, and the parts of it that a laboratory may replace."""

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Protocol

from prefill_service.config import PrefillServiceConfig
from prefill_service.explaining import waiting_chunks
from prefill_service.handler import PrefillStagingHandler
from prefill_service.handler_settings import PrefillHandlerSettings
from prefill_service.plane_access import PlaneAccess
from protocol.layout import RankLayout
from runtime.connections import Connections
from runtime.endpoint import Context
from runtime.flight_recorder import FlightRecorder
from runtime.loop import EventLoop
from runtime.room_waiters import RoomOutcome
from runtime.telemetry import Telemetry
from runtime.workers import WorkerPool


class MakeHandler(Protocol):
    """Builds one rank's machine."""

    def __call__(self, settings: PrefillHandlerSettings, random: Random) -> PrefillStagingHandler:
        """Build."""


@dataclass(frozen=True, slots=True)
class Identity:
    """By what names decode ranks know a rank."""

    prefill_id: str
    group: str


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The daemon as one of its ranks sees it."""

    config: PrefillServiceConfig
    context: Context
    loop: EventLoop
    workers: WorkerPool
    incarnation: int
    host_id: str
    make_handler: MakeHandler
    room_ended: Callable[[RoomOutcome], None]
    connections: Connections
    access: PlaneAccess
    flight: FlightRecorder | None = None
    telemetry: Telemetry = field(default_factory=Telemetry)

    def machine(self, rank: int, settings: PrefillHandlerSettings) -> PrefillStagingHandler:
        """A rank's machine, recorded from its birth on."""
        # Chance only spreads retries; with the seed a replay has the same.
        seed = secrets.randbits(64)
        handler = self.make_handler(settings, Random(seed))  # noqa: S311
        if self.flight is not None:
            waiting = partial(_waiting_since, handler)
            self.flight.watch(f"prefill-{rank}", handler, settings, seed, waiting)
        return handler

    def settings(self, identity: Identity, layout: RankLayout, page_size: int) -> PrefillHandlerSettings:
        """What a rank's machine is told at its birth."""
        config = self.config
        return PrefillHandlerSettings(
            prefill_id=identity.prefill_id,
            group=identity.group,
            incarnation=self.incarnation,
            layout=layout,
            page_size=page_size,
            chunk_tokens=config.chunk_tokens,
            planes=self.access.selection.planes,
            host_id=self.host_id,
            features=("xxh3",) if config.checksums else (),
            subscribe_retry_s=config.subscribe_retry_s,
            request_retry_s=config.request_retry_s,
            ready_retry_s=config.ready_retry_s,
            abort_retry_s=config.abort_retry_s,
            retry_limit_s=config.retry_limit_s,
            probe_s=config.probe_s,
            write_retry_s=config.write_retry_s,
            stop_wait_s=config.stop_wait_s,
            room_deadline_s=config.room_deadline_s,
            room_deadline_cap=config.room_deadline_cap,
            room_tombstone_s=config.room_tombstone_s,
            max_peers=config.max_peers,
            max_rooms=config.max_rooms,
            max_chunks_per_room=config.max_chunks_per_room,
            max_tombstones=config.max_tombstones,
            max_writes_in_flight=config.max_writes_in_flight,
            max_write_failures=config.max_write_failures,
        )


def _waiting_since(handler: PrefillStagingHandler) -> Iterator[float]:
    return (since for _, since in waiting_chunks(handler.state))
