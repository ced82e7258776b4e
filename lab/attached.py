"""Engines beside daemons that somebody else runs: the workload of ``lab demo`` over a deployment that is already there.

The daemons are found by their engine sockets, so this runs on their host, or in a container that shares their runtime directory
and shared memory. Several prefill daemons of equal size form one prefill group each. A daemon that is away is waited for, for
as long as a request may take; what was in flight on it fails with its connection, and its pools are registered anew.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decode_service.engine import DecodeEngineClient
from lab.engines import SimulatedEngines
from lab.fleet import PrefillFleet
from lab.pools import PoolSet, pool_sizes
from lab.process import DaemonDied
from lab.report import RunReport
from lab.shape import PairShape
from lab.supervised import Life
from lab.workload import Request
from prefill_service.engine import PrefillEngineClient
from runtime.engine_protocol import EngineError

Pings = Callable[[], "list[Future[dict[str, Any]]]"]
Answer = dict[str, Any]

RETRY_S = 0.2
"""Wait before a daemon that went away is asked again. One that is not there yet answers as soon as it is."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a running deployment is: engine sockets on this host, and the decode ranks' control endpoints."""

    decode_socket: Path
    prefill_sockets: tuple[Path, ...]
    decode_endpoints: tuple[str, ...]


class Attachment:
    """Knows which life of one side answers, and has ``prepare`` run once for each life."""

    def __init__(
        self, names: Sequence[str], ranks: int, pings: Pings, prepare: Callable[[], Awaitable[None]], patience_s: float
    ) -> None:
        """``names`` are those of the daemons that ``pings`` asks, in its order; of each the first ``ranks`` are used."""
        self._names = tuple(names)
        self._silent: dict[str, None] = {}
        self._ranks = range(ranks)
        self._pings = pings
        self._prepare = prepare
        self._patience_s = patience_s
        self._turn = asyncio.Lock()
        self.lives = 0

    async def ready(self) -> int:
        """The number of the life that answers, its pools registered. Raises ``DaemonDied`` if none does within the patience."""
        async with self._turn:
            try:
                async with asyncio.timeout(self._patience_s):
                    while not await self._answers():  # noqa: ASYNC110 - a foreign process sends no event
                        await asyncio.sleep(RETRY_S)
            except TimeoutError as error:
                missing = ", ".join(self._silent)
                trouble = f"no answer from {missing} within" if missing else "rooms of a former run stayed live for"
                raise DaemonDied(f"{trouble} {self._patience_s:g} s") from error
            return self.lives

    async def _answers(self) -> bool:
        try:
            answers = await self._ask()
            # A daemon may host more ranks than this run uses: those stay without a pool.
            if not self.lives or any(not set(self._ranks).issubset(answer["pools"]) for answer in answers):
                await self._prepare()
                self.lives += 1
        except EngineError as error:
            if error.code not in ("disconnected", "closed", "rooms_live"):
                raise DaemonDied(f"a daemon refuses the pools of this run: {error}") from error
            return False
        return True

    async def _ask(self) -> list[Answer]:
        """Every daemon's answer. Keeps in mind which of them have none yet."""
        # A dictionary of this round: a late answer of a former one is none of this one.
        self._silent = silent = dict.fromkeys(self._names)

        async def ask(name: str, ping: "Future[Answer]") -> Answer:
            answer = await asyncio.wrap_future(ping)
            silent.pop(name, None)
            return answer

        return await asyncio.gather(*map(ask, self._names, self._pings()))


class AttachedPair:
    """Both sides of a running deployment, as the engines see them. Close it."""

    def __init__(self, addresses: Addresses, shape: PairShape, pools: PoolSet, patience_s: float) -> None:
        self.shape = shape
        self.decode_endpoints: Sequence[str] = addresses.decode_endpoints
        self._pools = pools
        self._decode = DecodeEngineClient(addresses.decode_socket)
        size = shape.prefill_ranks // len(addresses.prefill_sockets)
        fleet = PrefillFleet(addresses.prefill_sockets, size)
        self._prefill: PrefillEngineClient = fleet
        decode = f"the decode daemon at {addresses.decode_socket}"
        prefills = [f"the prefill daemon at {path}" for path in addresses.prefill_sockets]
        ranks, prepare = shape.decode_ranks, self._prepare_decode
        self._decode_side = Attachment([decode], ranks, lambda: [self._decode.ping()], prepare, patience_s)
        self._prefill_side = Attachment(prefills, size, fleet.pings, self._prepare_prefill, patience_s)
        self.ring_bytes = 0
        """Of each decode rank's ring, as the daemon said when its pools were registered; 0 until then."""

    @property
    def restarts(self) -> int:
        """How often a side was found to live anew."""
        return sum(max(0, side.lives - 1) for side in (self._decode_side, self._prefill_side))

    async def decode_life(self) -> Life[DecodeEngineClient]:
        """The decode daemon, as soon as it answers."""
        return Life(await self._decode_side.ready(), self._decode)

    async def prefill_life(self) -> Life[PrefillEngineClient]:
        """The prefill daemons, as soon as all of them answer."""
        return Life(await self._prefill_side.ready(), self._prefill)

    async def highest_round(self) -> int:
        """The highest round that any decode rank's ring has reached in the present life of its daemon."""
        snapshot = await asyncio.wrap_future(self._decode.inspect())
        # The daemon may host more ranks than this run has endpoints: those have no pool, and so no ring.
        return max(int(rank["ring"]["watermark"][0]) for rank in snapshot["ranks"] if "ring" in rank)

    def close(self) -> None:
        """End all connections."""
        self._decode.close()
        self._prefill.close()

    async def _prepare_decode(self) -> None:
        calls = [self._decode.register_pool(rank, pool.descriptor) for rank, pool in enumerate(self._pools.decode)]
        answers = await asyncio.gather(*map(asyncio.wrap_future, calls))
        self.ring_bytes = max(int(answer["ring_bytes"]) for answer in answers)

    async def _prepare_prefill(self) -> None:
        calls = [self._prefill.register_pool(rank, pool.descriptor) for rank, pool in enumerate(self._pools.prefill)]
        await asyncio.gather(*map(asyncio.wrap_future, calls))


@contextmanager
def attach(
    addresses: Addresses,
    shape: PairShape,
    requests: Sequence[Request],
    concurrency: int,
    directory: Path,
    report: RunReport,
    *,
    seed: int,
    deadline_s: float,
) -> Iterator[tuple[AttachedPair, SimulatedEngines]]:
    """Engines with pools in ``directory`` (shared memory that the daemons see too). Raises ``PoolError``."""
    with PoolSet.create(directory, shape, pool_sizes(shape, requests, concurrency)) as pools:
        pair = AttachedPair(addresses, shape, pools, deadline_s)
        try:
            yield pair, SimulatedEngines(shape, pools, pair, report, seed=seed, deadline_s=deadline_s)
        finally:
            pair.close()
