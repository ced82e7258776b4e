"""Arithmetic in which the order of a sum cannot be seen, so that any split of the model speaks the same tokens.

Floating-point sums depend on their order: a model on eight ranks, a prompt in chunks or a batch of three rounds differently
from one process that takes the prompt whole, and a comparison of tokens would then have to forgive. Here nothing is forgiven.
Like a quantised model, this one computes with whole numbers:

1. Weights and activations are whole numbers of at most 127, held in float64. A product of two is at most 2**14, and a sum of
   fewer than 2**39 of them stays below 2**53, where every whole number is exact: *in whatever order it was added, by whatever
   kernel, on however many ranks*. The same holds for the softmax's weighted sums (see ``WEIGHT_ONE``).
2. Between two sums stand only operations on single values: multiplication, division, square root and rounding, each of which
   IEEE 754 defines to the last bit, and tables.

So equality with the single process is not luck of one machine's kernels but a law; what breaks it is a wrong byte.
"""

import math
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

LIMIT: Final = 127.0
"""Largest magnitude of an activation."""
UNIT: Final = 32.0
"""What activations are scaled to: their root mean square, about."""
WEIGHT_ONE: Final = 65536.0
"""Softmax weight of the largest score. 2**16 * 2**7 * tokens stays below 2**53 for 2**30 tokens."""
STEPS_PER_NAT: Final = 16
"""Resolution of the softmax table, whose last weight is 0."""
_TABLE: Final = np.rint(WEIGHT_ONE * np.exp(-np.arange(16 * STEPS_PER_NAT) / STEPS_PER_NAT))
_ROTATION_ONE: Final = 64.0


def quantised(sums: Values, scale: float) -> Values:
    """Sums scaled, rounded, and cut to the range of an activation."""
    scaled: Values = np.rint(sums * scale)
    return np.clip(scaled, -LIMIT, LIMIT, out=scaled)


def normalised(residual: Values) -> Values:
    """RMS norm over the last axis, as activations. The sum of squares is exact, the rest acts on single values."""
    mean = np.square(residual).sum(axis=-1, keepdims=True) / residual.shape[-1]
    return quantised(residual / np.sqrt(mean + 1.0), UNIT)


def attended(scores: Values, scale: float, values: Values, allowed: NDArray[np.bool_] | None) -> Values:
    """Softmax over the last axis of ``scores`` times ``values``; keys that are not ``allowed`` weigh nothing.

    ``scores`` ``[heads, queries, keys]``, ``values`` ``[heads, keys, dim]``, ``allowed`` ``[queries, keys]``.
    """
    if allowed is not None:
        scores = np.where(allowed, scores, -np.inf)
    below = scores.max(axis=-1, keepdims=True) - scores
    below *= scale * STEPS_PER_NAT
    steps = np.minimum(np.rint(below, out=below), len(_TABLE) - 1, out=below).astype(np.intp)
    weights: Values = _TABLE.take(steps)
    result: Values = np.rint((weights @ values) / weights.sum(axis=-1, keepdims=True))
    return result


def rotation(positions: NDArray[np.intp], dim: int) -> tuple[Values, Values]:
    """Cosine and sine of each position, in whole numbers, shape ``[tokens, 1, dim / 2]``."""
    cosines, sines = _turns(1 << int(positions.max()).bit_length(), dim)
    return cosines[positions, None], sines[positions, None]


@lru_cache(maxsize=64)
def _turns(length: int, dim: int) -> tuple[Values, Values]:
    """Tables of the first positions. Angle by angle: a kernel for whole arrays may treat their ends otherwise."""
    angles = [[position / 10_000.0 ** (at / dim) for at in range(0, dim, 2)] for position in range(length)]
    cosines = [[math.cos(angle) for angle in row] for row in angles]
    sines = [[math.sin(angle) for angle in row] for row in angles]
    return np.rint(np.array(cosines) * _ROTATION_ONE), np.rint(np.array(sines) * _ROTATION_ONE)


def rotated(values: Values, turn: tuple[Values, Values]) -> Values:
    """Rotary position embedding of ``values`` ``[tokens, heads, dim]``: first half against second half."""
    cosine, sine = turn
    first, second = np.split(values, 2, axis=-1)
    turned = np.concatenate((first * cosine - second * sine, first * sine + second * cosine), axis=-1)
    return quantised(turned, 1.0 / _ROTATION_ONE)
