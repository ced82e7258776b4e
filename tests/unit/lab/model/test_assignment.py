"""What an engine process is told survives the file."""

from pathlib import Path

from lab.model.assignment import Assignment
from lab.model.config import MODELS
from protocol.layout import RankLayout
from runtime.pool import KvPool
from runtime.pool_layout import arrange_pool


def test_an_assignment_reads_back_as_it_was_written(tmp_path: Path) -> None:
    """Every field comes back, and the pools can be opened from it."""
    config = MODELS["gqa"]
    layout = arrange_pool(RankLayout(config.layout(), 0, 1, 0, 1, (0, config.layers)), 8, 4)
    with KvPool.create(tmp_path / "pool", layout) as pool:
        written = Assignment(tmp_path / "a.sock", tmp_path / "b.sock", "gqa", 3, (2,), (pool.descriptor,), 64)
        written.save(tmp_path / "file")
        read = Assignment.load(tmp_path / "file")
        assert read == written
        assert read.config is config
        assert read.open_pools()[0].page_size == 8
