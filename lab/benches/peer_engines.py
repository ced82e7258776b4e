"""NIXL and Mooncake as their users run them: their own Python interfaces with their own defaults, not this project's adapters.

Each engine lives in a process of its own and writes lists of memory ranges into another process's registered memory. Nothing
here is imported unless the packages are installed (extras ``nixl`` and ``mooncake``).
"""

import contextlib
import os
import secrets
import time
from importlib import import_module
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Ranges = NDArray[np.uint64]
"""Rows of ``(local address, remote address, bytes)``."""
PATIENCE_S = 60.0
MOONCAKE_BATCH = 1024
"""Ranges of one batch: it refuses a few thousand."""


class PeerEngine(Protocol):
    """One end of a peer."""

    def description(self) -> Any:  # noqa: ANN401 - whatever the engine wants to be told
        """What the other end must know of this one."""

    def connect(self, description: Any) -> None:  # noqa: ANN401 - as above
        """Learn of the other end."""

    def write(self, ranges: Ranges) -> None:
        """Write every range and wait until all have arrived."""

    def turn(self) -> None:
        """Do what a target has to do by itself while others write."""


class NixlEnd:
    """NIXL by its wrapper class. ``polled`` leaves out the progress thread, which otherwise takes a core."""

    def __init__(self, tls: str, address: int, num_bytes: int, *, polled: bool) -> None:
        os.environ.update({"UCX_NET_DEVICES": "lo", "UCX_LOG_LEVEL": "error", "NIXL_LOG_LEVEL": "ERROR"})
        if tls:
            os.environ["UCX_TLS"] = tls
        wrapper = nixl_wrapper()
        config = wrapper.nixl_agent_config(enable_prog_thread=not polled, backends=["UCX"])
        self._agent = wrapper.nixl_agent(secrets.token_hex(8), config)
        self._agent.register_memory([(address, num_bytes, 0, "")], "DRAM")
        self._polled = polled
        self._peer = ""

    def description(self) -> bytes:
        """The agent's metadata."""
        return bytes(self._agent.get_agent_metadata())

    def connect(self, description: bytes) -> None:
        """Learn of the other agent."""
        name = self._agent.add_remote_agent(description)
        self._peer = name.decode() if isinstance(name, bytes) else str(name)

    def write(self, ranges: Ranges) -> None:
        """One request for all ranges, asked after until it is done."""
        agent, zeros = self._agent, np.zeros(len(ranges), np.uint64)
        local = agent.get_xfer_descs(np.ascontiguousarray(np.stack((ranges[:, 0], ranges[:, 2], zeros), axis=1)), "DRAM")
        remote = agent.get_xfer_descs(np.ascontiguousarray(np.stack((ranges[:, 1], ranges[:, 2], zeros), axis=1)), "DRAM")
        handle = agent.initialize_xfer("WRITE", local, remote, self._peer)
        state, until = agent.transfer(handle), time.monotonic() + PATIENCE_S
        while state != "DONE":
            if state == "ERR" or time.monotonic() > until:
                raise RuntimeError(f"NIXL: a write ended with {state}")
            if not self._polled:
                time.sleep(0)
            state = agent.check_xfer_state(handle)
        agent.release_xfer_handle(handle)

    def turn(self) -> None:
        """Without a progress thread nothing arrives unless this is called."""
        if self._polled:
            self._agent.get_new_notifs()


class MooncakeEnd:
    """Mooncake's Transfer Engine over TCP, with its connection pool."""

    def __init__(self, address: int, num_bytes: int) -> None:
        os.environ.update({"MC_TCP_ENABLE_CONNECTION_POOL": "1", "MC_LOG_LEVEL": "ERROR", "GLOG_minloglevel": "2"})
        self._engine = import_module("mooncake.engine").TransferEngine()
        if self._engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""):
            raise RuntimeError("Mooncake cannot start an engine")
        if self._engine.register_memory(address, num_bytes):
            raise RuntimeError("Mooncake cannot register memory")
        self._segment = ""

    def description(self) -> str:
        """The engine's address."""
        return f"127.0.0.1:{self._engine.get_rpc_port()}"

    def connect(self, description: str) -> None:
        """Remember where the other engine is."""
        self._segment = description

    def write(self, ranges: Ranges) -> None:
        """As few batches as it takes."""
        for start in range(0, len(ranges), MOONCAKE_BATCH):
            columns = (ranges[start : start + MOONCAKE_BATCH, column].tolist() for column in range(3))
            if self._engine.batch_transfer_sync_write(self._segment, *columns):
                raise RuntimeError("Mooncake: a write failed")

    def turn(self) -> None:
        """Nothing: its own threads receive."""


def nixl_wrapper() -> Any:  # noqa: ANN401 - an untyped module
    """The wrapper module of whichever build is installed. Raises ``ImportError``."""
    with contextlib.suppress(ImportError):
        return import_module("nixl_cu13._api")
    return import_module("nixl_cu12._api")


def missing_peer(name: str) -> str | None:
    """Why a peer cannot be measured here, or ``None``."""
    try:
        _ = nixl_wrapper() if name == "nixl" else import_module("mooncake.engine")
    except ImportError as error:
        return f"{name} is not installed ({error})"
    return None
