"""What a vLLM rank holds, in the terms of the protocol: its layout, and its cache tensors as cells."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from integrations.vllm.compatibility import IncompatibleVllmError
from protocol.layout import ModelLayout, RankLayout, TensorSpec, local_heads, validate_layout

ELEMENTS: Final[Mapping[int, type[np.generic]]] = {2: np.uint16, 4: np.uint32}
"""Cells are moved, never computed with: any type of that size will do."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What every rank's cache has in common. ``dtype`` is torch's name for it, without the prefix."""

    layers: int
    kv_heads: int
    head_size: int
    dtype: str
    itemsize: int

    def rank(self, tp_rank: int, tp_size: int) -> RankLayout:
        """The layout of one tensor-parallel rank. Raises ``LayoutError`` if the heads cannot be shared out."""
        width = self.head_size * self.itemsize
        layer = tuple(TensorSpec(name, self.kv_heads, width, self.dtype) for name in ("k", "v"))
        layout = RankLayout(ModelLayout((layer,) * self.layers), tp_rank, tp_size, 0, 1, (0, self.layers))
        validate_layout(layout)
        return layout


def as_cells(array: NDArray[np.generic], shape: ModelShape, block_size: int, tp_size: int) -> NDArray[np.generic]:
    """A layer's cache ``[blocks, heads, block_size, 2 * head_size]`` as ``[blocks, heads, 2, elements]``, not copied.

    Raises ``IncompatibleVllmError`` for a cache of another form.
    """
    heads = local_heads(TensorSpec("k", shape.kv_heads, 1, ""), tp_size)
    expected = (heads, block_size, 2 * shape.head_size)
    if array.ndim != 4 or array.shape[1:] != expected or not array.flags.c_contiguous:
        raise IncompatibleVllmError(
            f"a KV cache of shape {array.shape}: expected contiguous [blocks, {', '.join(map(str, expected))}], as vLLM's CPU "
            "attention has it (heads, tokens of a block, keys and values); use that backend and the default cache dtype"
        )
    return array.reshape(array.shape[0], heads, 2, block_size * shape.head_size)
