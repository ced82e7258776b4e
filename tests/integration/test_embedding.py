"""The embedding guide keeps its word: its example runs, and what it lists as stable exists."""

import importlib
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from lab.ports import free_port_base
from protocol.layout import PageRun, WriterSlice
from runtime.foreign_pool import ForeignPool
from runtime.pool import KvPool
from runtime.pool_layout import PoolError
from tests.integration.layouts import Case, EmbeddedPair, Parallel, grouped, page_runs

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "embedding.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("plane", ["shm", "zmq"])
def test_the_example_runs(plane: str) -> None:
    """As a program of its own it moves a request for every kind of memory that this environment has."""
    command = [sys.executable, "-m", "examples.embedded_pair", "--plane", plane, "--base-port", f"{free_port_base(8)}"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stderr
    arrived = "70 tokens arrived on 4 decode ranks, every number right"
    torch = f"torch: {arrived} ({plane})" if find_spec("torch") else "torch: left out, torch is not installed"
    assert ended.stdout.splitlines() == [f"numpy: {arrived} ({plane})", torch, f"device: {arrived} ({plane})"]


def test_every_name_that_is_called_stable_exists() -> None:
    """The table of the guide names modules and members that can be imported."""
    table = GUIDE[GUIDE.index("| what | names |") :]
    names = re.findall(r"`([a-z_]+(?:\.[a-z_]+)+\.\w+)`", table)
    assert len(names) > 30
    for name in names:
        module, _, member = name.rpartition(".")
        assert hasattr(importlib.import_module(module), member), name


class Device:
    """Pages that only this class can reach, in the arrangement of a pool that stands behind it."""

    def __init__(self, pool: KvPool) -> None:
        self.behind = pool
        self.calls = 0
        self.broken = False
        layout = pool.layout
        self.pool = ForeignPool(layout.rank, layout.page_size, layout.num_pages, gather=self.gather, scatter=self.scatter)

    def gather(self, writer: WriterSlice, run: PageRun, token_start: int, num_tokens: int, block: memoryview) -> None:
        """Pages to block, part by part."""
        self._begin()
        at = 0
        for part in writer.parts:
            heads = slice(part.source_head, part.source_head + part.head_count)
            rows = self._rows(part.layer, part.tensor, run, token_start, num_tokens)[0][:, heads]
            block[at : at + rows.size] = np.ascontiguousarray(rows).reshape(-1).data
            at += rows.size

    def scatter(self, writer: WriterSlice, run: PageRun, token_start: int, num_tokens: int, block: memoryview) -> None:
        """Block to pages, part by part."""
        self._begin()
        at = 0
        for part in writer.parts:
            heads = slice(part.destination_head, part.destination_head + part.head_count)
            rows, (pages, slots) = self._rows(part.layer, part.tensor, run, token_start, num_tokens)
            size = num_tokens * part.row_bytes
            rows[:, heads] = np.frombuffer(block[at : at + size], np.uint8).reshape(num_tokens, part.head_count, -1)
            self.behind.view(part.layer, part.tensor)[pages, slots] = rows
            at += size

    def _begin(self) -> None:
        self.calls += 1
        if self.broken:
            raise RuntimeError("the device is gone")

    def _rows(
        self, layer: int, tensor: int, run: PageRun, token_start: int, num_tokens: int
    ) -> "tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]":
        at = np.arange(run.first_token + token_start, run.first_token + token_start + num_tokens)
        places = np.array(run.pages)[at // self.behind.layout.page_size], at % self.behind.layout.page_size
        return self.behind.view(layer, tensor)[places], places


CASE = Case(grouped(), Parallel(2), Parallel(4))


def on_devices(pair: EmbeddedPair) -> list[Device]:
    """Put every pool of the pair, which has not started, on a device: prefill ranks first."""
    devices = [Device(pool) for pool in (*pair.prefill_pools, *pair.decode_pools)]
    pair.attached = [device.pool for device in devices]
    return devices


@pytest.mark.parametrize("plane", ["shm", "zmq"])
def test_pools_on_a_device_are_copied_by_the_engine(tmp_path: Path, plane: str) -> None:
    """With pools that bring their copies on both sides every byte arrives, and every pool's own copy was used."""
    source, destination = page_runs(CASE, 0)
    pair = EmbeddedPair(CASE, tmp_path, plane)
    devices = on_devices(pair)
    with pair:
        assert pair.carry("room", 0, source, destination) == []
        assert pair.compared("room", destination).mismatched_bytes == 0
    assert all(device.calls >= 3 for device in devices)


@pytest.mark.parametrize("broken", [pytest.param(0, id="gather"), pytest.param(2, id="scatter")])
def test_a_copy_that_fails_fails_its_room_alone(tmp_path: Path, broken: int) -> None:
    """What the engine's copy raises fails the room on both sides; the next room goes through and the pair stops in order."""
    source, destination = page_runs(CASE, 0)
    pair = EmbeddedPair(CASE, tmp_path, "shm")
    devices = on_devices(pair)
    with pair:
        devices[broken].broken = True
        assert set(pair.carry("room", 0, source, destination)) & {"aborted", "aborted_by_decode", "aborted_by_prefill"}
        devices[broken].broken = False
        assert pair.carry("next", 0, source, destination) == []
        assert pair.compared("next", destination).mismatched_bytes == 0


def test_a_pool_without_the_copy_that_its_side_needs_is_refused_at_once(tmp_path: Path) -> None:
    """Not when the first chunk comes."""
    rank = CASE.prefill.ranks(CASE.model)[0]
    with EmbeddedPair(CASE, tmp_path, "shm") as pair:
        with pytest.raises(PoolError, match="brings no gather"):
            pair.client.engine.attach_pool(0, ForeignPool(rank, 8, 4))
        with pytest.raises(PoolError, match="brings no scatter"):
            pair.server.engine.attach_pool(0, ForeignPool(rank, 8, 4))
