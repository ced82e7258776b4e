"""The real engines behind the planes: idle for nothing, honest about what they cannot do, learnt of anew after a failure."""

import mmap
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from runtime import nixl_engine
from runtime.mooncake_engine import MooncakeInitiator, MooncakeTarget
from runtime.nixl_engine import NixlInitiator, NixlTarget
from runtime.one_sided import Initiator, Link, OneSidedError, RegionDescriptor, Target, Transfer, address_of
from runtime.planes import ONE_SIDED_PLANES, plane_obstacle
from tests.conformance.planes import PLANES

SIZE = 1 << 16
PATIENCE = 10_000
NAMED = [plane for plane in PLANES if plane in ONE_SIDED_PLANES]


class Ends:
    """A target and an initiator in one process, each with its memory."""

    def __init__(self, plane: str) -> None:
        self.plane = plane
        self.source, self.sink = memoryview(mmap.mmap(-1, SIZE)), memoryview(mmap.mmap(-1, SIZE))
        self.source[:] = secrets.token_bytes(SIZE)
        nixl_engine.prepare_environment("")
        self.initiator: Initiator = NixlInitiator(secrets.token_hex(8)) if plane == "nixl" else MooncakeInitiator()
        self.initiator.register(address_of(self.source), SIZE)
        self.target = self.new_target()

    def new_target(self) -> Target:
        """Another engine for the same memory."""
        if self.plane == "nixl":
            return NixlTarget(secrets.token_hex(8), address_of(self.sink), SIZE)
        return MooncakeTarget("127.0.0.1", address_of(self.sink), SIZE)

    def connect(self, region: RegionDescriptor | None = None) -> Link:
        """Open the target's description, or another one."""
        return self.initiator.connect(region or self.target.descriptor(), SIZE)

    def write(self, link: Link, offset: int, num_bytes: int) -> None:
        """Write from the same place of the source, and wait for the engine's word."""
        wait(link.start(address_of(self.source) + offset, offset, num_bytes))

    def close(self) -> None:
        """End both engines."""
        self.initiator.close()
        self.target.close()


def wait(transfer: Transfer) -> None:
    """Wait until the engine reports a write as complete. Raises ``OneSidedError``."""
    for _ in range(PATIENCE):
        if transfer.is_done():
            return
        threading.Event().wait(0.001)
    pytest.fail("the write was never reported as complete")


@pytest.fixture(params=NAMED)
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    """Each engine in turn."""
    made = Ends(request.param)
    yield made
    made.close()


@pytest.mark.parametrize("plane", NAMED)
def test_the_plane_works_here(plane: str) -> None:
    """Nothing is missing: neither a package of Python nor one of Debian."""
    assert plane_obstacle(plane) is None


def test_a_write_changes_exactly_its_bytes(ends: Ends) -> None:
    """Complete means that the target's memory has them."""
    link = ends.connect()
    ends.write(link, 1000, 5000)
    assert ends.sink[1000:6000] == ends.source[1000:6000]
    assert not any(ends.sink[:1000])
    assert not any(ends.sink[6000:])
    link.close()


def test_idle_engines_cost_nothing(ends: Ends) -> None:
    """Both ends together use next to no processor time while nothing moves."""
    link = ends.connect()
    ends.write(link, 0, SIZE)
    before, since = time.process_time(), time.monotonic()
    threading.Event().wait(1.0)
    assert (time.process_time() - before) / (time.monotonic() - since) < 0.1
    link.close()


def test_a_write_beyond_the_registered_memory_fails(ends: Ends) -> None:
    """The engine says so, and the next write through the same link goes on."""
    link = ends.connect()
    with pytest.raises(OneSidedError):
        ends.write(link, SIZE - 100, 200)
    ends.write(link, 0, 4096)
    assert ends.sink[:4096] == ends.source[:4096]
    link.close()


def test_two_links_to_one_target_are_independent(ends: Ends) -> None:
    """Closing one of them, as a session that is over does, does not touch the other."""
    first, second = ends.connect(), ends.connect()
    ends.write(first, 0, 100)
    first.close()
    ends.write(second, 200, 100)
    assert ends.sink[200:300] == ends.source[200:300]
    second.close()


def test_a_target_that_is_gone_cannot_be_written(ends: Ends) -> None:
    """Neither through an open link nor by connecting again: its description leads nowhere."""
    link, stale = ends.connect(), ends.target.descriptor()
    ends.write(link, 0, 100)
    ends.target.close()
    ends.target = ends.new_target()
    with pytest.raises(OneSidedError):
        ends.write(link, 0, 4096)
    link.close()
    with pytest.raises(OneSidedError):
        ends.write(ends.connect(stale), 0, 4096)


def test_forged_descriptions_do_not_open(ends: Ends) -> None:
    """Another length, another agent's name, metadata of nobody, an engine that is elsewhere: each is an error of ours."""
    good = ends.target.descriptor()
    changes: list[dict[str, int | str | bytes]] = [
        {"num_bytes": 1},
        {"agent": "x", "segment": "x"},
        {"metadata": b"y", "agent": "y", "segment": "127.0.0.1:1"},
    ]
    for change in changes:
        with pytest.raises(OneSidedError):
            ends.connect({**good, **change})
    link = ends.connect()
    ends.write(link, 0, 10)
    link.close()


LISTENERS = """
import os
def listeners():
    own = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}")}
    rows = [line.split() for name in ("tcp", "tcp6") for line in open(f"/proc/self/net/{name}").readlines()[1:]]
    return sorted({row[1].split(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own})
"""
START = {
    "nixl": "from runtime.nixl_engine import *; prepare_environment(''); agent = NixlAgent('a')",
    "mooncake": "from runtime.mooncake_engine import *; engine = MooncakeEngine('127.0.0.1')",
}
LOOPBACK, EVERYWHERE = "0100007F", "0" * 8


@pytest.mark.parametrize("plane", NAMED)
def test_it_listens_where_the_documents_say(plane: str) -> None:
    """NIXL keeps to loopback until devices are named; Mooncake never does, which is why it must be named itself."""
    code = f"{LISTENERS}\n{START[plane]}\nprint(*listeners())"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("UCX_")}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=clean).stdout.split()
    if plane == "nixl":
        assert found == [LOOPBACK]
    else:
        assert EVERYWHERE in found
