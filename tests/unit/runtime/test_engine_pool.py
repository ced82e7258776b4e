"""The pool that comes with ``register_pool``."""

from pathlib import Path

import pytest

from runtime.engine_pool import read_pool
from runtime.engine_protocol import EngineError, pack, unpack
from runtime.pool import KvPool
from runtime.pool_layout import arrange_pool
from tests.unit.embedded import LAYOUT, private_pool


def test_a_described_pool_is_opened_and_a_given_one_is_taken(tmp_path: Path) -> None:
    """A descriptor opens the file it names; a pool object of the same process is used itself."""
    with KvPool.create(tmp_path / "pool", arrange_pool(LAYOUT, 4, 4)) as made:
        made.memory[5] = 9
        with read_pool(unpack(pack({"pool": made.descriptor.to_map()}))) as opened:
            assert opened.memory[5] == 9
    given = private_pool()
    assert read_pool({"pool": given}) is given


@pytest.mark.parametrize("pool", [None, 3, {}, {"path": "/nonexistent/pool", "layout": {}}])
def test_anything_else_is_refused(pool: object) -> None:
    """The refusal is about the field ``pool``."""
    with pytest.raises(EngineError) as caught:
        read_pool({"pool": pool})
    assert (caught.value.code, caught.value.field) == ("pool", "pool")
