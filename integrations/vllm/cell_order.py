"""In which order a cache cell keeps its tokens. A *cell* is one KV head of one block of one layer: all keys, then all values.

vLLM's CPU kernels choose an order by instruction set. Here it is a map from ``[token, dim]`` to the place within the half,
taken from the kernel itself; where that map is regular, as it is for every known kernel, cells are copied by strides instead.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

FEW: Final = 4
"""An innermost axis of at most so many elements is copied as one wider element or lane by lane: inner loops stay long."""
WIDER: Final = {4: np.uint32, 8: np.uint64}
"""By bytes."""

KEYS: Final = 0
VALUES: Final = 1

Index = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a half: position ``i`` lies at ``i // inner * outer_stride + i % inner * inner_stride``, in elements."""

    outer: int
    inner: int
    outer_stride: int
    inner_stride: int

    @classmethod
    def of(cls, places: Index) -> "Axis | None":
        """The axis that has these places, or ``None`` if they follow no such rule."""
        length = len(places)
        step = int(places[1]) if length > 1 else 1
        regular = places == np.arange(length) * step
        inner = length if regular.all() else int(np.argmin(regular))
        if length % inner:
            return None
        axis = cls(length // inner, inner, int(places[inner]) if inner < length else 0, step)
        at = np.arange(length)
        same = np.array_equal(at // inner * axis.outer_stride + at % inner * step, places)
        return axis if same else None


@dataclass(frozen=True, slots=True)
class HalfOrder:
    """Keys or values of a cell: where each element of ``[tokens, dims]`` lies, and the two axes if the order is regular."""

    index: Index
    tokens: Axis | None
    dims: Axis | None

    @classmethod
    def of(cls, index: Index) -> "HalfOrder":
        """Analyse a map. Raises ``ValueError`` unless it is one place for each element."""
        if not np.array_equal(np.sort(index, axis=None), np.arange(index.size)):
            raise ValueError("the order of a cell must have one place for each element")
        by_token, by_dim = index[:, 0] - index[0, 0], index[0] - index[0, 0]
        separable = index[0, 0] == 0 and np.array_equal(by_token[:, None] + by_dim[None, :], index)
        axes = (Axis.of(by_token), Axis.of(by_dim)) if separable else (None, None)
        return cls(index, *axes) if None not in axes else cls(index, None, None)

    def view(self, halves: NDArray[np.generic]) -> NDArray[np.generic] | None:
        """Halves ``[pages, heads, elements]``, elements next to each other, as ``[pages, t, t', heads, d, d']``; not copied."""
        if self.tokens is None or self.dims is None:
            return None
        item, tokens, dims = halves.itemsize, self.tokens, self.dims
        page, head, _ = halves.strides
        shape = (halves.shape[0], tokens.outer, tokens.inner, halves.shape[1], dims.outer, dims.inner)
        inner = (tokens.outer_stride * item, tokens.inner_stride * item)
        strides = (page, *inner, head, dims.outer_stride * item, dims.inner_stride * item)
        return np.lib.stride_tricks.as_strided(halves, shape, strides)

    @property
    def is_transposed(self) -> bool:
        """Whether many tokens of one dim are neighbours: then a copy by strides meets a new cache line with every element."""
        return self.tokens is not None and self.tokens.inner_stride == 1 and self.tokens.inner > FEW

    def lanes(
        self, view: NDArray[np.generic], rows: NDArray[np.generic]
    ) -> Iterator[tuple[NDArray[np.generic], NDArray[np.generic]]]:
        """Pairs of equal shape that together are a ``view`` and its ``rows`` (``[pages, tokens, heads, head_size]``)."""
        assert self.tokens is not None
        assert self.dims is not None
        rows = rows.reshape(view.shape)
        wider = WIDER.get(self.dims.inner * view.itemsize)
        if wider is not None and self.dims.inner > 1 and self.dims.inner_stride == 1:
            yield view.view(wider), rows.view(wider)
        elif self.tokens.inner_stride == 1 and self.tokens.inner <= FEW:
            for lane in range(self.tokens.inner):
                yield view[:, :, lane], rows[:, :, lane]
        else:
            yield view, rows


@dataclass(frozen=True, slots=True)
class CellOrder:
    """The order of a whole cell of ``block_size`` tokens of ``head_size`` elements."""

    keys: HalfOrder
    values: HalfOrder

    @classmethod
    def of(cls, keys: Index, values: Index) -> "CellOrder":
        """From the places ``[block_size, head_size]`` within each half."""
        return cls(HalfOrder.of(keys), HalfOrder.of(values))

    @property
    def block_size(self) -> int:
        """Tokens of a cell."""
        return int(self.keys.index.shape[0])

    @property
    def head_size(self) -> int:
        """Elements of one token in one half."""
        return int(self.keys.index.shape[1])

    def half(self, tensor: int) -> HalfOrder:
        """That of ``KEYS`` or ``VALUES``."""
        return self.values if tensor == VALUES else self.keys
