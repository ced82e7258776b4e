"""What a vLLM rank holds, in the protocol's terms."""

import numpy as np
import pytest

from integrations.vllm.compatibility import IncompatibleVllmError
from integrations.vllm.placement import as_cells
from protocol.errors import LayoutError
from protocol.layout import TensorSpec, rank_token_bytes
from tests.unit.integrations.vllm.shapes import SHAPE


def test_rank_names_the_whole_models_heads() -> None:
    """Keys and values of every layer, with all KV heads of the model and the bytes of one head of one token."""
    layout = SHAPE.rank(1, 2)
    spec = TensorSpec("k", 2, 32, "bfloat16")
    assert layout.model.layers == ((spec, TensorSpec("v", 2, 32, "bfloat16")),) * 2
    assert (layout.tp_rank, layout.tp_size, layout.stage_bounds) == (1, 2, (0, 2))
    assert rank_token_bytes(layout) == 2 * 2 * 32


def test_heads_that_cannot_be_shared_out() -> None:
    """Three ranks cannot hold two heads."""
    with pytest.raises(LayoutError):
        SHAPE.rank(0, 3)


@pytest.mark.parametrize(("tp_size", "heads"), [(1, 2), (2, 1), (4, 1)])
def test_cells_are_a_view(tp_size: int, heads: int) -> None:
    """A layer's cache is seen as cells of keys and values, also where heads are replicated; nothing is copied."""
    cache = np.arange(3 * heads * 4 * 32).astype(np.uint16).reshape(3, heads, 4, 32)
    cells = as_cells(cache, SHAPE, 4, tp_size)
    assert cells.shape == (3, heads, 2, 64)
    assert np.shares_memory(cells, cache)
    assert np.array_equal(cells[1, 0, 1], cache.reshape(3, heads, -1)[1, 0, 64:])


@pytest.mark.parametrize("shape", [(3, 2, 8, 32), (3, 1, 4, 32), (3, 2, 4, 16), (2, 3, 4, 2, 16)])
def test_other_caches_are_refused(shape: tuple[int, ...]) -> None:
    """A cache of another backend or size is refused in words, before anything is read as what it is not."""
    with pytest.raises(IncompatibleVllmError, match="expected contiguous"):
        as_cells(np.zeros(shape, np.uint16), SHAPE, 4, 1)


def test_strided_cache_is_refused() -> None:
    """Cells must be contiguous."""
    with pytest.raises(IncompatibleVllmError):
        as_cells(np.zeros((3, 2, 4, 64), np.uint16)[:, :, :, ::2], SHAPE, 4, 1)
