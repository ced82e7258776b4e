"""The forward pass of one tensor-parallel instance: every rank on its own weights and its own KV pages, sums in between.

The ranks of an instance share a process, as they share a daemon, and take their turns; what they have in common is only what an
all-reduce would give them. Tokens of several sequences go through the matrices together; each attends to its own cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lab.model.arithmetic import Values, attended, normalised, quantised, rotated, rotation
from lab.model.config import ModelConfig
from lab.model.kv import KvStore
from lab.model.weights import WEIGHT_RMS, LayerWeights, ModelWeights, held_kv_heads, rank_weights

_SHARPNESS = 2.0
"""Spread of the attention scores, in nats."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive tokens of one sequence: the first is token ``start``; ``caches`` holds one store for each rank."""

    tokens: Sequence[int]
    start: int
    caches: Sequence[KvStore]


@dataclass(frozen=True, slots=True)
class _Place:
    """A segment's rows in the batch, and what its attention needs to know of positions."""

    rows: slice
    start: int
    stop: int
    allowed: NDArray[np.bool_] | None


class Shard:
    """One rank's part of the model."""

    def __init__(self, config: ModelConfig, seed: int, tp_rank: int, tp_size: int) -> None:
        self.weights: ModelWeights = rank_weights(config, seed, tp_rank, tp_size)
        self.first_word = tp_rank * config.vocabulary // tp_size
        self._config = config
        self._heads = config.heads // tp_size
        self._kv_heads = len(held_kv_heads(config, tp_rank, tp_size))
        self._in_scale = 1.0 / (WEIGHT_RMS * config.model_dim**0.5)
        self._latent_scale = 1.0 / (WEIGHT_RMS * max(1, config.latent_dim) ** 0.5)
        self._score_scale = _SHARPNESS / (32.0 * 32.0 * config.query_dim**0.5)

    def attention(
        self, layer: int, inputs: Values, turn: tuple[Values, Values], places: Sequence[_Place], caches: Sequence[KvStore]
    ) -> Values:
        """This rank's summand of the attention's output, for all rows; the cache gets the rows' own entries first."""
        weights = self.weights.layers[layer]
        queries = self._queries(weights, inputs, turn)
        entries = self._entries(weights, inputs, turn)
        mixed = np.empty((len(inputs), self._heads * self._config.head_dim))
        for place, cache in zip(places, caches, strict=True):
            cache.write(layer, place.start, tuple(entry[place.rows] for entry in entries))
            keys, values = self._keys_and_values(weights, cache.read(layer, place.stop))
            mixed[place.rows] = self._attend(queries[place.rows], keys, values, place.allowed)
        return mixed @ weights.output

    def feed_forward(self, layer: int, inputs: Values) -> Values:
        """This rank's summand of the second half of a layer."""
        weights = self.weights.layers[layer]
        hidden = np.maximum(quantised(inputs @ weights.hidden, self._in_scale), 0.0)
        return hidden @ weights.back

    def best_word(self, inputs: Values) -> tuple[Values, NDArray[np.intp]]:
        """Highest logit among this rank's words for each row, and which word; the first of equals."""
        logits = inputs @ self.weights.unembedding
        best = logits.argmax(axis=-1)
        return logits[np.arange(len(best)), best], best + self.first_word

    def _queries(self, weights: LayerWeights, inputs: Values, turn: tuple[Values, Values]) -> Values:
        queries = quantised(inputs @ weights.query, self._in_scale).reshape(len(inputs), self._heads, self._config.query_dim)
        return self._turn_last(queries, turn)

    def _entries(self, weights: LayerWeights, inputs: Values, turn: tuple[Values, Values]) -> tuple[Values, ...]:
        """What goes into the cache."""
        cached = quantised(inputs @ weights.cached, self._in_scale)
        if self._config.is_latent:
            return (self._turn_last(cached.reshape(len(inputs), 1, -1), turn),)
        both = cached.reshape(len(inputs), 2, self._kv_heads, self._config.head_dim)
        return self._turn_last(both[:, 0], turn), both[:, 1]

    def _keys_and_values(self, weights: LayerWeights, cached: tuple[Values, ...]) -> tuple[Values, Values]:
        """``[KV heads, tokens, dim]`` of what the cache holds."""
        if not self._config.is_latent:
            keys, values = cached
            return keys.transpose(1, 0, 2), values.transpose(1, 0, 2)
        latent, turned = np.split(cached[0][:, 0], [self._config.latent_dim], axis=-1)
        keys = quantised(latent @ weights.unfold_key, self._latent_scale)
        values = quantised(latent @ weights.unfold_value, self._latent_scale)
        shared = np.broadcast_to(turned, (len(keys), *turned.shape))
        return np.concatenate((keys, shared), axis=-1), values

    def _attend(self, queries: Values, keys: Values, values: Values, allowed: NDArray[np.bool_] | None) -> Values:
        """``[tokens, heads * head_dim]`` of these queries; neighbouring heads share a KV head."""
        tokens, heads, dim = queries.shape
        sharing = heads // len(keys)
        grouped = queries.transpose(1, 0, 2).reshape(len(keys), sharing * tokens, dim)
        scores = grouped @ keys.transpose(0, 2, 1)
        mask = None if allowed is None else np.tile(allowed, (sharing, 1))
        mixed = attended(scores, self._score_scale, values, mask)
        return mixed.reshape(heads, tokens, -1).transpose(1, 0, 2).reshape(tokens, -1)

    def _turn_last(self, values: Values, turn: tuple[Values, Values]) -> Values:
        """Rotate the last ``rotary_dim`` dimensions by position."""
        plain, last = np.split(values, [values.shape[-1] - self._config.rotary_dim], axis=-1)
        return np.concatenate((plain, rotated(last, turn)), axis=-1)


class Instance:
    """A whole model on ``tp_size`` ranks."""

    def __init__(self, config: ModelConfig, seed: int, tp_size: int) -> None:
        self.config = config
        self.shards = [Shard(config, seed, rank, tp_size) for rank in range(tp_size)]
        self._out_scale = 1.0 / (WEIGHT_RMS * (config.heads * config.head_dim) ** 0.5)
        self._back_scale = 1.0 / (WEIGHT_RMS * config.hidden_dim**0.5)

    def forward(self, segments: Sequence[Segment]) -> list[int]:
        """Compute these tokens, fill the caches, and say for each segment which token comes next, greedily."""
        places = _places(segments)
        tokens = np.concatenate([np.asarray(segment.tokens, np.intp) for segment in segments])
        positions = np.concatenate([np.arange(place.start, place.stop) for place in places])
        turn = rotation(positions, self.config.rotary_dim)
        residual = self.shards[0].weights.embedding[tokens]
        for layer in range(self.config.layers):
            inputs = normalised(residual)
            residual = residual + np.rint(
                self._out_scale * self._summed(layer, inputs, turn, places, segments),
            )
            inputs = normalised(residual)
            residual = residual + np.rint(self._back_scale * sum(shard.feed_forward(layer, inputs) for shard in self.shards))
        last = normalised(residual[[place.rows.stop - 1 for place in places]])
        return self._best_words(last)

    def _summed(
        self,
        layer: int,
        inputs: Values,
        turn: tuple[Values, Values],
        places: Sequence[_Place],
        segments: Sequence[Segment],
    ) -> Values:
        total = np.zeros_like(inputs)
        for rank, shard in enumerate(self.shards):
            total += shard.attention(layer, inputs, turn, places, [segment.caches[rank] for segment in segments])
        return total

    def _best_words(self, inputs: Values) -> list[int]:
        """The highest logit over all ranks; among equals the lowest rank's, hence the lowest word."""
        found = [shard.best_word(inputs) for shard in self.shards]
        logits, words = np.stack([logits for logits, _ in found]), np.stack([words for _, words in found])
        return [int(word) for word in words[logits.argmax(axis=0), np.arange(len(inputs))]]


def _places(segments: Sequence[Segment]) -> list[_Place]:
    places, row = [], 0
    for segment in segments:
        count = len(segment.tokens)
        stop = segment.start + count
        allowed = np.arange(stop) <= np.arange(segment.start, stop)[:, None] if count > 1 else None
        places.append(_Place(slice(row, row + count), segment.start, stop, allowed))
        row += count
    return places
