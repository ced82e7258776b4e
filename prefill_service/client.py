"""``PrefillStagingClient``: a prefill daemon, as a process of its own or inside an engine.

engine --- unix socket or client.engine ---+
decodes --- control DEALER, data PUSH -----+--> one loop thread --> a machine per rank
workers --- gathered, summed --------------+
"""

import secrets
import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Self

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
from runtime.commands import InProcessCalls
from runtime.compiled_copies import require_compiled_copies
from runtime.connections import Connections
from runtime.endpoint import open_context
from runtime.engine_endpoint import EngineEndpoint
from runtime.engine_protocol import EngineError
from runtime.flight_recorder import CRASH, SIGNAL, FlightRecorder
from runtime.host import shared_memory_host_id
from runtime.loop import EventLoop
from runtime.loop_thread import LoopThread
from runtime.observed import Observed
from runtime.open_files import require_open_files
from runtime.room_waiters import RoomKey, RoomOutcome, RoomWaiters
from runtime.security import ClientSecurity
from runtime.shutdown import Shutdown
from runtime.workers import WorkerPool

LINGER_MS = 500
"""How long last words may take to leave at an orderly end."""


class PrefillStagingClient:
    """Hosts the prefill ranks of one daemon. ``start``, then ``request_stop`` from anywhere, then ``join``."""

    def __init__(self, config: PrefillServiceConfig, *, make_handler: MakeHandler = PrefillStagingHandler) -> None:
        self.config = config
        self._make_handler = make_handler
        self._loop = EventLoop()
        self._ranks: dict[int, PrefillRank] = {}
        self._waiters = RoomWaiters()
        limits_s = {"stall_warn_s": config.stall_warn_s, "unready_after_s": config.unready_after_s}
        observing = PrefillObserving(self._ranks, self._loop.clock, **limits_s)
        commands = PrefillCommands(config, self._ranks, self._waiters, self._loop.clock).table(observing.commands())
        self._execute = commands.execute
        self._calls = InProcessCalls(self._loop, commands, config.max_engine_requests)
        self._workers = WorkerPool(self._loop, config.worker_threads, f"{config.prefill_id}-worker")
        self._shutdown = Shutdown(self._loop, self, config.drain_s)
        limits, folder = config.flight_limits, config.runtime_dir
        self._flight = FlightRecorder(config.prefill_id, folder, limits, len(config.ranks), self._loop.clock)
        self._thread = LoopThread(self._loop, f"{config.prefill_id}-loop", self._clean_up, partial(self._flight.dump, CRASH))
        self._resources = ExitStack()
        self._connections: Connections | None = None
        self._observed: Observed | None = None

    @property
    def engine(self) -> EmbeddedPrefillEngine:
        """The daemon's commands for an engine in this process."""
        return EmbeddedPrefillEngine(self._calls.call)

    @property
    def endpoints(self) -> Mapping[str, str]:
        """Where the daemon can be reached: the engine's socket, and its HTTP port."""
        http = {} if self._observed is None or self._observed.address is None else {"http": self._observed.address}
        return http | {"engine": str(self.config.engine_socket)}

    def start(self) -> None:
        """Take every lock and socket that the daemon needs, then begin. Raises ``StartError`` and leaves nothing."""
        with ExitStack() as undo:
            self._open(undo)
            self._resources = undo.pop_all()
        self._thread.start()
        if self._observed is not None:
            self._observed.start()

    def request_stop(self) -> None:
        """Begin the orderly end: drain, then leave. Any thread, any number of times."""
        self._loop.call_soon_threadsafe(self._shutdown.request)

    def reload(self) -> None:
        """Read the keys again. Any thread, any number of times."""
        if self._connections is not None:
            self._loop.call_soon_threadsafe(self._connections.reload)

    def dump_flight(self) -> None:
        """Write down the latest of what entered the machines. Any thread, even while the loop hangs."""
        self._flight.dump(SIGNAL)

    def join(self) -> int:
        """Wait for the end: 0 if it was orderly, 1 if the daemon broke."""
        return self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.request_stop()
        self.join()

    # ---- the phases of the end, called by ``Shutdown`` ------------------------------------------------------------------

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

    # ---- opening and closing --------------------------------------------------------------------------------------------

    def _open(self, undo: ExitStack) -> None:
        config = self.config
        require_open_files(len(config.ranks))
        require_compiled_copies(wanted=config.compiled_copies)
        undo.callback(self._loop.close)
        # Control and data of every peer, each with the pair of sockets that watches its connection.
        context = open_context(1 if len(config.ranks) < 4 else 2, 6 * config.max_peers * len(config.ranks) + 64)
        undo.callback(context.term)
        self._observed = observed = Observed("prefill", config.prefill_id, config.otlp_endpoint, undo)
        endpoint = EngineEndpoint(context, config.engine_socket, config.max_engine_requests, self._execute)
        undo.callback(endpoint.close, LINGER_MS)
        incarnation = make_incarnation(time.time_ns(), secrets.randbits(16))
        host_id = config.host_id or shared_memory_host_id(config.shm_dir)
        shared = (config, context, self._loop, self._workers, incarnation, host_id)
        connections = self._open_connections()
        access = open_access(config, incarnation, undo)
        around = Surroundings(
            *shared, self._make_handler, self._room_ended, connections, access, self._flight, observed.telemetry
        )
        for number in config.ranks:
            rank = PrefillRank(number, around)
            self._ranks[number] = rank
            undo.callback(rank.close, LINGER_MS)
        # Undone first: no gather may run any more when the rings are unmapped.
        undo.callback(self._workers.close)
        self._loop.add_reader(endpoint.socket, endpoint.read)
        self._loop.add_timed(self._waiters)
        self._loop.add_timed(self._shutdown)
        self._loop.add_timed(self._flight)
        observed.listen(config.http_host, config.http_port, self._calls.call, describe)

    def _open_connections(self) -> Connections:
        config, security = self.config, None
        if config.client_key is not None and config.server_keys is not None:
            security = ClientSecurity(config.client_key, config.server_keys)
        connections = Connections(self._loop, security, insecure=config.insecure)
        self._loop.add_timed(connections)
        self._connections = connections
        return connections

    def _room_ended(self, outcome: RoomOutcome) -> None:
        self._waiters.resolve(RoomKey(outcome.rank, outcome.room), outcome)

    def _clean_up(self) -> None:
        self._waiters.fail_all(EngineError("closed", "the daemon stopped before the room ended"))
        self._resources.close()
        self._calls.close()
        self._flight.close()
