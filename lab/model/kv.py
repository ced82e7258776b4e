"""Where a sequence's keys and values live: in pages of a KV pool, or in one array.

Both hold half-precision numbers; what is read is what was written, since the numbers are whole and small.
"""

from hashlib import blake2b
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lab.model.arithmetic import Values
from lab.model.config import ModelConfig
from protocol.layout import PageRun, RankLayout
from runtime.pool import KvPool

Half = NDArray[np.float16]


class KvStore(Protocol):
    """One rank's share of one sequence's cache."""

    def write(self, layer: int, start: int, tensors: tuple[Values, ...]) -> None:
        """Store tokens from ``start`` on; each tensor ``[tokens, heads, dim]``."""

    def read(self, layer: int, length: int) -> tuple[Values, ...]:
        """The first ``length`` tokens of every tensor of a layer."""


class PoolViews:
    """A pool's tensors as half-precision arrays ``[pages, page_size, heads, dim]``, made once."""

    def __init__(self, pool: KvPool) -> None:
        self.page_size = pool.layout.page_size
        self.layout: RankLayout = pool.layout.rank
        self.layers: list[tuple[Half, ...]] = [
            tuple(pool.view(layer, tensor).view(np.float16) for tensor in range(len(specs)))
            for layer, specs in enumerate(pool.layout.rank.model.layers)
        ]


class PagedKv:
    """A sequence in pages, wherever these lie."""

    def __init__(self, views: PoolViews, run: PageRun) -> None:
        at = np.arange(run.first_token, len(run.pages) * views.page_size)
        self._views = views
        self._pages = np.array(run.pages, np.intp)[at // views.page_size]
        self._slots = at % views.page_size

    def write(self, layer: int, start: int, tensors: tuple[Values, ...]) -> None:
        """Store tokens from ``start`` on."""
        stop = start + len(tensors[0])
        places = self._pages[start:stop], self._slots[start:stop]
        for view, values in zip(self._views.layers[layer], tensors, strict=True):
            view[places] = values

    def read(self, layer: int, length: int) -> tuple[Values, ...]:
        """The first ``length`` tokens of every tensor of a layer."""
        places = self._pages[:length], self._slots[:length]
        return tuple(view[places].astype(np.float64) for view in self._views.layers[layer])

    def digest(self, length: int) -> bytes:
        """Of every byte of the first ``length`` tokens, in the order of ``digest_of``."""
        places = self._pages[:length], self._slots[:length]
        return digest_of([view[places] for tensors in self._views.layers for view in tensors])


class WholeKv:
    """A sequence of the whole model in plain arrays: the single process's cache."""

    def __init__(self, config: ModelConfig, capacity: int) -> None:
        self._layers: list[tuple[Half, ...]] = [
            tuple(np.zeros((capacity, spec.heads, spec.width // 2), np.float16) for spec in specs)
            for specs in config.layout().layers
        ]

    def write(self, layer: int, start: int, tensors: tuple[Values, ...]) -> None:
        """Store tokens from ``start`` on."""
        for store, values in zip(self._layers[layer], tensors, strict=True):
            store[start : start + len(values)] = values

    def read(self, layer: int, length: int) -> tuple[Values, ...]:
        """The first ``length`` tokens of every tensor of a layer."""
        return tuple(store[:length].astype(np.float64) for store in self._layers[layer])

    def rank_digest(self, length: int, rank: RankLayout) -> bytes:
        """What ``PagedKv.digest`` must be on a rank that holds its share of this sequence."""
        parts = []
        for specs, stores in zip(rank.model.layers, self._layers, strict=True):
            for spec, store in zip(specs, stores, strict=True):
                first = rank.tp_rank * spec.heads // rank.tp_size if spec.sharded else 0
                count = max(1, spec.heads // rank.tp_size) if spec.sharded else spec.heads
                parts.append(store[:length, first : first + count])
        return digest_of(parts)


def digest_of(tensors: list[Half]) -> bytes:
    """One digest of these tensors ``[tokens, heads, dim]``, layer after layer."""
    digest = blake2b(digest_size=16)
    for values in tensors:
        digest.update(np.ascontiguousarray(values).data)
    return digest.digest()
