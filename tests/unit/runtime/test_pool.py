"""Pools in real shared memory: making, opening, refusing, closing."""

import gc
import json
import mmap
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest

from lab.presets import PRESETS
from protocol.layout import RankLayout, TensorSpec
from runtime.pool import KvPool
from runtime.pool_descriptor import PoolDescriptor
from runtime.pool_layout import PoolError, arrange_pool

RANK = RankLayout(PRESETS["tiny"].model, 0, 4, 0, 1, (0, 4))
LAYOUT = arrange_pool(RANK, page_size=4, num_pages=6)


@pytest.fixture
def directory() -> Iterator[Path]:
    """A private directory in shared memory that must be empty again at the end."""
    path = Path(mkdtemp(prefix="pd-staging-test-", dir="/dev/shm"))
    yield path
    left = list(path.iterdir())
    for file in left:
        file.unlink()
    path.rmdir()
    assert left == []


def test_two_mappings_of_a_pool_see_the_same_bytes(directory: Path) -> None:
    """What the engine writes through its mapping, the daemon reads through its own."""
    with KvPool.create(directory / "pool", LAYOUT) as engine, KvPool.open(engine.descriptor) as daemon:
        assert engine.view(2, 1).shape == (6, 4, 2, 32)
        assert not daemon.memory.any()
        engine.view(2, 1)[5, 3, 1] = np.arange(32)
        assert daemon.view(2, 1)[5, 3, 1].tolist() == list(range(32))
        assert np.count_nonzero(daemon.memory) == 31
        engine.unlink()


def test_a_pool_file_is_private_whole_and_allocated(directory: Path) -> None:
    """The file has mode 0600, exactly the layout's size, and its memory is taken at once."""
    pool = KvPool.create(directory / "pool", LAYOUT)
    status = (directory / "pool").stat()
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert status.st_size == LAYOUT.total_bytes
    assert status.st_blocks * 512 >= LAYOUT.total_bytes
    pool.unlink()
    pool.unlink()


def test_views_outlive_close_and_the_pool_does_not(directory: Path) -> None:
    """Closing under a running copy is safe: its view keeps the memory, while the pool refuses new views."""
    pool = KvPool.create(directory / "pool", LAYOUT)
    view = pool.view(0, 0)
    pool.unlink()
    pool.close()
    pool.close()
    view[...] = 7
    assert int(view.sum()) == 7 * view.size
    with pytest.raises(PoolError, match="the pool is closed"):
        pool.view(0, 0)


def test_the_mapping_goes_with_the_last_view(directory: Path) -> None:
    """After close and the end of every view, the process maps the file no more."""
    pool = KvPool.create(directory / "pool", LAYOUT)
    view = pool.view(0, 0)
    pool.plan("copy", pool, lambda: pool.view(1, 1))
    pool.unlink()
    pool.close()
    assert str(directory) in Path("/proc/self/maps").read_text()
    del view
    gc.collect()
    assert str(directory) not in Path("/proc/self/maps").read_text()


def test_the_end_of_a_process_that_opened_a_pool_leaves_the_file(directory: Path) -> None:
    """No tracker of a child process unlinks the engine's memory."""
    with KvPool.create(directory / "pool", LAYOUT) as pool:
        code = (
            "import sys, json; from runtime.pool import KvPool; from runtime.pool_descriptor import PoolDescriptor;"
            "KvPool.open(PoolDescriptor.from_map(json.load(sys.stdin))).view(0, 0)[0] = 9"
        )
        body = json.dumps(pool.descriptor.to_map())
        subprocess.run([sys.executable, "-c", code], input=body, text=True, check=True)
        assert (pool.view(0, 0)[0] == 9).all()
        assert (directory / "pool").exists()
        pool.unlink()


def test_a_read_only_opening_cannot_be_written(directory: Path) -> None:
    """A side that only gathers need not be able to harm the pages."""
    with KvPool.create(directory / "pool", LAYOUT) as pool, KvPool.open(pool.descriptor, writable=False) as reader:
        with pytest.raises(ValueError, match="read-only"):
            reader.view(0, 0)[0] = 1
        pool.unlink()


def test_an_existing_file_is_not_overwritten(directory: Path) -> None:
    """Two engines cannot take one name; the second is told what to do."""
    with KvPool.create(directory / "pool", LAYOUT) as pool:
        with pytest.raises(PoolError, match=r"cannot open KV pool .*pool: File exists; remove it if no engine uses it"):
            KvPool.create(directory / "pool", LAYOUT)
        pool.unlink()


def test_a_file_smaller_than_its_layout_is_refused(directory: Path) -> None:
    """Both sizes are in the error."""
    (directory / "short").write_bytes(b"x" * 100)
    with pytest.raises(PoolError, match=f"has 100 bytes, its layout needs {LAYOUT.total_bytes}"):
        KvPool.open(PoolDescriptor(str(directory / "short"), LAYOUT))
    (directory / "short").unlink()


def test_a_file_that_is_missing_a_link_or_no_file_is_refused(directory: Path) -> None:
    """A wrong path ends in a clear error: missing, symbolic link, directory, FIFO (without waiting for its writer)."""
    (directory / "link").symlink_to("/dev/zero")
    os.mkfifo(directory / "fifo")
    for name, reason in (
        ("none", "No such file"),
        ("link", "symbolic links"),
        (".", "Is a directory"),
        ("fifo", "not a regular"),
    ):
        with pytest.raises(PoolError, match=reason):
            KvPool.open(PoolDescriptor(str(directory / name), LAYOUT))
    (directory / "link").unlink()
    (directory / "fifo").unlink()


def test_a_pool_larger_than_the_memory_is_refused_and_leaves_no_file(directory: Path) -> None:
    """A full file system is an error at creation, with the free bytes, and never a SIGBUS later."""
    room = os.statvfs(directory)
    pages = room.f_blocks * room.f_frsize // (LAYOUT.total_bytes // LAYOUT.num_pages) + 1000
    with pytest.raises(PoolError, match=r"cannot allocate \d+ bytes for KV pool .*bytes free"):
        KvPool.create(directory / "pool", arrange_pool(RANK, 4, pages))
    assert not (directory / "pool").exists()


def test_a_layout_that_makes_no_sense_makes_no_file(directory: Path) -> None:
    """The layout is checked before the file is touched, on either way in."""
    bad = replace(LAYOUT, total_bytes=LAYOUT.total_bytes - 1)
    with pytest.raises(PoolError, match="outside the pool"):
        KvPool.create(directory / "pool", bad)
    with pytest.raises(PoolError, match="outside the pool"):
        KvPool.open(PoolDescriptor(str(directory / "pool"), bad))


def test_a_pool_can_lie_in_memory_that_the_engine_owns() -> None:
    """Any contiguous writable buffer will do; the pool writes into it, and nobody else can open it by name."""
    with mmap.mmap(-1, LAYOUT.total_bytes + 64) as memory:
        pool = KvPool.over(memory, LAYOUT)
        pool.view(0, 0)[0, 0, 0, 0] = 5
        assert memory[0] == 5
        with pytest.raises(PoolError, match="private memory"):
            _ = pool.descriptor
        pool.unlink()
        pool.close()


def test_a_buffer_that_does_not_fit_is_refused() -> None:
    """Too few bytes, or bytes that are not contiguous, are said."""
    with pytest.raises(PoolError, match=f"buffer has 10 bytes; its layout needs {LAYOUT.total_bytes}"):
        KvPool.over(bytearray(10), LAYOUT)
    with pytest.raises(PoolError, match="not contiguous"):
        KvPool.over(np.zeros((LAYOUT.total_bytes, 2), np.uint8)[:, 0], LAYOUT)


def test_a_tensor_that_the_rank_does_not_hold_is_refused() -> None:
    """Asking for another stage's layer is an error that names it."""
    pool = KvPool.over(bytearray(LAYOUT.total_bytes), LAYOUT)
    with pytest.raises(PoolError, match="layer 4 tensor 0 is not in this pool"):
        pool.view(4, 0)


def test_a_plan_is_made_once_for_each_object() -> None:
    """The same object gets the same plan, an equal but different one its own, and the table is bounded."""
    pool = KvPool.over(bytearray(LAYOUT.total_bytes), LAYOUT)
    one, other = TensorSpec("k", 1, 1, "x"), TensorSpec("k", 1, 1, "x")
    made = pool.plan("gather", one, object)
    assert pool.plan("gather", one, object) is made
    assert pool.plan("scatter", one, object) is not made
    assert pool.plan("gather", other, object) is not made
    for _ in range(5000):
        pool.plan("gather", object(), object)
    assert pool.plan("gather", one, object) is not made
