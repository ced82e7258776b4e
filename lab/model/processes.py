"""The engine processes of one deployment: one for each prefill group, one for the decode instance."""

import asyncio
import sys
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from lab.model.assignment import SINGLE_THREADED, Assignment
from lab.pair import DECODE_ID, PREFILL_ID, DaemonPair, clean_environment
from lab.pools import PoolSet
from lab.process import DaemonDied, DaemonProcess
from lab.shape import PairShape
from lab.supervised import START_TIMEOUT_S
from lab.workspace import Workspace
from runtime.engine_client import EngineClient
from runtime.runtime_directory import engine_socket

T = TypeVar("T")


class EngineProcess:
    """One engine and the connection to it."""

    def __init__(self, name: str, module: str, assignment: Assignment, workspace: Workspace) -> None:
        path = workspace.runtime / f"{name}.json"
        assignment.save(path)
        environment = {**clean_environment(), **SINGLE_THREADED}
        command = [sys.executable, "-m", module, str(path)]
        self.process = DaemonProcess(name, command, workspace.logs / f"{name}.log", environment)
        self.client = EngineClient(assignment.listen)

    def kill(self) -> None:
        """End both."""
        self.client.close()
        self.process.kill()


class EngineProcesses:
    """All engines of one deployment. A context manager: none is left when it is over."""

    def __init__(self, shape: PairShape, workspace: Workspace, pools: PoolSet, model: str, seed: int) -> None:
        runtime = workspace.runtime

        def assign(name: str, daemon: str, ranks: Sequence[int], side: Sequence[Any]) -> Assignment:
            descriptors = tuple(side[rank].descriptor for rank in ranks)
            listen, served = engine_socket(runtime, name), engine_socket(runtime, daemon)
            return Assignment(listen, served, model, seed, tuple(ranks), descriptors, shape.chunk_tokens)

        decode = assign("model-decode", DECODE_ID, range(shape.decode_ranks), pools.decode)
        self.decode = EngineProcess("model-decode", "lab.model.decode_process", decode, workspace)
        self.prefill: list[EngineProcess] = []
        for group in range(shape.prefill_groups):
            name = f"model-prefill-{group}"
            prefill = assign(name, PREFILL_ID, shape.group_ranks(group), pools.prefill)
            self.prefill.append(EngineProcess(name, "lab.model.prefill_process", prefill, workspace))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for engine in self._all:
            engine.kill()

    @property
    def _all(self) -> tuple[EngineProcess, ...]:
        return self.decode, *self.prefill

    async def run(self, pair: DaemonPair, work: Coroutine[Any, Any, T]) -> T:
        """Start the engines, then the daemons, and keep both while ``work`` runs. Raises ``DaemonDied``."""
        for engine in self._all:
            engine.process.start()
        working = asyncio.create_task(pair.run(self._once_ready(work)))
        deaths = [asyncio.create_task(engine.process.exited()) for engine in self._all]
        try:
            await asyncio.wait((working, *deaths), return_when=asyncio.FIRST_COMPLETED)
            for engine, death in zip(self._all, deaths, strict=True):
                if death.done():
                    # Nobody may wait for it any more, nor ask again: a request that fails now may outlive its cancellation.
                    engine.client.close()
                    raise DaemonDied(engine.process.epitaph())
            return await working
        finally:
            for task in (working, *deaths):
                task.cancel()
            await asyncio.gather(working, *deaths, return_exceptions=True)

    async def _once_ready(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await asyncio.gather(*(asyncio.wrap_future(engine.client.call("ping")) for engine in self._all))
        except BaseException:
            work.close()
            raise
        return await work
