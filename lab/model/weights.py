"""The model's weights, from a seed, and the share of them that one rank of a tensor-parallel instance holds."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from lab.model.arithmetic import Values
from lab.model.config import ModelConfig

MAX_WEIGHT = 7
"""Weights are drawn evenly from -7 to 7."""
WEIGHT_RMS = (MAX_WEIGHT * (MAX_WEIGHT + 1) / 3) ** 0.5


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer of the whole model or of one rank, each matrix ``[in, out]``."""

    query: Values
    """``[model_dim, heads * query_dim]``."""
    cached: Values
    """``[model_dim, values of a token in the cache]``: keys then values of the heads, or latent then rotary key."""
    unfold_key: Values
    """Latent attention: ``[heads, latent_dim, head_dim]``."""
    unfold_value: Values
    output: Values
    """``[heads * head_dim, model_dim]``; the ranks' products are summed."""
    hidden: Values
    """``[model_dim, hidden_dim]``."""
    back: Values
    """``[hidden_dim, model_dim]``; the ranks' products are summed."""


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """Everything. ``embedding`` is held whole by every rank; ``unembedding`` ``[model_dim, vocabulary]`` is shared out."""

    embedding: Values
    unembedding: Values
    layers: tuple[LayerWeights, ...]


@lru_cache(maxsize=4)
def whole_weights(config: ModelConfig, seed: int) -> ModelWeights:
    """The whole model; the same arguments give the same weights in every process."""
    random = np.random.default_rng([seed, len(config.name), config.layers])

    def draw(*shape: int) -> Values:
        return random.integers(-MAX_WEIGHT, MAX_WEIGHT, shape, endpoint=True).astype(np.float64)

    def layer() -> LayerWeights:
        cached = config.latent_dim + config.rotary_dim if config.is_latent else 2 * config.kv_heads * config.head_dim
        unfold = (config.heads, config.latent_dim, config.head_dim)
        return LayerWeights(
            query=draw(config.model_dim, config.heads * config.query_dim),
            cached=draw(config.model_dim, cached),
            unfold_key=draw(*unfold),
            unfold_value=draw(*unfold),
            output=draw(config.heads * config.head_dim, config.model_dim),
            hidden=draw(config.model_dim, config.hidden_dim),
            back=draw(config.hidden_dim, config.model_dim),
        )

    embedding = draw(config.vocabulary, config.model_dim) * 8
    unembedding = draw(config.model_dim, config.vocabulary)
    return ModelWeights(embedding, unembedding, tuple(layer() for _ in range(config.layers)))


def rank_weights(config: ModelConfig, seed: int, tp_rank: int, tp_size: int) -> ModelWeights:
    """The share of one rank: whole heads, and even parts of the hidden dimension and the vocabulary."""
    whole = whole_weights(config, seed)
    words = _part(config.vocabulary, tp_rank, tp_size)
    layers = tuple(_layer_share(config, layer, tp_rank, tp_size) for layer in whole.layers)
    return ModelWeights(whole.embedding, np.ascontiguousarray(whole.unembedding[:, words]), layers)


def held_kv_heads(config: ModelConfig, tp_rank: int, tp_size: int) -> range:
    """Global KV heads of one rank; ranks that outnumber the heads share them with their neighbours."""
    first = tp_rank * config.kv_heads // tp_size
    return range(first, first + max(1, config.kv_heads // tp_size))


def _layer_share(config: ModelConfig, layer: LayerWeights, tp_rank: int, tp_size: int) -> LayerWeights:
    heads, hidden = _part(config.heads, tp_rank, tp_size), _part(config.hidden_dim, tp_rank, tp_size)
    query = _columns(heads, config.query_dim)
    rows = _columns(heads, config.head_dim)
    return LayerWeights(
        query=np.ascontiguousarray(layer.query[:, query]),
        cached=layer.cached if config.is_latent else _kv_share(config, layer.cached, tp_rank, tp_size),
        unfold_key=layer.unfold_key[heads],
        unfold_value=layer.unfold_value[heads],
        output=np.ascontiguousarray(layer.output[rows]),
        hidden=np.ascontiguousarray(layer.hidden[:, hidden]),
        back=np.ascontiguousarray(layer.back[hidden]),
    )


def _kv_share(config: ModelConfig, cached: Values, tp_rank: int, tp_size: int) -> Values:
    held = held_kv_heads(config, tp_rank, tp_size)
    by_head = cached.reshape(config.model_dim, 2, config.kv_heads, config.head_dim)
    return np.ascontiguousarray(by_head[:, :, held.start : held.stop].reshape(config.model_dim, -1))


def _part(count: int, tp_rank: int, tp_size: int) -> slice:
    share = count // tp_size
    return slice(tp_rank * share, (tp_rank + 1) * share)


def _columns(heads: slice, dim: int) -> slice:
    return slice(heads.start * dim, heads.stop * dim)
