"""KV layout, head slices for unequal TP and PP, bytes of a chunk and of a writer's slice, and the readable diff.

Two questions are answered here and nowhere else: *which heads of which layers travel from this prefill rank to that decode
rank*, and *where each byte of them lies in the staged block*. Gather and scatter ask the same functions.

The staged block of one chunk (``tokens`` tokens) is writer-major, then layer, then tensor, then token, then head, then width::

    grant  | writer 0 ................................. | writer 1 ...
    slice  | layer a: K [tokens, heads, width] | V [...] | layer a+1: K | V | ...

so it is independent of either side's page size, axis order and strides.
"""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of one layer. ``heads`` counts the whole model's KV heads, never one rank's share times TP.

    ``width`` is the bytes of one head of one token. ``sharded`` is false for a latent (MLA) that every rank holds whole.
    """

    name: str
    heads: int
    width: int
    dtype: str
    sharded: bool = True


@dataclass(frozen=True, slots=True)
class ModelLayout:
    """The KV cache of a whole model: for each layer, its tensors in staging order."""

    layers: tuple[tuple[TensorSpec, ...], ...]


@dataclass(frozen=True, slots=True)
class RankLayout:
    """What one rank holds: the model, and its place in tensor and pipeline parallelism.

    ``stage_bounds`` are the global layer indices at which pipeline stages begin, with the layer count at the end: stage ``s``
    holds layers ``[stage_bounds[s], stage_bounds[s + 1])``.
    """

    model: ModelLayout
    tp_rank: int
    tp_size: int
    pp_rank: int
    pp_size: int
    stage_bounds: tuple[int, ...]


class WriterKey(NamedTuple):
    """A writer of a room within its prefill group."""

    tp_rank: int
    pp_rank: int


@dataclass(frozen=True, slots=True)
class SlicePart:
    """One tensor of one layer within a writer's slice: ``head_count`` heads starting at these local heads of each side."""

    layer: int
    """Global layer index."""
    tensor: int
    """Index into the layer's tensors."""
    source_head: int
    """First head within the prefill rank's own heads."""
    destination_head: int
    """First head within the decode rank's own heads."""
    head_count: int
    row_bytes: int
    """Bytes of one token: ``head_count * width``."""


@dataclass(frozen=True, slots=True)
class WriterSlice:
    """Everything one writer sends of each token. ``token_bytes`` is the sum of its parts' ``row_bytes``."""

    writer: WriterKey
    parts: tuple[SlicePart, ...]
    token_bytes: int


@dataclass(frozen=True, slots=True)
class PageRun:
    """Where a room's tokens live in one pool: token ``t`` of the room is token ``first_token + t`` of the listed pages."""

    pages: tuple[int, ...]
    first_token: int = 0
