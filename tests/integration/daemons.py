"""Real daemons, real pools and a small model, for tests that move KV between processes.

Prefill has 2 ranks and decode 4, of one model with 4 KV heads: decode rank ``d`` receives local head ``d % 2`` of prefill rank
``d // 2``.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from signal import SIGTERM, Signals
from types import TracebackType
from typing import Self

import numpy as np

from decode_service.engine import DecodeEngineClient
from lab.ports import free_port_base
from prefill_service.engine import PrefillEngineClient
from protocol.layout import ModelLayout, PageRun, RankLayout, TensorSpec
from runtime.pool import Bytes, KvPool
from runtime.pool_layout import arrange_pool
from runtime.room_waiters import RoomOutcome

WAIT_S = 60
LAYERS = 2
HEADS = 4
WIDTH = 64
CHUNK_TOKENS = 32
PREFILL_TP = 2
DECODE_TP = 4
PREFILL_PAGE = 16
DECODE_PAGE = 8
PAGES = 64
CHUNK_BYTES = CHUNK_TOKENS * LAYERS * 2 * WIDTH
"""A full chunk of one decode rank: one head of K and V of each layer."""
RING_BYTES = 3 * CHUNK_BYTES // 2

MODEL = ModelLayout(
    tuple((TensorSpec("k", HEADS, WIDTH, "uint8"), TensorSpec("v", HEADS, WIDTH, "uint8")) for _ in range(LAYERS))
)


def rank_layout(tp_rank: int, tp_size: int) -> RankLayout:
    """One rank of the model, without pipeline stages."""
    return RankLayout(MODEL, tp_rank, tp_size, 0, 1, (0, LAYERS))


class Daemon:
    """One daemon process and its log; the pools outlive it."""

    def __init__(self, module: str, folder: Path, settings: Sequence[str]) -> None:
        self.log_path = folder / f"{module}.log"
        self.command = [sys.executable, "-m", module, "serve", *settings]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; its log is appended to."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PD_STAGING_")}
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, env=environment)

    def signal(self, number: Signals) -> None:
        """Send it a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def end(self, number: Signals = SIGTERM) -> int:
        """Send it a signal and wait for its end; the exit status."""
        self.signal(number)
        assert self.process is not None
        return self.process.wait(WAIT_S)

    def kill(self) -> None:
        """Make sure that no process is left."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    @property
    def log(self) -> str:
        """Everything it has said so far."""
        return self.log_path.read_text(encoding="utf-8")


class Deployment:
    """A decode and a prefill daemon, their pools, and an engine's connection to each. A context manager."""

    def __init__(
        self,
        folder: Path,
        plane: str,
        extra: Sequence[str] = (),
        *,
        ring_bytes: int = RING_BYTES,
        decode: Sequence[str] = (),
        prefill: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.segments = folder / "shm"
        self.segments.mkdir()
        self.runtime = folder / "run"
        port = free_port_base(2 * DECODE_TP)
        self.endpoints = [f"tcp://127.0.0.1:{port + rank}" for rank in range(DECODE_TP)]
        common = ["--chunk-tokens", f"{CHUNK_TOKENS}", "--planes", plane, "--shm-dir", f"{self.segments}"]
        common += ["--runtime-dir", f"{self.runtime}", "--log-level", "debug", "--http-port", "0", *extra]
        ports = ["--base-port", f"{port}", "--data-base-port", f"{port + DECODE_TP}"]
        own = ["--ranks", f"0-{DECODE_TP - 1}", *ports, "--ring-bytes", f"{ring_bytes}", "--decode-id", "d"]
        self.decode = Daemon("decode_service", folder, [*common, *own, *decode])
        self.prefill = Daemon(
            "prefill_service", folder, [*common, "--ranks", f"0-{PREFILL_TP - 1}", "--prefill-id", "p", *prefill]
        )
        self.decode_pools = self._pools("decode", DECODE_TP, DECODE_PAGE)
        self.prefill_pools = self._pools("prefill", PREFILL_TP, PREFILL_PAGE)
        for rank, pool in enumerate(self.prefill_pools):
            pool.memory[:] = np.frombuffer(Random(rank).randbytes(pool.memory.nbytes), np.uint8)
        self.decode_engine = DecodeEngineClient(self.runtime / "d.engine.sock")
        self.prefill_engine = PrefillEngineClient(self.runtime / "p.engine.sock")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
        if error is not None:
            sys.stderr.write(f"--- decode\n{self.decode.log[-8000:]}\n--- prefill\n{self.prefill.log[-8000:]}\n")

    def start(self) -> Self:
        """Start both daemons and register every pool; if that fails nothing is left running."""
        try:
            self.decode.start()
            self.prefill.start()
            self.register_decode()
            self.register_prefill()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Kill what runs, close what is open, remove what was made."""
        self.decode_engine.close()
        self.prefill_engine.close()
        self.decode.kill()
        self.prefill.kill()
        for pool in (*self.decode_pools, *self.prefill_pools):
            pool.close()
            pool.unlink()

    def register_decode(self) -> None:
        """Register the decode pools, as an engine does after every start of its daemon."""
        calls = [self.decode_engine.register_pool(rank, pool.descriptor) for rank, pool in enumerate(self.decode_pools)]
        for call in calls:
            call.result(WAIT_S)

    def register_prefill(self) -> None:
        """Register the prefill pools."""
        calls = [self.prefill_engine.register_pool(rank, pool.descriptor) for rank, pool in enumerate(self.prefill_pools)]
        for call in calls:
            call.result(WAIT_S)

    def expect(self, room: str, num_tokens: int, destination: PageRun) -> None:
        """Register a room on every decode rank."""
        calls = [self.decode_engine.register_room(room, rank, "p", num_tokens, destination) for rank in range(DECODE_TP)]
        for call in calls:
            call.result(WAIT_S)

    def submit(self, room: str, num_tokens: int, source: PageRun, *, finish: bool = True) -> None:
        """Hand a whole room over on every prefill rank."""
        calls = [
            self.prefill_engine.submit_chunk(room, rank, self.endpoints, 0, num_tokens, source) for rank in range(PREFILL_TP)
        ]
        if finish:
            calls += [self.prefill_engine.finish_room(room, rank) for rank in range(PREFILL_TP)]
        for call in calls:
            call.result(WAIT_S)

    def outcomes(self, room: str) -> list[RoomOutcome]:
        """Wait for the room on every rank: decode ranks first."""
        decode = [self.decode_engine.wait_room(room, rank) for rank in range(DECODE_TP)]
        prefill = [self.prefill_engine.wait_room(room, rank) for rank in range(PREFILL_TP)]
        return [future.result(WAIT_S) for future in (*decode, *prefill)]

    def differences(self, num_tokens: int, source: PageRun, destination: PageRun) -> int:
        """How many bytes on the decode ranks are not what the prefill ranks hold."""
        wrong = 0
        for rank, pool in enumerate(self.decode_pools):
            sender = self.prefill_pools[rank // 2]
            for layer in range(LAYERS):
                for tensor in range(2):
                    sent = _tokens(sender, layer, tensor, source, num_tokens, PREFILL_PAGE)[:, rank % 2]
                    got = _tokens(pool, layer, tensor, destination, num_tokens, DECODE_PAGE)[:, 0]
                    wrong += int(np.count_nonzero(sent != got))
        return wrong

    def _pools(self, side: str, tp_size: int, page_size: int) -> list[KvPool]:
        layouts = [arrange_pool(rank_layout(rank, tp_size), page_size, PAGES) for rank in range(tp_size)]
        return [KvPool.create(self.folder / f"{side}-{rank}.pool", layout) for rank, layout in enumerate(layouts)]


def _tokens(pool: KvPool, layer: int, tensor: int, run: PageRun, num_tokens: int, page_size: int) -> Bytes:
    """``[tokens, heads, width]`` of a room."""
    at = np.arange(run.first_token, run.first_token + num_tokens)
    rows: Bytes = pool.view(layer, tensor)[np.array(run.pages)[at // page_size], at % page_size]
    return rows
