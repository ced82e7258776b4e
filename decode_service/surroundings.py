"""What every rank of one decode daemon shares, and the parts of it that a laboratory may replace."""

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Protocol

from decode_service.allocator import StagingAllocator
from decode_service.config import DecodeServiceConfig
from decode_service.explaining import waiting_chunks
from decode_service.handler import DecodeStagingHandler
from decode_service.handler_settings import DecodeHandlerSettings, PlaneOffer
from decode_service.scatter import scatter
from decode_service.scatter_job import Scatter
from protocol.layout import RankLayout
from runtime.flight_recorder import FlightRecorder
from runtime.loop import EventLoop
from runtime.room_waiters import RoomOutcome
from runtime.security import ServerSecurity
from runtime.telemetry import Telemetry
from runtime.workers import WorkerPool


class MakeHandler(Protocol):
    """Builds one rank's machine."""

    def __call__(self, settings: DecodeHandlerSettings, allocator: StagingAllocator, random: Random) -> DecodeStagingHandler:
        """Build."""


MakeScatter = Callable[[int], Scatter]
"""Gives one rank its scatter."""


def default_handler(settings: DecodeHandlerSettings, allocator: StagingAllocator, random: Random) -> DecodeStagingHandler:
    """The machine that daemons run."""
    return DecodeStagingHandler(settings, allocator, random)


def default_scatter(rank: int) -> Scatter:  # noqa: ARG001 - every rank scatters alike
    """The scatter that daemons run."""
    return scatter


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The daemon as one of its ranks sees it."""

    config: DecodeServiceConfig
    loop: EventLoop
    workers: WorkerPool
    incarnation: int
    host_id: str
    make_handler: MakeHandler
    make_scatter: MakeScatter
    room_ended: Callable[[RoomOutcome], None]
    security: ServerSecurity | None = None
    flight: FlightRecorder | None = None
    telemetry: Telemetry = field(default_factory=Telemetry)

    def machine(self, rank: int, settings: DecodeHandlerSettings, ring_bytes: int) -> DecodeStagingHandler:
        """A rank's machine with an empty ring, recorded from its birth on."""
        # Chance only spreads retries; with the seed a replay has the same.
        seed = secrets.randbits(64)
        handler = self.make_handler(settings, StagingAllocator(ring_bytes), Random(seed))  # noqa: S311
        if self.flight is not None:
            waiting = partial(_waiting_since, handler)
            self.flight.watch(f"decode-{rank}", handler, settings, seed, waiting)
        return handler

    def settings(self, rank: int, epoch: int, layout: RankLayout, offers: tuple[PlaneOffer, ...]) -> DecodeHandlerSettings:
        """What this rank's machine is told at its birth."""
        config = self.config
        return DecodeHandlerSettings(
            decode_id=config.decode_id,
            decode_rank=rank,
            decode_incarnation=self.incarnation,
            epoch=epoch,
            host_id=self.host_id,
            layout=layout,
            chunk_tokens=config.chunk_tokens,
            planes=offers,
            features=("xxh3",) if config.checksums else (),
            heartbeat_s=config.heartbeat_s,
            lease_s=config.lease_s,
            grace_s=config.grace_s,
            abort_retry_s=config.abort_retry_s,
            retry_limit_s=config.retry_limit_s,
            park_s=config.park_s,
            quarantine_s=config.quarantine_s,
            room_deadline_s=config.room_deadline_s,
            room_deadline_cap=config.room_deadline_cap,
            max_chunks_in_flight=config.max_chunks_in_flight,
            grant_horizon=config.grant_horizon,
            group_share=config.group_share,
            max_rewrites=config.max_rewrites,
            max_retired_regions=config.max_retired_regions,
            max_sessions=config.max_sessions,
            max_rooms=config.max_rooms,
            max_tombstones=config.max_tombstones,
            max_parked_per_session=config.max_parked_per_session,
        )


def _waiting_since(handler: DecodeStagingHandler) -> Iterator[float]:
    return (since for _, since in waiting_chunks(handler.state))
