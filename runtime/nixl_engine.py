"""NIXL as an engine of one-sided writes: the one place that knows its Python bindings.

The bindings are used directly instead of the package's wrapper class, for two reasons. The wrapper fixes the delay of the
progress thread at zero, which burns a core per agent; with the delay set here an idle agent costs nothing, and UCX still wakes
at once for a message. And the wrapper's serialiser is pickle, which must never see a peer's bytes; NIXL has its own form.

Same-host copies by process id (UCX ``cma``) are left out unless the operator sets ``UCX_TLS``: a process id says nothing across
lives and namespaces, and on one host the ``shm`` plane does that job with proof.
"""

import os
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

from runtime.one_sided import OneSidedError, RegionDescriptor, described_memory

BINDINGS = ("nixl_cu12._bindings", "nixl_cu13._bindings")
"""The same library, built for two versions of CUDA; neither is needed for memory of the host."""
PROGRESS_DELAY_US = 10_000
MAX_METADATA_BYTES = 3072


def load_bindings() -> Any:  # noqa: ANN401 - an untyped extension module; the classes below are its typed face
    """The bindings of whichever build is installed. Raises ``ImportError`` with the reason of the last one."""
    reason: ImportError = ModuleNotFoundError("no build of NIXL is installed")
    for name in BINDINGS:
        try:
            return import_module(name)
        except ImportError as error:
            if error.name not in {name, name.partition(".")[0]}:
                reason = error
    raise reason


def prepare_environment(devices: str) -> None:
    """Give UCX and NIXL our defaults for whatever the operator has not set. Before the first agent of the process.

    ``devices`` names the network devices to use, such as ``mlx5_0:1`` or ``eth0``. Without any, loopback alone is used: UCX
    listens on every interface otherwise, and knows no authentication.
    """
    if devices:
        os.environ["UCX_NET_DEVICES"] = devices
    defaults = {"UCX_TLS": "^cma", "UCX_NET_DEVICES": "lo", "UCX_LOG_LEVEL": "error", "NIXL_LOG_LEVEL": "ERROR"}
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


class NixlAgent:
    """One agent with the UCX backend. Any thread may use it. Raises ``OneSidedError`` if it cannot be made."""

    def __init__(self, name: str) -> None:
        self._bindings = bindings = load_bindings()
        self._errors: tuple[type[Exception], ...] = tuple(
            kind for kind in vars(bindings).values() if isinstance(kind, type) and issubclass(kind, Exception)
        )
        self._all_errors: tuple[type[Exception], ...] = (*self._errors, OneSidedError, UnicodeDecodeError)
        config = bindings.nixlAgentConfig()
        config.useProgThread = True
        config.pthrDelay = PROGRESS_DELAY_US
        config.syncMode = bindings.NIXL_THREAD_SYNC_STRICT
        try:
            self._live = bindings.nixlAgent(name, config)
            self._backend = self._live.createBackend("UCX", {"ucx_error_handling_mode": "peer"})
        except self._errors as error:
            raise OneSidedError(f"NIXL cannot start an agent over UCX: {_text(error)}") from error

    @property
    def _agent(self) -> Any:  # noqa: ANN401 - as above
        if self._live is None:
            raise OneSidedError("the agent has ended")
        return self._live

    def register(self, address: int, num_bytes: int) -> None:
        """Register memory of this process. Raises ``OneSidedError``."""
        memory = self._bindings.nixlRegDList(self._bindings.DRAM_SEG, [(address, num_bytes, 0, "")])
        try:
            self._agent.registerMem(memory, [self._backend])
        except self._errors as error:
            raise OneSidedError(f"NIXL cannot register {num_bytes} bytes: {_text(error)}") from error

    def metadata(self) -> bytes:
        """How others find this agent and its memory."""
        return bytes(self._agent.getLocalMD())

    def load(self, metadata: bytes) -> str:
        """Learn of another agent, and return its name. Raises ``OneSidedError``."""
        try:
            return bytes(self._agent.loadRemoteMD(metadata)).decode("ascii")
        except self._all_errors as error:
            raise OneSidedError(f"metadata: expected that of an agent that can be reached, but {_text(error)}") from error

    def unload(self, name: str) -> None:
        """Forget another agent."""
        try:
            self._agent.invalidateRemoteMD(name)
        except self._all_errors:
            return

    def start(self, local: int, remote: int, num_bytes: int, peer: str) -> int:
        """Start a write and return its handle. Raises ``OneSidedError``."""
        bindings = self._bindings
        source = bindings.nixlXferDList(bindings.DRAM_SEG, [(local, num_bytes, 0)])
        target = bindings.nixlXferDList(bindings.DRAM_SEG, [(remote, num_bytes, 0)])
        handle = None
        try:
            handle = self._agent.createXferReq(bindings.NIXL_WRITE, source, target, peer, "", [self._backend])
            self._agent.postXferReq(handle)
        except self._errors as error:
            if handle is not None:
                self.release(handle)
            raise OneSidedError(f"NIXL cannot start a write: {_text(error)}") from error
        return int(handle)

    def is_done(self, handle: int) -> bool:
        """Whether a write is complete. Raises ``OneSidedError`` if it failed."""
        try:
            status = self._agent.getXferStatus(handle)
        except self._errors as error:
            raise OneSidedError(f"NIXL: {_text(error)}") from error
        if status == self._bindings.NIXL_IN_PROG:
            return False
        if status != self._bindings.NIXL_SUCCESS:
            raise OneSidedError(f"NIXL: the write ended with {status}")
        return True

    def release(self, handle: int) -> None:
        """Give a write's record back; one that still runs is cancelled as far as UCX can."""
        try:
            self._agent.releaseXferReq(handle)
        except self._all_errors:
            # It cannot be cancelled now. The agent keeps the record until its own end.
            return

    def close(self) -> None:
        """End the agent: its progress thread, its listener and its connections."""
        self._live = None


class NixlTransfer:
    """One write of one agent."""

    def __init__(self, agent: NixlAgent, handle: int, failed: Callable[[], None]) -> None:
        self._agent = agent
        self._handle = handle
        self._failed = failed

    def is_done(self) -> bool:
        """Whether the bytes are visible to the target. Raises ``OneSidedError`` if the write failed."""
        try:
            done = self._agent.is_done(self._handle)
        except OneSidedError:
            self.abandon()
            raise
        if done:
            self._agent.release(self._handle)
        return done

    def abandon(self) -> None:
        """Cancel it as far as UCX can, and take its connection for broken."""
        self._failed()
        self._agent.release(self._handle)


class NixlTarget:
    """Memory that other agents may write, under an agent of its own: it ends with the memory, and knows nothing else."""

    def __init__(self, name: str, address: int, num_bytes: int) -> None:
        self._agent = NixlAgent(name)
        self._agent.register(address, num_bytes)
        metadata = self._agent.metadata()
        if len(metadata) > MAX_METADATA_BYTES:
            advice = "name fewer devices in UCX_NET_DEVICES"
            raise OneSidedError(f"the metadata takes {len(metadata)} bytes, more than {MAX_METADATA_BYTES}: {advice}")
        self._descriptor: RegionDescriptor = {"agent": name, "metadata": metadata, "address": address, "num_bytes": num_bytes}

    def descriptor(self) -> RegionDescriptor:
        """Agent name, metadata, address and length."""
        return self._descriptor

    def close(self) -> None:
        """End the agent."""
        self._agent.close()


class NixlPeer:
    """Another agent as the links of one initiator share it. After a failure it is learnt of anew, as its connection is gone."""

    def __init__(self, agent: NixlAgent, name: str, metadata: bytes) -> None:
        self._agent = agent
        self.name = name
        self.metadata = metadata
        self.links = 0
        self._broken = False
        self._guard = threading.Lock()

    def start(self, local: int, remote: int, num_bytes: int) -> NixlTransfer:
        """Start a write. Any thread. Raises ``OneSidedError``."""
        with self._guard:
            if self._broken:
                self._agent.unload(self.name)
                self._agent.load(self.metadata)
                self._broken = False
        try:
            return NixlTransfer(self._agent, self._agent.start(local, remote, num_bytes, self.name), self.failed)
        except OneSidedError:
            self.failed()
            raise

    def failed(self) -> None:
        """A write failed: the connection may be gone for good."""
        self._broken = True


class NixlInitiator:
    """This process as a writer. ``connect`` and ``close`` of links from any thread."""

    def __init__(self, name: str) -> None:
        self._agent = NixlAgent(name)
        self._peers: dict[str, NixlPeer] = {}
        self._guard = threading.Lock()

    def register(self, address: int, num_bytes: int) -> None:
        """Let writes start from this memory. Raises ``OneSidedError``."""
        self._agent.register(address, num_bytes)

    def connect(self, region: RegionDescriptor, num_bytes: int) -> "NixlLink":
        """Learn of the target's agent, unless a link to it is open already. Raises ``OneSidedError``."""
        address = described_memory(region, num_bytes)
        name, metadata = region.get("agent"), region.get("metadata")
        if not isinstance(name, str) or not isinstance(metadata, bytes) or not 0 < len(metadata) <= MAX_METADATA_BYTES:
            raise OneSidedError(f"agent, metadata: expected a name and 1 to {MAX_METADATA_BYTES} bytes")
        with self._guard:
            peer = self._peers.get(name) or self._learn(name, metadata)
            if peer.metadata != metadata:
                raise OneSidedError(f"metadata: expected that of agent {name!r} as it was before")
            peer.links += 1
        return NixlLink(self, peer, address)

    def forget(self, peer: NixlPeer) -> None:
        """A link is closed: with the last one its agent is forgotten."""
        with self._guard:
            peer.links -= 1
            if not peer.links:
                del self._peers[peer.name]
                self._agent.unload(peer.name)

    def close(self) -> None:
        """End the agent."""
        self._agent.close()

    def _learn(self, name: str, metadata: bytes) -> NixlPeer:
        loaded = self._agent.load(metadata)
        if loaded != name:
            if loaded not in self._peers:
                self._agent.unload(loaded)
            raise OneSidedError(f"agent: expected {loaded!r} as the metadata says, not {name!r}")
        peer = self._peers[name] = NixlPeer(self._agent, name, metadata)
        return peer


class NixlLink:
    """One session's way to one target's memory."""

    def __init__(self, initiator: NixlInitiator, peer: NixlPeer, address: int) -> None:
        self._initiator = initiator
        self._peer = peer
        self._address = address

    def start(self, address: int, offset: int, num_bytes: int) -> NixlTransfer:
        """Write from our memory to byte ``offset`` of the target's. Any thread. Raises ``OneSidedError``."""
        return self._peer.start(address, self._address + offset, num_bytes)

    def close(self) -> None:
        """Forget the target's agent if no other link leads to it. Once."""
        self._initiator.forget(self._peer)


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]
