"""One decode daemon and several prefill daemons in a scenario's hands: each may be killed, stopped and started at any moment.

Every prefill daemon is one group of its own. All are real processes with the short timers of ``lab.chaos.timers``; nothing
here starts a dead daemon again or aborts a room by itself, so whatever is noticed is noticed by the daemons.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from decode_service.engine import DecodeEngineClient
from lab.chaos.expectations import expect, until, within
from lab.chaos.timers import DECODE_TIMERS, PREFILL_TIMERS
from lab.pair import DECODE_ID, HOST, PRODUCT, Programs, clean_environment
from lab.pools import PoolSet, PoolSizes
from lab.ports import free_port_base
from lab.presets import PRESETS
from lab.process import DaemonProcess
from lab.shape import PairShape
from lab.supervised import SupervisedDaemon
from lab.workspace import Workspace
from prefill_service.engine import PrefillEngineClient
from runtime.runtime_directory import engine_socket

WAIT_S = 30.0
"""Bound of every wait that no timer of the protocol bounds; far above what it takes."""
PIECE_BYTES = 8192
"""Small, so that a slice on the ``zmq`` plane is several messages."""
SIZES = PoolSizes(prefill_pages=768, decode_pages=2048)

Snapshot = dict[str, Any]
Decode = SupervisedDaemon[DecodeEngineClient]
Prefill = SupervisedDaemon[PrefillEngineClient]


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """What to start. ``planes`` has one entry per prefill daemon: the planes it offers, separated by commas."""

    planes: tuple[str, ...] = ("shm", "shm")
    prefill_tp: int = 2
    decode_tp: int = 4
    ring_chunks: float = 1.5
    chunk_tokens: int = 64
    programs: Programs = PRODUCT
    prefill_programs: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """What to run as the prefill daemon of a group, where that is not ``programs.prefill``."""
    decode_settings: tuple[str, ...] = ()
    prefill_settings: tuple[str, ...] = ()
    decode_prefix: tuple[str, ...] = ()
    """Command that runs the decode daemon's command, such as one that enters a network namespace."""
    prefill_prefix: tuple[str, ...] = ()
    listen_host: str = HOST
    peer_host: str = HOST
    """The address by which prefills know the decode ranks."""
    segments: Path | None = None
    """Where staging segments lie, if not in the workspace."""

    def shape(self) -> PairShape:
        """Ranks, layouts and sizes."""
        groups = len(self.planes)
        ranks = (self.prefill_tp * groups, groups, self.decode_tp)
        shape = PairShape(PRESETS["tiny"].model, *ranks, plane="shm", chunk_tokens=self.chunk_tokens, ring_bytes=0)
        return shape.with_ring_chunks(self.ring_chunks)


class Cluster:
    """The daemons, their pools and the connections to them. An async context manager that leaves no process behind."""

    def __init__(self, workspace: Workspace, options: ClusterOptions) -> None:
        self.options = options
        self.shape = options.shape()
        self.workspace = workspace
        self.segments = options.segments or workspace.segments
        self.pools = PoolSet.create(workspace.pools, self.shape, SIZES)
        self.ports = free_port_base(2 * self.shape.decode_ranks, HOST)
        ranks = range(self.shape.decode_ranks)
        self.endpoints = [f"tcp://{options.peer_host}:{self.ports + rank}" for rank in ranks]
        self.said: list[str] = []
        self.decode: Decode = self._decode()
        self.prefills = tuple(self._prefill(group) for group in range(self.shape.prefill_groups))

    async def __aenter__(self) -> Self:
        try:
            await within(WAIT_S, "start of all daemons", self._start_all())
        except BaseException:
            self._leave()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    @property
    def daemons(self) -> tuple[Decode | Prefill, ...]:
        """All of them, prefills first: the order in which they leave."""
        return (*self.prefills, self.decode)

    @property
    def all_ports(self) -> range:
        """Control and data ports of the decode daemon."""
        return range(self.ports, self.ports + 2 * self.shape.decode_ranks)

    async def kill(self, daemon: Decode | Prefill) -> None:
        """SIGKILL, and wait until the process is gone. Its engine's connection breaks as in life."""
        send(daemon, signal.SIGKILL)
        await within(WAIT_S, f"end of the killed {daemon.process.name}", daemon.process.exited())
        daemon.kill()

    async def start(self, daemon: Decode | Prefill) -> None:
        """Begin a life on the same address, and register its pools."""
        await within(WAIT_S, f"start of the {daemon.process.name}", daemon.start())

    async def inspect_decode(self) -> list[Snapshot]:
        """Every decode rank as its daemon describes it."""
        life = await self.decode.available()
        return list((await within(WAIT_S, "answer of the decode daemon", asyncio.wrap_future(life.client.inspect())))["ranks"])

    async def inspect_prefill(self, group: int) -> list[Snapshot]:
        """Every rank of one prefill daemon."""
        life = await self.prefills[group].available()
        answer = await within(WAIT_S, f"answer of prefill daemon {group}", asyncio.wrap_future(life.client.inspect()))
        return list(answer["ranks"])

    async def count(self, counter: str) -> int:
        """Sum of one of the decode machines' counters."""
        return sum(rank["counters"].get(counter, 0) for rank in await self.inspect_decode())

    async def count_prefill(self, group: int, counter: str) -> int:
        """Sum of one of a prefill daemon's counters."""
        return sum(rank["counters"].get(counter, 0) for rank in await self.inspect_prefill(group))

    async def until_drained(self, limit_s: float = WAIT_S) -> None:
        """Wait until no grant lives, no room is open and no former region is kept."""

        async def drained() -> bool:
            ranks = await self.inspect_decode()
            return all(not rank["ring"]["live_grants"] and not rank["room_count"] for rank in ranks)

        await until(limit_s, "the rings drain", drained)

    async def stop_in_order(self) -> None:
        """End every daemon with SIGTERM; each must end with status 0 and leave no file but recordings of its stalls."""
        for daemon in self.daemons:
            status = await within(WAIT_S, f"end of the {daemon.process.name}", daemon.stop())
            expect(status == 0, f"not an orderly end: {daemon.process.epitaph()}")
        found = [path.name for folder in (self.segments, self.workspace.runtime) for path in folder.iterdir()]
        left = sorted(name for name in found if ".flight-" not in name)
        expect(not left, f"files left behind: {', '.join(left)}")

    async def _start_all(self) -> None:
        await asyncio.gather(*(daemon.start() for daemon in self.daemons))

    def _leave(self) -> None:
        for daemon in self.daemons:
            daemon.kill()
        self.pools.__exit__(None, None, None)

    def _decode(self) -> Decode:
        options, shape = self.options, self.shape
        offered = [plane for plane in ("shm", "zmq") if any(plane in planes.split(",") for planes in options.planes)]
        command = [
            *options.decode_prefix,
            *options.programs.decode,
            *self._common(f"0-{shape.decode_ranks - 1}", ",".join(offered)),
            *DECODE_TIMERS,
            *("--decode-id", DECODE_ID, "--host", options.listen_host),
            *("--base-port", f"{self.ports}", "--data-base-port", f"{self.ports + shape.decode_ranks}"),
            *("--ring-bytes", f"{shape.ring_bytes}", "--piece-bytes", f"{PIECE_BYTES}"),
            *options.decode_settings,
        ]

        async def prepare(client: DecodeEngineClient) -> None:
            calls = [client.register_pool(rank, pool.descriptor) for rank, pool in enumerate(self.pools.decode)]
            await asyncio.gather(*(asyncio.wrap_future(call) for call in calls))

        process = self._process("decode daemon", command, "decode.log")
        return SupervisedDaemon(process, lambda: DecodeEngineClient(self._socket(DECODE_ID)), prepare, self.said.append)

    def _prefill(self, group: int) -> Prefill:
        options, name = self.options, f"prefill{group}"
        pools = [self.pools.prefill[rank] for rank in self.shape.group_ranks(group)]
        command = [
            *options.prefill_prefix,
            *options.prefill_programs.get(group, options.programs.prefill),
            *self._common(f"0-{len(pools) - 1}", options.planes[group]),
            *PREFILL_TIMERS,
            *("--prefill-id", name, "--group", self.shape.group_name(group)),
            *options.prefill_settings,
        ]

        async def prepare(client: PrefillEngineClient) -> None:
            calls = [client.register_pool(rank, pool.descriptor) for rank, pool in enumerate(pools)]
            await asyncio.gather(*(asyncio.wrap_future(call) for call in calls))

        process = self._process(f"prefill daemon {group}", command, f"{name}.log")
        return SupervisedDaemon(process, lambda: PrefillEngineClient(self._socket(name)), prepare, self.said.append)

    def _process(self, name: str, command: Sequence[str], log: str) -> DaemonProcess:
        return DaemonProcess(name, command, self.workspace.logs / log, clean_environment())

    def _socket(self, name: str) -> Path:
        return engine_socket(self.workspace.runtime, name)

    def _common(self, ranks: str, planes: str) -> list[str]:
        return [
            *("--ranks", ranks, "--planes", planes, "--chunk-tokens", f"{self.shape.chunk_tokens}"),
            *("--shm-dir", f"{self.segments}", "--runtime-dir", f"{self.workspace.runtime}"),
            *("--log-level", "debug", "--http-port", "0"),
        ]


def send(daemon: Decode | Prefill, number: signal.Signals) -> None:
    """Send a signal to a daemon's process."""
    os.kill(daemon.process.pid, number)


async def suspend(daemon: Decode | Prefill) -> None:
    """SIGSTOP, and wait until no thread of the process runs any more: until then one of them may still get some work done."""
    send(daemon, signal.SIGSTOP)

    async def is_still() -> bool:
        return thread_states(daemon.process.pid) == {"T"}

    await until(WAIT_S, f"the {daemon.process.name} stands still", is_still)


def thread_states(pid: int) -> set[str]:
    """The kernel's letters for the states in which threads of a process are; ``T`` is stopped."""
    states = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a thread that ends meanwhile
            states.add((task / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0])
    return states


def log_of(daemon: Decode | Prefill) -> str:
    """Everything that a daemon has logged in all of its lives."""
    return daemon.process.log.read_text(encoding="utf-8")
