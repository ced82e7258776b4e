"""Mooncake's Transfer Engine as an engine of one-sided writes over TCP: the one place that knows its Python binding.

It finds its peers by itself (``P2PHANDSHAKE``): a target is ``host:port`` of its engine, a port that is new with every engine.
It listens on every interface without authentication whatever host it is given, and whoever reaches it may read and write the
memory registered with it. So this plane is used only where it was asked for by name.
"""

import os
import re
from importlib import import_module
from typing import Any

from runtime.one_sided import OneSidedError, RegionDescriptor, described_memory

_SEGMENT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]{1,253}):([1-9]\d{0,4})")
_RUNNING, _DONE = 0, 1


def load_binding() -> Any:  # noqa: ANN401 - an untyped extension module; the classes below are its typed face
    """The binding. Raises ``ImportError``, also where a shared library of the system is missing."""
    return import_module("mooncake.engine")


def prepare_environment() -> None:
    """Set what must hold, and defaults for what the operator has not set. Before the first engine of the process."""
    # Without the pool every write opens a connection, and a busy host runs out of ports.
    os.environ["MC_TCP_ENABLE_CONNECTION_POOL"] = "1"
    os.environ.setdefault("MC_LOG_LEVEL", "ERROR")
    os.environ.setdefault("GLOG_minloglevel", "2")
    os.environ.setdefault("MC_HANDSHAKE_CONNECT_TIMEOUT", "5")


class MooncakeEngine:
    """One engine, reachable at ``host``. Raises ``OneSidedError`` if it cannot be made."""

    def __init__(self, host: str) -> None:
        prepare_environment()
        self._engine = load_binding().TransferEngine()
        status = self._engine.initialize(host, "P2PHANDSHAKE", "tcp", "")
        if status:
            raise OneSidedError(f"Mooncake cannot start an engine at {host!r} (status {status}); its own log says why")
        self.segment = f"{host}:{self._engine.get_rpc_port()}"

    def register(self, address: int, num_bytes: int) -> None:
        """Register memory of this process. Raises ``OneSidedError``."""
        status = self._engine.register_memory(address, num_bytes)
        if status:
            raise OneSidedError(f"Mooncake cannot register {num_bytes} bytes (status {status})")

    def first_address(self, segment: str) -> int:
        """Shake hands with another engine and return the address of its first memory; 0 if it cannot be reached. May block."""
        try:
            return int(self._engine.get_first_buffer_address(segment))
        except (RuntimeError, IndexError):
            return 0

    def start(self, segment: str, local: int, remote: int, num_bytes: int) -> "MooncakeTransfer":
        """Start a write. Raises ``OneSidedError``."""
        handle = int(self._engine.transfer_submit_write(segment, local, remote, num_bytes))
        if handle <= 0:
            raise OneSidedError(f"Mooncake cannot start a write to {segment} (status {handle})")
        return MooncakeTransfer(self, handle)

    def status(self, handle: int) -> int:
        """How a write stands. The record of one that has ended is gone after this."""
        return int(self._engine.transfer_check_status(handle))

    def close(self) -> None:
        """End the engine: its threads, its listeners and its connections."""
        self._engine = None


class MooncakeTransfer:
    """One write of one engine."""

    def __init__(self, engine: MooncakeEngine, handle: int) -> None:
        self._engine = engine
        self._handle = handle

    def is_done(self) -> bool:
        """Whether the target has placed and acknowledged all bytes. Raises ``OneSidedError`` if the write failed."""
        status = self._engine.status(self._handle)
        if status not in {_RUNNING, _DONE}:
            raise OneSidedError(f"Mooncake: the write ended with status {status}")
        return status == _DONE

    def abandon(self) -> None:
        """Nothing can be taken back: the engine frees the record of a write only when that is seen to have ended."""


class MooncakeTarget:
    """Memory that other engines may write, under an engine of its own: stale descriptions lead to a port that is gone."""

    def __init__(self, host: str, address: int, num_bytes: int) -> None:
        self._engine = MooncakeEngine(host)
        self._engine.register(address, num_bytes)
        segment = self._engine.segment
        self._descriptor: RegionDescriptor = {"segment": segment, "address": address, "num_bytes": num_bytes}

    def descriptor(self) -> RegionDescriptor:
        """Engine, address and length."""
        return self._descriptor

    def close(self) -> None:
        """End the engine."""
        self._engine.close()


class MooncakeInitiator:
    """This process as a writer. Nobody writes here, so it goes by a loopback name."""

    def __init__(self) -> None:
        self._engine = MooncakeEngine("127.0.0.1")

    def register(self, address: int, num_bytes: int) -> None:
        """Let writes start from this memory. Raises ``OneSidedError``."""
        self._engine.register(address, num_bytes)

    def connect(self, region: RegionDescriptor, num_bytes: int) -> "MooncakeLink":
        """Shake hands with the target. Blocks for a minute if the target is stopped. Raises ``OneSidedError``."""
        address, segment = described_memory(region, num_bytes), region.get("segment")
        if not isinstance(segment, str) or _SEGMENT.fullmatch(segment) is None:
            raise OneSidedError(f"segment: expected a host and a port, not {segment!r}")
        found = self._engine.first_address(segment)
        if found != address:
            raise OneSidedError(f"segment: expected an engine at {segment} with memory at {address:#x}, found {found:#x}")
        return MooncakeLink(self._engine, segment, address)

    def close(self) -> None:
        """End the engine."""
        self._engine.close()


class MooncakeLink:
    """One target's memory."""

    def __init__(self, engine: MooncakeEngine, segment: str, address: int) -> None:
        self._engine = engine
        self._segment = segment
        self._address = address

    def start(self, address: int, offset: int, num_bytes: int) -> MooncakeTransfer:
        """Write from our memory to byte ``offset`` of the target's. Any thread. Raises ``OneSidedError``."""
        return self._engine.start(self._segment, address, self._address + offset, num_bytes)

    def close(self) -> None:
        """Nothing is kept but what the engine itself remembers."""
