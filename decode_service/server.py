"""``DecodeStagingServer``: a decode daemon, as a process of its own or inside an engine.

engine --- unix socket or server.engine ---+
prefills --- control ROUTER, data PULL ----+--> one loop thread --> a machine per rank
workers --- copied, verified, scattered ---+
"""

import secrets
import time
from collections.abc import Mapping
from contextlib import ExitStack

from decode_service.commands import DecodeCommands
from decode_service.config import DecodeServiceConfig
from decode_service.engine import EmbeddedDecodeEngine
from decode_service.metrics import describe
from decode_service.observing import DecodeObserving
from decode_service.rank import DecodeRank
from decode_service.regions.memory import sweep_segments
from decode_service.regions.zmq import ZmqPlane
from decode_service.surroundings import MakeHandler, MakeScatter, Surroundings, default_handler, default_scatter
from protocol.identifiers import make_incarnation
from runtime import nixl_engine
from runtime.endpoint import Context, RouterEndpoint, leave_open
from runtime.host import shared_memory_host_id
from runtime.insecurity import InsecurityWarning
from runtime.logs import logger
from runtime.planes import select_planes
from runtime.security import ServerSecurity
from runtime.staging_service import LINGER_MS, StagingService
from runtime.telemetry import Telemetry


class DecodeStagingServer(StagingService):
    """Hosts the decode ranks of one daemon. ``start``, then ``request_stop`` from anywhere, then ``join``."""

    def __init__(
        self,
        config: DecodeServiceConfig,
        *,
        make_handler: MakeHandler = default_handler,
        make_scatter: MakeScatter = default_scatter,
    ) -> None:
        super().__init__("decode", config.decode_id, config, max_sockets=8 * len(config.ranks) + 64)
        self.config = config
        self._make_handler = make_handler
        self._make_scatter = make_scatter
        self._log = logger(decode_id=config.decode_id)
        self._ranks: dict[int, DecodeRank] = {}
        self._security: ServerSecurity | None = None
        limits_s = {"stall_warn_s": config.stall_warn_s, "unready_after_s": config.unready_after_s}
        observing = DecodeObserving(self._ranks, self._loop.clock, **limits_s)
        self.offer(DecodeCommands(self._ranks, self._waiters, self._loop.clock).table(observing.commands()), describe)

    @property
    def engine(self) -> EmbeddedDecodeEngine:
        """The daemon's commands for an engine in this process."""
        return EmbeddedDecodeEngine(self._calls.call)

    @property
    def endpoints(self) -> Mapping[str, str]:
        """Where the daemon can be reached: each rank's control socket, its HTTP port, and the engine's socket."""
        control = {f"control_{number}": rank.control.address for number, rank in self._ranks.items()}
        return {**control, **super().endpoints}

    def reload(self) -> None:
        """Read the key and the allow-list again. Any thread, any number of times."""
        if self._security is not None:
            self._loop.call_soon_threadsafe(self._security.reload)

    def begin_drain(self) -> None:
        """Grant nothing new and say so to every session."""
        for rank in self._ranks.values():
            rank.drain()

    def is_idle(self) -> bool:
        """Whether no grant is open on any rank."""
        return all(rank.is_idle for rank in self._ranks.values())

    def begin_leaving(self) -> None:
        """Fail the rooms that are left; their prefills and engines hear of it."""
        for rank in self._ranks.values():
            rank.abort_all("the decode daemon is stopping")

    def has_left(self) -> bool:
        """Whether no copy of ours runs."""
        return self._workers.outstanding == 0

    # ---- opening ----------------------------------------------------------------------------------------------------------

    def open_ranks(self, context: Context, telemetry: Telemetry, undo: ExitStack) -> None:
        """Guard the context, sweep what a killed life left, then a ring and its sockets for each rank."""
        config = self.config
        security = self._open_security(context, undo)
        for name in sweep_segments(config.shm_dir, config.decode_id):
            self._log.warning("stale_segment_removed", segment=name, shm_dir=str(config.shm_dir))
        around = self._surroundings(security, telemetry)
        self._prepare_planes()
        for number in config.ranks:
            rank = self._open_rank(number, context, around)
            self._ranks[number] = rank
            undo.callback(rank.close, LINGER_MS)

    def _open_security(self, context: Context, undo: ExitStack) -> ServerSecurity | None:
        """Answer handshakes before the first socket is bound, or say that nobody does."""
        config = self.config
        if config.server_key is None or config.allow_list is None:
            if config.is_exposed:
                self._loop.add_timed(InsecurityWarning((config.host,), self._loop.clock))
            return None
        security = ServerSecurity(config.server_key, config.allow_list, self._loop.clock)
        zap = security.open_zap(context)
        undo.callback(zap.close)
        self._loop.add_reader(zap.socket, zap.read)
        self._loop.add_timed(security)
        self._security = security
        return security

    def _prepare_planes(self) -> None:
        """Say which planes are left out and why, and set what the engines of others read from the environment."""
        selection = select_planes(self.config.planes)
        for plane, reason in selection.left_out.items():
            self._log.info("plane_left_out", plane=plane, reason=reason)
        if "nixl" in selection.planes:
            nixl_engine.prepare_environment(self.config.nixl_devices)

    def _surroundings(self, security: ServerSecurity | None, telemetry: Telemetry) -> Surroundings:
        config = self.config
        incarnation = make_incarnation(time.time_ns(), secrets.randbits(16))
        host_id = config.host_id or shared_memory_host_id(config.shm_dir)
        make = (self._make_handler, self._make_scatter)
        return Surroundings(
            config, self._loop, self._workers, incarnation, host_id, *make, self.room_ended, security, self._flight, telemetry
        )

    def _open_rank(self, number: int, context: Context, around: Surroundings) -> DecodeRank:
        config = self.config
        with ExitStack() as undo:
            security = around.security
            protect = leave_open if security is None else security.protect
            control = RouterEndpoint(context, f"tcp://{config.host}:{config.control_port(number)}", protect=protect)
            undo.callback(control.close)
            data = None
            if config.has_data_port:
                address = f"tcp://{config.host}:{config.data_port(number)}"
                data = ZmqPlane(context, address, config.piece_bytes, config.data_host, protect)
                undo.callback(data.close)
            if security is not None:
                for listener in (control, data):
                    if listener is not None:
                        security.watch_listener(listener.socket, listener.address)
            rank = DecodeRank(number, control, data, around)
            undo.pop_all()
        return rank
