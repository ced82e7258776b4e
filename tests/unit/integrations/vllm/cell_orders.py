"""Orders of cells as vLLM's kernels have them, and one that follows no rule."""

import numpy as np

from integrations.vllm.cell_order import CellOrder, Index


def places(*axes: tuple[str, int], tokens: int, dims: int) -> Index:
    """``[token, dim]`` to place, for an order from the outermost axis on: ``("t/", 16)`` is t // 16, ``("t%", 16)`` t % 16."""
    t, d = np.meshgrid(np.arange(tokens), np.arange(dims), indexing="ij")
    sizes = {"t": tokens, "d": dims}
    place = np.zeros_like(t)
    for kind, by in axes:
        values = {"t": t, "d": d}[kind[0]]
        size, value = (sizes[kind[0]] // by, values // by) if kind[1] == "/" else (by, values % by)
        place = place * size + value
    return place


def plain(tokens: int, dims: int) -> CellOrder:
    """Keys transposed, values token by token."""
    keys = places(("d/", 1), ("t/", 1), tokens=tokens, dims=dims)
    return CellOrder.of(keys, places(("t/", 1), ("d/", 1), tokens=tokens, dims=dims))


def tiled(tokens: int, dims: int) -> CellOrder:
    """Tiles of 16 for a matrix unit that takes pairs."""
    keys = places(("t/", 16), ("d/", 2), ("t%", 16), ("d%", 2), tokens=tokens, dims=dims)
    return CellOrder.of(keys, places(("d/", 16), ("t/", 2), ("d%", 16), ("t%", 2), tokens=tokens, dims=dims))


def scrambled(tokens: int, dims: int) -> CellOrder:
    """No rule at all."""
    draw = np.random.default_rng(3)
    return CellOrder.of(*(draw.permutation(tokens * dims).reshape(tokens, dims) for _ in range(2)))


ORDERS = {"plain": plain, "tiled": tiled, "scrambled": scrambled}
