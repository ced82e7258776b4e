"""``PrefillStagingClient``: a prefill daemon, as a process of its own or inside an engine.

engine --- unix socket or client.engine ---+
decodes --- control DEALER, data PUSH -----+--> one loop thread --> a machine per rank
workers --- gathered, summed --------------+
"""

import secrets
import time
from contextlib import ExitStack

from prefill_service.commands import PrefillCommands
from prefill_service.config import PrefillServiceConfig
from prefill_service.engine import EmbeddedPrefillEngine
from prefill_service.handler import PrefillStagingHandler
from prefill_service.metrics import describe
from prefill_service.observing import PrefillObserving
from prefill_service.plane_access import open_access
from prefill_service.rank import PrefillRank
from prefill_service.surroundings import MakeHandler, Surroundings
from protocol.identifiers import make_incarnation
from runtime.connections import Connections
from runtime.endpoint import Context
from runtime.host import shared_memory_host_id
from runtime.security import ClientSecurity
from runtime.staging_service import LINGER_MS, StagingService
from runtime.telemetry import Telemetry


class PrefillStagingClient(StagingService):
    """Hosts the prefill ranks of one daemon. ``start``, then ``request_stop`` from anywhere, then ``join``."""

    def __init__(self, config: PrefillServiceConfig, *, make_handler: MakeHandler = PrefillStagingHandler) -> None:
        # Control and data of every peer, each with the pair of sockets that watches its connection.
        super().__init__("prefill", config.prefill_id, config, max_sockets=6 * config.max_peers * len(config.ranks) + 64)
        self.config = config
        self._make_handler = make_handler
        self._ranks: dict[int, PrefillRank] = {}
        self._connections: Connections | None = None
        limits_s = {"stall_warn_s": config.stall_warn_s, "unready_after_s": config.unready_after_s}
        observing = PrefillObserving(self._ranks, self._loop.clock, **limits_s)
        commands = PrefillCommands(config, self._ranks, self._waiters, self._loop.clock)
        self.offer(commands.table(observing.commands()), describe)

    @property
    def engine(self) -> EmbeddedPrefillEngine:
        """The daemon's commands for an engine in this process."""
        return EmbeddedPrefillEngine(self._calls.call)

    def reload(self) -> None:
        """Read the keys again. Any thread, any number of times."""
        if self._connections is not None:
            self._loop.call_soon_threadsafe(self._connections.reload)

    def begin_drain(self) -> None:
        """Take no new rooms."""
        for rank in self._ranks.values():
            rank.drain()

    def is_idle(self) -> bool:
        """Whether no room is live on any rank."""
        return all(rank.is_idle for rank in self._ranks.values())

    def begin_leaving(self) -> None:
        """Fail the rooms that are left, and leave every decode rank."""
        for rank in self._ranks.values():
            rank.stop()

    def has_left(self) -> bool:
        """Whether every decode rank was left and no gather runs."""
        return self._workers.outstanding == 0 and all(rank.is_stopped for rank in self._ranks.values())

    # ---- opening ----------------------------------------------------------------------------------------------------------

    def open_ranks(self, context: Context, telemetry: Telemetry, undo: ExitStack) -> None:
        """The planes' engines, and a machine for each rank; connections come with the rooms."""
        config = self.config
        incarnation = make_incarnation(time.time_ns(), secrets.randbits(16))
        host_id = config.host_id or shared_memory_host_id(config.shm_dir)
        shared = (config, context, self._loop, self._workers, incarnation, host_id)
        connections = self._open_connections()
        access = open_access(config, incarnation, undo)
        around = Surroundings(*shared, self._make_handler, self.room_ended, connections, access, self._flight, telemetry)
        for number in config.ranks:
            rank = PrefillRank(number, around)
            self._ranks[number] = rank
            undo.callback(rank.close, LINGER_MS)

    def _open_connections(self) -> Connections:
        config, security = self.config, None
        if config.client_key is not None and config.server_keys is not None:
            security = ClientSecurity(config.client_key, config.server_keys)
        connections = Connections(self._loop, security, insecure=config.insecure)
        self._loop.add_timed(connections)
        self._connections = connections
        return connections
