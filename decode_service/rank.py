"""One decode rank in the outside world: its sockets, its ring, its pool, and the machine that decides everything.

The machine is born when the engine registers the rank's KV pool, since only then is its layout known. Until then what prefills
send waits unread in the control socket, which is bound from the start so that its port is taken and daemons may start in any
order. Everything here runs on the loop's thread, except the copies, which workers do.
"""

from functools import partial

from decode_service.guard import Arrival, Guard
from decode_service.handler import DecodeStagingHandler
from decode_service.outputs import Output, Send
from decode_service.performing import Performing
from decode_service.region import StagingRegion
from decode_service.regions.zmq import Piece, ZmqPlane
from decode_service.surroundings import Surroundings
from protocol.codec import decode_to_decode
from protocol.errors import RemoteProtocolError
from protocol.layout import PageRun, rank_token_bytes
from protocol.messages import ChunkReady, Subscribe, ToDecode
from runtime.endpoint import RouterEndpoint
from runtime.engine_protocol import EngineError
from runtime.errors import StartError
from runtime.logs import logger
from runtime.monitor import HANDSHAKE_FAILED, ConnectionEvent, ConnectionMonitor
from runtime.page_runs import check_page_run
from runtime.pool import KvPool
from runtime.rate_limit import RateLimit

FAN_OUT_BUDGET = 256
"""Watermarks sent in one go to sessions that do not wait for one; the rest goes in the next ones."""
FAN_OUT_PAUSE_S = 0.1
"""Between two of these goes. Whoever waits is told at once, and a grant brings the watermark with it: with many sessions and
many frees, each of the others is told of the latest watermark only."""
MAX_COPIES = 8
"""Pieces that wait for a worker; beyond that the data socket is not read and its writers wait."""


class DecodeRank:
    """Owns the machine of one rank. Made before the loop runs; ``close`` when it has ended."""

    def __init__(self, rank: int, control: RouterEndpoint, data: ZmqPlane | None, around: Surroundings) -> None:
        self.rank = rank
        self.control = control
        self.data = data
        self.region = StagingRegion(around.config, data)
        self._retired: dict[int, StagingRegion] = {}
        self.pool: KvPool | None = None
        self.handler: DecodeStagingHandler | None = None
        self._around = around
        self._loop = around.loop
        self._log = logger(decode_id=around.config.decode_id, rank=rank)
        self._limit = RateLimit()
        self._guard = Guard(around.security, self._log)
        self._performing: Performing | None = None
        self._fan_out_at = 0.0
        self._monitor = ConnectionMonitor(control.socket, HANDSHAKE_FAILED, self._handshake_failed)
        self._loop.add_reader(self._monitor.socket, self._monitor.read)

    # ---- what the engine wants ------------------------------------------------------------------------------------------

    def register_pool(self, pool: KvPool) -> None:
        """Serve this pool from now on. Raises ``EngineError`` and changes nothing, or takes the pool over."""
        pool.compiled_copies = self._around.config.compiled_copies
        if self.handler is None:
            self._check_ring(pool)
            self._start(pool)
            return
        assert self.pool is not None
        if pool.layout.rank != self.handler.settings.layout:
            text = "the rank serves a pool of another layout; a daemon keeps its layout for life: restart it"
            raise EngineError("layout", text, "pool")
        live = len(self.handler.state.rooms)
        if live:
            raise EngineError("rooms_live", f"{live} rooms are live in the pool registered before; abort them first")
        former, self.pool = self.pool, pool
        former.close()
        self._log.info("pool_replaced", pages=pool.layout.num_pages)

    def register_room(self, room: str, group: str, num_tokens: int, destination: PageRun, deadline_s: float | None) -> None:
        """Expect a room. Raises ``RoomRefused``, ``PageRunError`` or ``EngineError``."""
        handler, pool = self._serving()
        check_page_run(pool.layout, destination, num_tokens)
        now = self._loop.clock()
        outputs = handler.register_room(room, group, num_tokens, destination, now, deadline_s)
        assert self._performing is not None
        self._performing.telling.room_registered(room, now)
        self._perform(outputs)

    def abort_room(self, room: str, reason: str) -> None:
        """Fail a live room. Raises ``RoomRefused`` or ``EngineError``."""
        handler, _ = self._serving()
        self._perform(handler.abort_room(room, reason, self._loop.clock()))

    def abort_all(self, reason: str) -> None:
        """Fail every live room, at the end of a drain."""
        if self.handler is not None:
            for room in tuple(self.handler.state.rooms):
                self.abort_room(room.id, reason)

    def drain(self) -> None:
        """Grant nothing new from now on."""
        if self.handler is not None:
            self._perform(self.handler.drain(self._loop.clock()))

    @property
    def is_idle(self) -> bool:
        """Whether nothing is granted and nothing is being copied."""
        return self.handler is None or self.handler.is_idle

    def snapshot(self) -> dict[str, object]:
        """The machine as plain values, and what the sockets saw."""
        state: dict[str, object] = {"rank": self.rank, "pool_registered": self.handler is not None}
        if self.handler is not None:
            state |= self.handler.snapshot()
        return state | {"endpoint": self.control.address, **self.counts()}

    def counts(self) -> dict[str, object]:
        """What the sockets saw."""
        counters = self.control.counters
        sends = {outcome.value: number for outcome, number in counters.sends.items()}
        return {"control_received": counters.received, "sends": sends, "security": self._guard.counts()}

    # ---- what peers send ------------------------------------------------------------------------------------------------

    def read_control(self, limit: int) -> bool:
        """Take at most ``limit`` control messages; true if more may be waiting."""
        assert self.handler is not None
        for _ in range(limit):
            arrival = self._guard.receive(self.control)
            if arrival is None:
                return False
            if not self._guard.hears(arrival, self._loop.clock()):
                continue
            try:
                message = decode_to_decode(arrival.frames)
            except RemoteProtocolError as error:
                self._malformed(arrival, error)
            else:
                self._hear(arrival, message)
        return True

    def read_data(self, limit: int) -> bool:
        """Take at most ``limit`` pieces or messages of the ``zmq`` plane; true if more may be waiting."""
        assert self.handler is not None
        assert self.data is not None
        for _ in range(limit):
            if self._performing is not None and self._performing.copies >= MAX_COPIES:
                self._loop.remove_reader(self.data.socket)
                return False
            frames = self.data.take()
            if frames is None:
                return False
            arrival = self._guard.identify(frames)
            if not self._guard.hears(arrival, self._loop.clock()):
                continue
            try:
                received = self.data.read(frames)
            except RemoteProtocolError as error:
                self._malformed(arrival, error)
            else:
                self._take(arrival, received)
        return True

    # ---- another region -------------------------------------------------------------------------------------------------

    def replace_region(self, reason: str) -> None:
        """Get new memory in a worker, since a large ring takes its time, and then change over to it."""
        self._log.warning("region_replacement_started", epoch=f"{self.region.epoch:016x}", reason=reason)
        job = partial(StagingRegion, self._around.config, self.data)
        self._around.workers.submit(job, self._region_replaced, self._region_unavailable)

    def release_region(self, epoch: int) -> None:
        """Give the memory of a former epoch back."""
        self._retired.pop(epoch).close()
        self._log.info("region_released", epoch=f"{epoch:016x}")

    def _region_replaced(self, region: StagingRegion) -> None:
        assert self.handler is not None
        former, self.region = self.region, region
        self._retired[former.epoch] = former
        self._log.info("region_replaced", former=f"{former.epoch:016x}", epoch=f"{region.epoch:016x}")
        now = self._loop.clock()
        self._perform(self.handler.region_replaced(region.epoch, region.offers(), now), now=now)

    def _region_unavailable(self, error: Exception) -> None:
        if not isinstance(error, StartError):
            raise error
        assert self.handler is not None
        self._log.error("region_replacement_failed", reason=str(error))
        now = self._loop.clock()
        self._perform(self.handler.region_unavailable(str(error)[:200], now), now=now)

    # ---- time -----------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When the machine wants to be called, or the next watermarks that are owed may be sent."""
        if self.handler is None:
            return None
        deadline = self.handler.next_deadline()
        if not self.handler.has_fan_out:
            return deadline
        return self._fan_out_at if deadline is None else min(deadline, self._fan_out_at)

    def tick(self, now: float) -> None:
        """Let the machine do what is due."""
        assert self.handler is not None
        assert self._performing is not None
        self._perform(self.handler.tick(now), now=now)
        self._performing.telling.look_for_stalls(now)

    def flush(self, now: float) -> None:
        """Send owed watermarks, and read data again once the workers have caught up."""
        if self.handler is None:
            return
        if self.handler.has_fan_out and now >= self._fan_out_at:
            self._fan_out_at = now + FAN_OUT_PAUSE_S
            self._perform(self.handler.fan_out(now, FAN_OUT_BUDGET), now=now)
        if self.data is not None and self._performing is not None and self._performing.copies < MAX_COPIES // 2:
            self._loop.add_reader(self.data.socket, self.read_data)

    def close(self, linger_ms: int) -> None:
        """Close sockets, planes, rings and pool. No copy runs any more."""
        self._monitor.close()
        self.control.close(linger_ms)
        if self.data is not None:
            self.data.close()
        for region in (self.region, *self._retired.values()):
            region.close()
        if self.pool is not None:
            self.pool.close()

    # ---- inside ---------------------------------------------------------------------------------------------------------

    def _check_ring(self, pool: KvPool) -> None:
        chunk_tokens = self._around.config.chunk_tokens
        chunk_bytes = rank_token_bytes(pool.layout.rank) * chunk_tokens
        if self.region.size < chunk_bytes:
            text = (
                f"a full chunk of {chunk_tokens} tokens takes {chunk_bytes} bytes of this rank, the ring has {self.region.size}"
            )
            advice = "raise ring_bytes to at least twice the chunk, or lower chunk_tokens on both sides"
            raise EngineError("ring_too_small", f"ring_bytes: {text}; {advice}", "ring_bytes", chunk_bytes)

    def _start(self, pool: KvPool) -> None:
        around, region = self._around, self.region
        settings = around.settings(self.rank, region.epoch, pool.layout.rank, region.offers())
        self.pool = pool
        self.handler = around.machine(self.rank, settings, region.size)
        self._performing = Performing(self, self.handler, around, around.make_scatter(self.rank), self._log)
        self._loop.add_reader(self.control.socket, self.read_control)
        if self.data is not None:
            self._loop.add_reader(self.data.socket, self.read_data)
        self._loop.add_timed(self)
        self._log.info("pool_registered", pages=pool.layout.num_pages, page_size=pool.layout.page_size, ring_bytes=region.size)

    def _serving(self) -> tuple[DecodeStagingHandler, KvPool]:
        if self.handler is None or self.pool is None:
            raise EngineError("no_pool", f"rank {self.rank} has no KV pool yet; register_pool comes first", "rank")
        return self.handler, self.pool

    def _perform(self, outputs: tuple[Output, ...], payload: memoryview | None = None, now: float | None = None) -> None:
        assert self._performing is not None
        self._performing.perform(outputs, self._loop.clock() if now is None else now, payload)

    def _hear(self, arrival: Arrival, message: ToDecode) -> None:
        assert self.handler is not None
        now = self._loop.clock()
        denial = self._guard.denial(arrival, message, self.handler.state.sessions, now)
        if denial is None:
            self._perform(self.handler.receive(arrival.route, message, now))
        elif isinstance(message, Subscribe):
            self._perform((Send(arrival.route, self._guard.refusal(denial, message)),))

    def _take(self, arrival: Arrival, received: Piece | ChunkReady) -> None:
        assert self.handler is not None
        now = self._loop.clock()
        message = received.header if isinstance(received, Piece) else received
        if self._guard.denial(arrival, message, self.handler.state.sessions, now) is not None:
            return
        if isinstance(received, Piece):
            self._perform(self.handler.receive_data(received.header, received.payload.nbytes, now), received.payload)
        else:
            self._perform(self.handler.receive(b"", received, now))

    def _malformed(self, arrival: Arrival, error: RemoteProtocolError) -> None:
        assert self.handler is not None
        now, route = self._loop.clock(), arrival.route
        self._guard.wasted(arrival, now)
        suppressed = self._limit.admit(("malformed", route), now)
        if suppressed is not None:
            detail = {"code": error.code, "field": error.field, "expected": error.expected, "session": error.session}
            self._log.warning("frame_refused", route=route.hex(), suppressed=suppressed, **detail)
        self._perform(self.handler.receive_error(route, error, now))

    def _handshake_failed(self, event: ConnectionEvent) -> None:
        self._guard.handshake_failed(event.name, event.address, self._loop.clock())
