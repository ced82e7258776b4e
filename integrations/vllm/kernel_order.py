"""The order of a cache cell, asked of vLLM's own kernel: patterns go in as keys and values, and come out where they lie."""

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from vllm._custom_ops import cpu_attn_reshape_and_cache
from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

from integrations.vllm.cell_order import CellOrder, Index

_DIGIT = 1 << 14
"""Patterns are numbers below this, whose bits are an ordinary value of every floating type: nothing may alter them."""


@lru_cache(maxsize=16)
def cell_order(dtype: Any, block_size: int, head_size: int) -> CellOrder:  # noqa: ANN401 - torch.dtype
    """The order in which this machine's kernel keeps a block. Asked once for each type and size."""
    places = np.arange(block_size * head_size).reshape(block_size, head_size)
    low, high = (_written(dtype, digit) for digit in (places % _DIGIT, places // _DIGIT))
    ids = low.astype(np.int64) + high.astype(np.int64) * _DIGIT
    return CellOrder.of(*(_inverse(half).reshape(block_size, head_size) for half in ids))


def _written(dtype: Any, pattern: Index) -> Index:  # noqa: ANN401 - torch.dtype
    """What lies at each place of both halves ``[2, elements]`` after a block of this pattern was written."""
    block_size, head_size = pattern.shape
    integer = {2: torch.int16, 4: torch.int32}[dtype.itemsize]
    tokens = torch.from_numpy(pattern).to(integer).view(dtype).reshape(block_size, 1, head_size)
    cache = torch.zeros(1, 1, block_size, 2 * head_size, dtype=dtype)
    keys, values = cache.view(1, 1, 2 * block_size, head_size).chunk(2, dim=2)
    isa = _get_attn_isa(dtype, block_size, head_size, "auto")
    cpu_attn_reshape_and_cache(tokens.clone(), tokens.clone(), keys, values, torch.arange(block_size), isa)
    found: Index = cache.reshape(-1).view(integer).numpy().astype(np.intp).reshape(2, -1)
    return found


def _inverse(ids: Index) -> Index:
    places = np.empty_like(ids)
    places[ids] = np.arange(len(ids))
    return places
