"""A pair of real daemons with simulated engines, ready to be measured; an orderly end is part of every measurement."""

from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.engines import SimulatedEngines
from lab.pair import PRODUCT, DaemonPair, Programs
from lab.pools import PoolSet, pool_sizes
from lab.report import RunReport
from lab.shape import PairShape
from lab.workload import Request
from lab.workspace import Workspace

DEADLINE_S = 120.0


@dataclass(frozen=True, slots=True)
class Play:
    """What a bench works with."""

    shape: PairShape
    pair: DaemonPair
    engines: SimulatedEngines
    pools: PoolSet
    folder: Path
    """A place for a measurement's own files."""

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Start the daemons, do the work, stop them. Raises ``DaemonDied``, and ``RuntimeError`` if a request failed."""

        async def whole() -> None:
            await self.pair.decode_life()
            await self.pair.prefill_life()
            await work

        await self.pair.run(whole())
        await self.pair.stop()
        if self.engines.report.failures:
            raise RuntimeError(f"a request failed: {self.engines.report.failures[0]}")


@contextmanager
def played(
    shape: PairShape,
    requests: Sequence[Request],
    concurrency: int,
    say: Callable[[str], None],
    *,
    settings: Sequence[str] = (),
    programs: Callable[[Path], Programs] = lambda folder: PRODUCT,  # noqa: ARG005 - the product needs no files
) -> Iterator[Play]:
    """Make pools for ``concurrency`` of these requests at once, and both daemons."""
    report = RunReport(shape.plane, len(requests), 0, shape.ring_bytes)
    with (
        Workspace() as workspace,
        PoolSet.create(workspace.pools, shape, pool_sizes(shape, requests, concurrency)) as pools,
        DaemonPair(shape, workspace, pools, say, programs(workspace.logs), settings) as pair,
    ):
        engines = SimulatedEngines(shape, pools, pair, report, seed=0, deadline_s=DEADLINE_S)
        yield Play(shape, pair, engines, pools, workspace.logs)
