"""One prefill rank in the outside world: its connections, its open planes, its pool, and the machine that decides everything.

The machine is born when the engine registers the rank's KV pool, since only then is its layout known. Everything here runs on
the loop's thread, except the gathers, which workers do.
"""

from collections.abc import Mapping

from prefill_service.describing import Unsent
from prefill_service.handler import PrefillStagingHandler
from prefill_service.outputs import Output
from prefill_service.performing import Performing
from prefill_service.rooms import RoomRefused
from prefill_service.surroundings import Identity, Surroundings
from protocol.layout import PageRun
from runtime.engine_protocol import EngineError
from runtime.logs import logger
from runtime.page_runs import check_page_run
from runtime.pool import KvPool


class PrefillRank:
    """Owns the machine of one rank. ``close`` when the loop has ended."""

    def __init__(self, rank: int, around: Surroundings) -> None:
        self.rank = rank
        self.pool: KvPool | None = None
        self.handler: PrefillStagingHandler | None = None
        self.performing: Performing | None = None
        self._around = around
        self._loop = around.loop
        self._log = logger(prefill_id=around.config.rank_id(rank), rank=rank)

    # ---- what the engine wants ------------------------------------------------------------------------------------------

    def register_pool(self, pool: KvPool, identity: Identity) -> None:
        """Serve this pool from now on. Raises ``EngineError`` and changes nothing, or takes the pool over."""
        pool.compiled_copies = self._around.config.compiled_copies
        if self.handler is None:
            self._start(pool, identity)
            return
        assert self.pool is not None
        settings = self.handler.settings
        known = (settings.layout, settings.page_size, settings.prefill_id, settings.group)
        if (pool.layout.rank, pool.layout.page_size, identity.prefill_id, identity.group) != known:
            text = "the rank serves a pool of another layout, page size or name; a daemon keeps them for life: restart it"
            raise EngineError("layout", text, "pool")
        live = len(self.handler.state.rooms)
        if not self.handler.is_idle:
            raise EngineError("rooms_live", f"{live} rooms are live in the pool registered before; abort them first")
        former, self.pool = self.pool, pool
        former.close()
        self._log.info("pool_replaced", pages=pool.layout.num_pages)

    def submit_chunk(
        self, room: str, decode: tuple[str, ...], token_start: int, num_tokens: int, source: PageRun, traceparent: str | None
    ) -> None:
        """Take computed tokens of a room. Raises ``RoomRefused``, ``PageRunError`` or ``EngineError``."""
        handler, pool = self.serving()
        self._check_endpoints(decode)
        check_page_run(pool.layout, source, token_start + num_tokens)
        now = self._loop.clock()
        outputs = handler.submit_chunk(room, decode, token_start, num_tokens, source, now, traceparent)
        assert self.performing is not None
        self.performing.telling.room_submitted(room, now, traceparent)
        self.perform_with(outputs, now)

    def finish_room(self, room: str) -> None:
        """No more tokens will come. Raises ``RoomRefused`` or ``EngineError``."""
        now = self._loop.clock()
        self.perform_with(self.serving()[0].finish_room(room, now), now)

    def abort_room(self, room: str, reason: str) -> None:
        """Fail a live room. Raises ``RoomRefused`` or ``EngineError``."""
        now = self._loop.clock()
        self.perform_with(self.serving()[0].abort_room(room, now, reason), now)

    def add_peer(self, endpoint: str, decode_rank: int | None) -> None:
        """Keep a session with a decode rank. Raises ``RoomRefused`` or ``EngineError``."""
        self._check_endpoints((endpoint,))
        now = self._loop.clock()
        self.perform_with(self.serving()[0].add_peer(endpoint, now, decode_rank), now)

    def remove_peer(self, endpoint: str) -> None:
        """Leave a decode rank. Raises ``EngineError``."""
        now = self._loop.clock()
        self.perform_with(self.serving()[0].remove_peer(endpoint, now), now)

    def serving(self) -> tuple[PrefillStagingHandler, KvPool]:
        """Machine and pool. Raises ``EngineError`` while there are none."""
        if self.handler is None or self.pool is None:
            raise EngineError("no_pool", f"rank {self.rank} has no KV pool yet; register_pool comes first", "rank")
        return self.handler, self.pool

    def snapshot(self) -> dict[str, object]:
        """The machine as plain values, and what the sockets saw."""
        state: dict[str, object] = {"rank": self.rank, "pool_registered": self.handler is not None}
        if self.handler is not None:
            state |= {**self.handler.snapshot(), **self.counts()}
        return state

    def counts(self) -> dict[str, object]:
        """What the sockets saw."""
        return {} if self.performing is None else self.performing.counts()

    def unsent(self) -> Mapping[str, Unsent]:
        """What could not be sent lately, by decode endpoint."""
        return {} if self.performing is None else self.performing.unsent()

    # ---- time and the end -----------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When the machine or an open plane wants to be called."""
        if self.handler is None or self.performing is None:
            return None
        deadlines = (self.handler.next_deadline(), self.performing.next_deadline())
        return min((at for at in deadlines if at is not None), default=None)

    def tick(self, now: float) -> None:
        """Let the machine and the planes do what is due."""
        handler, _ = self.serving()
        assert self.performing is not None
        # The machine first: what a plane reports is told to it with the time of that moment, which is later.
        self.perform_with(handler.tick(now), now)
        self.performing.tick(now)

    def flush(self, now: float) -> None:
        """Nothing is owed: this side repeats by its machine's own timers."""

    def drain(self) -> None:
        """Take no new rooms."""
        if self.handler is not None:
            now = self._loop.clock()
            self.perform_with(self.handler.drain(now), now)

    def stop(self) -> None:
        """Fail what is live and leave every peer as its last write ends."""
        if self.handler is not None:
            now = self._loop.clock()
            self.perform_with(self.handler.stop(now), now)

    @property
    def is_idle(self) -> bool:
        """Whether no room is live and no write runs."""
        return self.handler is None or self.handler.is_idle

    @property
    def is_stopped(self) -> bool:
        """Whether every peer has been left."""
        return self.handler is None or self.handler.is_stopped

    def close(self, linger_ms: int) -> None:
        """Close connections, planes and pool. No gather runs any more."""
        if self.performing is not None:
            self.performing.close(linger_ms)
        if self.pool is not None:
            self.pool.close()

    def perform_with(self, outputs: tuple[Output, ...], now: float) -> None:
        """Carry out what the machine wants."""
        assert self.performing is not None
        self.performing.perform(outputs, now)

    def _check_endpoints(self, endpoints: tuple[str, ...]) -> None:
        for endpoint in endpoints:
            obstacle = self._around.connections.obstacle(endpoint)
            if obstacle is not None:
                raise EngineError("insecure_endpoint", obstacle, "decode")

    def _start(self, pool: KvPool, identity: Identity) -> None:
        around = self._around
        try:
            settings = around.settings(identity, pool.layout.rank, pool.layout.page_size)
        except ValueError as error:
            raise EngineError("invalid", str(error)) from error
        self.pool = pool
        self.handler = around.machine(self.rank, settings)
        self.performing = Performing(self, self.handler, around, self._log)
        self._loop.add_timed(self)
        self._log.info("pool_registered", pages=pool.layout.num_pages, page_size=pool.layout.page_size, group=identity.group)
        for endpoint in around.config.decode_peers:
            try:
                self.add_peer(endpoint, None)
            except (RoomRefused, EngineError) as refused:
                self._log.warning("peer_refused", peer=endpoint, code=refused.code, reason=refused.message)
