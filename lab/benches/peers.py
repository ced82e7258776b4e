"""``peers``: the same chunk over NIXL and Mooncake, token by token and staged, beside this project's own planes.

Per-token means what an engine without staging does: one memory range for each token, layer and tensor, from pool to pool.
Staged means gather, one range, scatter, with the same copies as everywhere else here. The peers have no protocol around them:
no grants, no checks, nobody to ask. The planes are measured as the product runs, checksums off, several chunks under way.
"""

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from decode_service.scatter import scatter
from lab.benches.effort import Effort
from lab.benches.peer_engines import MooncakeEnd, NixlEnd, PeerEngine, Ranges, missing_peer
from lab.benches.raw import shared_memory
from lab.benches.rows import Row, median, ratio_at_least
from lab.benches.staged import Case, measure
from lab.presets import PRESETS
from prefill_service.gather import gather
from protocol.layout import PageRun, RankLayout, WriterSlice, writer_slice
from runtime.pool import KvPool
from runtime.pool_layout import arrange_pool

PRESET = "qwen3-8b"
TOKENS = 64
SLOTS, BURST = 4, 12
"""Staged: this many chunks one after the other through so many places, so that gather, write and scatter overlap."""
STAGED_GAIN = 5.0
PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Peer:
    """A way to run an engine. ``tls`` is UCX's own choice of transports if empty."""

    name: str
    package: str
    tls: str = ""
    polled: bool = False

    def make(self, address: int, num_bytes: int) -> PeerEngine:
        """Start an engine in this process."""
        if self.package == "mooncake":
            return MooncakeEnd(address, num_bytes)
        return NixlEnd(self.tls, address, num_bytes, polled=self.polled)


NIXL_HOST = Peer("NIXL same host", "nixl")
NIXL_TCP = Peer("NIXL TCP", "nixl", "tcp")
NIXL_POLLED = Peer("NIXL TCP polled", "nixl", "tcp", polled=True)
MOONCAKE = Peer("Mooncake TCP", "mooncake")
PEERS = (NIXL_HOST, NIXL_TCP, NIXL_POLLED, MOONCAKE)


class Side:
    """One rank's pool and the staging blocks of its side, in one registered memory."""

    def __init__(self, tp_size: int, tp_rank: int) -> None:
        model, page_size = PRESETS[PRESET].model, PRESETS[PRESET].page_size
        self.rank = RankLayout(model, tp_rank, tp_size, 0, 1, (0, len(model.layers)))
        layout = arrange_pool(self.rank, page_size, TOKENS // page_size)
        self.slice: WriterSlice = writer_slice(_rank(4, 0), _rank(8, 0))
        self.block_bytes = TOKENS * self.slice.token_bytes
        self.memory = shared_memory(layout.total_bytes + SLOTS * self.block_bytes)
        self.pool = KvPool.over(self.memory[: layout.total_bytes], layout)
        starts = range(layout.total_bytes, self.memory.nbytes, self.block_bytes)
        self.blocks = [self.memory[start : start + self.block_bytes].data for start in starts]
        self.block_addresses = [self.address + start for start in starts]
        self.run = PageRun(tuple(range(TOKENS // page_size)))

    @property
    def address(self) -> int:
        """Where the memory lies."""
        return int(self.memory.ctypes.data)

    def rows(self, *, source: bool) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """Address of every token of every part of the slice."""
        page_size, found = self.pool.layout.page_size, []
        tokens = np.arange(TOKENS, dtype=np.uint64)
        for part in self.slice.parts:
            place = self.pool.place(part.layer, part.tensor)
            head = part.source_head if source else part.destination_head
            start = self.address + place.offset + head * place.head_stride
            found.append(start + tokens // page_size * place.page_stride + tokens % page_size * place.token_stride)
        return np.concatenate(found).astype(np.uint64)


def _rank(tp_size: int, tp_rank: int) -> RankLayout:
    model = PRESETS[PRESET].model
    return RankLayout(model, tp_rank, tp_size, 0, 1, (0, len(model.layers)))


def bench_peers(effort: Effort) -> Iterator[Row]:
    """Rows for what is installed; a peer that is missing is named, and nothing is claimed about it."""
    effort.view.phase("peers", len(PEERS) + 2)
    rates: dict[str, float] = {}
    for done, peer in enumerate(PEERS, start=1):
        row, rate = _measured(peer, effort)
        yield row
        if rate is not None:
            rates[peer.name] = rate
        effort.view.advance(done)
    for plane, rivals in (("shm", (NIXL_HOST,)), ("zmq", (MOONCAKE, NIXL_TCP, NIXL_POLLED))):
        if not any(rival.name in rates for rival in rivals):
            continue
        ours = measure(Case(plane, PRESET, 4, 8, effort.pick(80, 512) << 20), "numpy", effort)[False]
        for rival in rivals:
            if rival.name in rates:
                target = () if rival.polled else (ratio_at_least(1.0),)
                yield Row(f"peers/{plane} plane beside {rival.name}", ours / 1e9, "GB/s", rates[rival.name] / 1e9, target)


def _measured(peer: Peer, effort: Effort) -> tuple[Row, float | None]:
    """The row of one peer and its staged rate, or a row that says why there is none."""
    reason = missing_peer(peer.package)
    if reason is None:
        try:
            per_token, staged = _rates(peer, effort)
        except (TimeoutError, EOFError) as error:
            reason = f"its process ended early or hangs ({type(error).__name__}); stderr says why"
        else:
            name = f"peers/{peer.name}, staged beside per-token, 256 B slices"
            return Row(name, staged / 1e9, "GB/s", per_token / 1e9, (ratio_at_least(STAGED_GAIN),)), staged
    return Row(f"peers/{peer.name}", 0.0, "GB/s", None, (), f"not measured: {reason}"), None


def _rates(peer: Peer, effort: Effort) -> tuple[float, float]:
    """Bytes per second of a chunk of 256 B slices, token by token and staged."""
    context = multiprocessing.get_context("spawn")
    rounds = effort.pick(3, 40)
    with ExitStack() as stack:
        ends = []
        link, far_link = context.Pipe()
        for role, theirs in ((_target, far_link), (_initiator, link)):
            ours, pipe = context.Pipe()
            process = context.Process(target=role, args=(peer, pipe, theirs, rounds), daemon=True)
            process.start()
            pipe.close()
            stack.callback(process.join)
            stack.callback(process.kill)
            ends.append(ours)
        if not ends[1].poll(PATIENCE_S):
            raise TimeoutError(f"{peer.name} was not done within {PATIENCE_S:g} s")
        per_token, staged = ends[1].recv()
    num_bytes = TOKENS * writer_slice(_rank(4, 0), _rank(8, 0)).token_bytes
    return num_bytes / median(per_token), BURST * num_bytes / median(staged)


def _target(peer: Peer, pipe: Connection, link: Connection, rounds: int) -> None:  # noqa: ARG001 - as the other role
    """Own the decode pool; scatter when told to."""
    side = Side(8, 0)
    engine = peer.make(side.address, side.memory.nbytes)
    link.send((engine.description(), side.rows(source=False), side.block_addresses))
    if peer.package == "nixl":
        engine.connect(link.recv())
        link.send("connected")
    while True:
        while not link.poll(0 if peer.polled else None):
            engine.turn()
        scatter(side.pool, side.slice, side.run, 0, TOKENS, side.blocks[link.recv()])
        link.send("done")


def _initiator(peer: Peer, pipe: Connection, link: Connection, rounds: int) -> None:
    """Own the prefill pool; move the same chunk again and again in both ways."""
    side = Side(4, 0)
    engine = peer.make(side.address, side.memory.nbytes)
    description, remote_rows, remote_blocks = link.recv()
    engine.connect(description)
    if peer.package == "nixl":
        link.send(engine.description())
        link.recv()
    sizes = np.repeat(np.array([part.row_bytes for part in side.slice.parts], np.uint64), TOKENS)
    single: Ranges = np.stack((side.rows(source=True), remote_rows, sizes), axis=1)
    pairs = zip(side.block_addresses, remote_blocks, strict=True)
    wholes: list[Ranges] = [np.array([[local, remote, side.block_bytes]], np.uint64) for local, remote in pairs]

    def per_token() -> None:
        engine.write(single)

    def staged() -> None:
        for index in range(BURST):
            if index >= SLOTS:
                link.recv()
            slot = index % SLOTS
            gather(side.pool, side.slice, side.run, 0, TOKENS, side.blocks[slot])
            engine.write(wholes[slot])
            link.send(slot)
        for _ in range(SLOTS):
            link.recv()

    spans: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 2):
        for way, taken in zip((per_token, staged), spans, strict=True):
            began = time.monotonic()
            way()
            if number > 1:
                taken.append(time.monotonic() - began)
    pipe.send(spans)
