"""A decode daemon and a prefill daemon as separate processes, with the engines' connections to both.

The commands are those an operator would type, with ports and directories of this run. Either daemon may die and is started
again on the same address; its pools are registered anew.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from decode_service.engine import DecodeEngineClient
from lab.pools import PoolSet
from lab.ports import free_port_base
from lab.process import DaemonDied, DaemonProcess
from lab.shape import PairShape
from lab.supervised import Life, SupervisedDaemon
from lab.workspace import Workspace
from prefill_service.engine import PrefillEngineClient
from runtime.runtime_directory import engine_socket
from runtime.settings import ENVIRONMENT_PREFIX

HOST = "127.0.0.1"
DECODE_ID = "decode"
PREFILL_ID = "prefill"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Programs:
    """What is run as each daemon: the start of its command line, before the settings."""

    decode: Sequence[str] = (sys.executable, "-m", "decode_service", "serve")
    prefill: Sequence[str] = (sys.executable, "-m", "prefill_service", "serve")


PRODUCT = Programs()


class DaemonPair:
    """Both daemons of one deployment. A context manager: whatever happens, no process is left when it is over."""

    def __init__(
        self,
        shape: PairShape,
        workspace: Workspace,
        pools: PoolSet,
        say: Callable[[str], None],
        programs: Programs = PRODUCT,
        settings: Sequence[str] = (),
    ) -> None:
        self.shape = shape
        ports = free_port_base(2 * shape.decode_ranks)
        self.decode_endpoints = [f"tcp://{HOST}:{ports + rank}" for rank in range(shape.decode_ranks)]
        self._workspace = workspace
        self._pools = pools
        decode = [*programs.decode, *self._decode_settings(ports), *settings]
        prefill = [*programs.prefill, *self._prefill_settings(), *settings]
        self.decode = SupervisedDaemon(
            DaemonProcess("decode daemon", decode, workspace.logs / "decode.log", clean_environment()),
            lambda: DecodeEngineClient(engine_socket(workspace.runtime, DECODE_ID)),
            self._register_decode_pools,
            say,
        )
        self.prefill = SupervisedDaemon(
            DaemonProcess("prefill daemon", prefill, workspace.logs / "prefill.log", clean_environment()),
            lambda: PrefillEngineClient(engine_socket(workspace.runtime, PREFILL_ID)),
            self._register_prefill_pools,
            say,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.decode.kill()
        self.prefill.kill()

    async def decode_life(self) -> Life[DecodeEngineClient]:
        """The current life of the decode daemon, as soon as it answers."""
        return await self.decode.available()

    async def prefill_life(self) -> Life[PrefillEngineClient]:
        """The current life of the prefill daemon, as soon as it answers."""
        return await self.prefill.available()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Start both daemons, keep them alive while ``work`` runs, and stop them in order. Raises ``DaemonDied``."""
        working = asyncio.create_task(work)
        keepers: list[asyncio.Task[None]] = []
        try:
            await asyncio.gather(self.decode.start(), self.prefill.start())
            keepers = [asyncio.create_task(daemon.supervise()) for daemon in (self.decode, self.prefill)]
            await asyncio.wait((working, *keepers), return_when=asyncio.FIRST_COMPLETED)
            for keeper in keepers:
                if keeper.done():
                    keeper.result()
            return await working
        finally:
            for task in (working, *keepers):
                task.cancel()
            await asyncio.gather(working, *keepers, return_exceptions=True)

    async def stop(self) -> None:
        """End both daemons in order: the prefill leaves its sessions first. Raises ``DaemonDied`` for an exit status but 0."""
        for daemon in (self.prefill, self.decode):
            if await daemon.stop():
                raise DaemonDied(f"not an orderly end: {daemon.process.epitaph()}")

    @property
    def restarts(self) -> int:
        """How often a daemon died and was started again."""
        return self.decode.restarts + self.prefill.restarts

    async def _register_decode_pools(self, client: DecodeEngineClient) -> None:
        calls = [client.register_pool(rank, pool.descriptor) for rank, pool in enumerate(self._pools.decode)]
        await asyncio.gather(*(asyncio.wrap_future(call) for call in calls))

    async def _register_prefill_pools(self, client: PrefillEngineClient) -> None:
        calls = [client.register_pool(rank, pool.descriptor) for rank, pool in enumerate(self._pools.prefill)]
        await asyncio.gather(*(asyncio.wrap_future(call) for call in calls))

    def _decode_settings(self, ports: int) -> list[str]:
        shape = self.shape
        return [
            *self._common_settings(f"0-{shape.decode_ranks - 1}"),
            *("--decode-id", DECODE_ID),
            *("--host", HOST),
            *("--base-port", f"{ports}"),
            *("--data-base-port", f"{ports + shape.decode_ranks}"),
            *("--ring-bytes", f"{shape.ring_bytes}"),
        ]

    def _prefill_settings(self) -> list[str]:
        shape = self.shape
        return [
            *self._common_settings(f"0-{shape.prefill_ranks - 1}"),
            *("--prefill-id", PREFILL_ID),
            *("--attention-tp", f"{shape.group_size}"),
        ]

    def _common_settings(self, ranks: str) -> list[str]:
        return [
            *("--ranks", ranks),
            *("--chunk-tokens", f"{self.shape.chunk_tokens}"),
            *("--planes", self.shape.plane),
            *("--shm-dir", f"{self._workspace.segments}"),
            *("--runtime-dir", f"{self._workspace.runtime}"),
            *("--http-port", "0"),
        ]


def clean_environment() -> dict[str, str]:
    """This process's environment without the settings of some other deployment, and with unbuffered logs."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)}
    return {**kept, "PYTHONUNBUFFERED": "1"}
