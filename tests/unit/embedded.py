"""Both services inside the test's own process: real sockets, real rings, real machines, one rank each.

Engines that embed the services do the same. Pools lie in private memory; the model has two layers of two heads.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import zmq

from decode_service.config import DecodeServiceConfig
from decode_service.server import DecodeStagingServer
from decode_service.surroundings import MakeHandler, MakeScatter, default_handler, default_scatter
from lab.ports import free_port_base
from prefill_service.client import PrefillStagingClient
from prefill_service.config import PrefillServiceConfig
from protocol.codec import decode_to_prefill, encode
from protocol.layout import ModelLayout, PageRun, RankLayout, TensorSpec
from protocol.messages import Subscribe, ToDecode, ToPrefill
from runtime.pool import KvPool
from runtime.pool_layout import arrange_pool
from runtime.room_waiters import RoomOutcome
from runtime.security import ClientSecurity

WAIT_S = 30
CHUNK_TOKENS = 8
PAGE_SIZE = 4
PAGES = 16
TOKEN_BYTES = 2 * 2 * 2 * 32
"""Two layers, K and V, two heads of 32 bytes."""

LAYOUT = RankLayout(
    ModelLayout(tuple((TensorSpec("k", 2, 32, "uint8"), TensorSpec("v", 2, 32, "uint8")) for _ in range(2))), 0, 1, 0, 1, (0, 2)
)
RUN = PageRun(tuple(range(PAGES)))


def private_pool(seed: int | None = None) -> KvPool:
    """A pool in memory of this process, zeroed or filled at random."""
    pool = KvPool.over(bytearray(TOKEN_BYTES * PAGE_SIZE * PAGES), arrange_pool(LAYOUT, PAGE_SIZE, PAGES))
    if seed is not None:
        pool.memory[:] = np.random.default_rng(seed).integers(0, 256, pool.memory.nbytes, np.uint8)
    return pool


def decode_config(folder: Path, **changes: Any) -> DecodeServiceConfig:
    """A decode daemon of one rank on free ports, with a ring of two chunks."""
    (folder / "shm").mkdir(exist_ok=True)
    port = free_port_base(2)
    settings = {
        "base_port": port,
        "data_base_port": port + 1,
        "ring_bytes": 2 * CHUNK_TOKENS * TOKEN_BYTES,
        "chunk_tokens": CHUNK_TOKENS,
        "shm_dir": folder / "shm",
        "runtime_dir": folder / "run",
        "drain_s": 5.0,
        "http_port": 0,
    }
    return DecodeServiceConfig(**{**settings, **changes})


def prefill_config(folder: Path, **changes: Any) -> PrefillServiceConfig:
    """A prefill daemon of one rank."""
    settings = {
        "chunk_tokens": CHUNK_TOKENS,
        "shm_dir": folder / "shm",
        "runtime_dir": folder / "run",
        "drain_s": 5.0,
        "http_port": 0,
    }
    return PrefillServiceConfig(**{**settings, **changes})


def leftovers(folder: Path) -> list[str]:
    """Files that a stopped service should not have left."""
    return sorted(path.name for name in ("shm", "run") if (folder / name).is_dir() for path in (folder / name).iterdir())


class EmbeddedPair:
    """A server and a client that move rooms between two private pools. A context manager that proves a clean end."""

    def __init__(
        self,
        folder: Path,
        planes: Sequence[str] = ("shm",),
        *,
        make_handler: MakeHandler = default_handler,
        make_scatter: MakeScatter = default_scatter,
        decode: Mapping[str, Any] | None = None,
        prefill: Mapping[str, Any] | None = None,
    ) -> None:
        self._folder = folder
        config = decode_config(folder, planes=tuple(planes), **(decode or {}))
        self.server = DecodeStagingServer(config, make_handler=make_handler, make_scatter=make_scatter)
        self.client = PrefillStagingClient(prefill_config(folder, planes=tuple(planes), **(prefill or {})))
        self.endpoint = f"tcp://127.0.0.1:{config.control_port(0)}"
        self.source, self.destination = private_pool(seed=1), private_pool()

    def __enter__(self) -> Self:
        self.server.start()
        self.client.start()
        self.server.engine.attach_pool(0, self.destination).result(WAIT_S)
        self.client.engine.attach_pool(0, self.source).result(WAIT_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.client.request_stop()
        codes = (self.client.join(), self._stop_server())
        if error is None:
            assert codes == (0, 0)
            assert leftovers(self._folder) == []

    def carry(self, room: str, num_tokens: int) -> tuple[RoomOutcome, RoomOutcome]:
        """Move a room; how it ended on each side, decode first."""
        self.server.engine.register_room(room, 0, "prefill", num_tokens, RUN).result(WAIT_S)
        self.submit(room, num_tokens)
        decode, prefill = self.server.engine.wait_room(room, 0), self.client.engine.wait_room(room, 0)
        return decode.result(WAIT_S), prefill.result(WAIT_S)

    def submit(self, room: str, num_tokens: int) -> None:
        """Hand a whole room over to the prefill side."""
        self.client.engine.submit_chunk(room, 0, [self.endpoint], 0, num_tokens, RUN).result(WAIT_S)
        self.client.engine.finish_room(room, 0).result(WAIT_S)

    def _stop_server(self) -> int:
        self.server.request_stop()
        return self.server.join()


class Stranger:
    """A bare prefill peer that says exactly what a test wants. Close it."""

    def __init__(self, endpoint: str, security: ClientSecurity | None = None) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._dealer = self._context.socket(zmq.DEALER)
        self._pushes: dict[str, zmq.Socket[bytes]] = {}
        self._endpoint, self._security = endpoint, security
        self._connect(self._dealer, endpoint)

    def send(self, *frames: bytes) -> None:
        """Send raw frames."""
        self._dealer.send_multipart(frames)

    def push(self, endpoint: str, *frames: bytes) -> None:
        """Send raw frames to a data socket."""
        if endpoint not in self._pushes:
            self._pushes[endpoint] = self._context.socket(zmq.PUSH)
            self._connect(self._pushes[endpoint], endpoint)
        self._pushes[endpoint].send_multipart(frames)

    def say(self, message: ToDecode) -> None:
        """Send a message."""
        self.send(*encode(message))

    def hear(self) -> ToPrefill:
        """The next message from the decode rank."""
        assert self._dealer.poll(WAIT_S * 1000), "nothing came"
        return decode_to_prefill(self._dealer.recv_multipart())

    def close(self) -> None:
        """Close the sockets."""
        for socket in (self._dealer, *self._pushes.values()):
            socket.close()
        self._context.term()

    def _connect(self, socket: "zmq.Socket[bytes]", endpoint: str) -> None:
        socket.linger = 0
        if self._security is not None:
            self._security.protect(socket, self._endpoint)
        socket.connect(endpoint)


def subscribe(config: DecodeServiceConfig, **changes: Any) -> Subscribe:
    """What a prefill of the same layout would open with."""
    message = Subscribe(
        attempt=1,
        versions=(1, 1),
        features=(),
        prefill_id="stranger",
        group="strangers",
        incarnation=os.getpid(),
        decode_rank=0,
        chunk_tokens=config.chunk_tokens,
        layout=LAYOUT,
        planes=("zmq",),
        host_id="elsewhere",
    )
    return replace(message, **changes)
