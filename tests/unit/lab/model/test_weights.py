"""Ranks hold parts that make up the whole."""

import numpy as np
import pytest

from lab.model.config import MODELS
from lab.model.weights import MAX_WEIGHT, held_kv_heads, rank_weights, whole_weights


@pytest.mark.parametrize("attention", list(MODELS))
def test_shards_make_up_the_whole(attention: str) -> None:
    """Joined in rank order the parts of each sharded matrix are the whole one; what is not sharded is on every rank."""
    config = MODELS[attention]
    whole = whole_weights(config, 0)
    parts = [rank_weights(config, 0, rank, 4) for rank in range(4)]
    assert np.array_equal(np.concatenate([part.unembedding for part in parts], axis=1), whole.unembedding)
    assert all(part.embedding is whole.embedding for part in parts)
    for layer, own in enumerate(whole.layers):
        for name, axis in (("query", 1), ("output", 0), ("hidden", 1), ("back", 0), ("unfold_key", 0), ("unfold_value", 0)):
            joined = np.concatenate([getattr(part.layers[layer], name) for part in parts], axis=axis)
            assert np.array_equal(joined, getattr(own, name)), name


def test_ranks_beyond_the_heads_share_them_with_neighbours() -> None:
    """Sixteen ranks of eight heads hold 0, 0, 1, 1 and so on; four ranks hold two each."""
    config = MODELS["gqa"]
    assert [held_kv_heads(config, rank, 16).start for rank in range(5)] == [0, 0, 1, 1, 2]
    assert [tuple(held_kv_heads(config, rank, 4)) for rank in range(2)] == [(0, 1), (2, 3)]
    assert np.array_equal(rank_weights(config, 0, 2, 16).layers[0].cached, rank_weights(config, 0, 3, 16).layers[0].cached)


def test_weights_are_whole_and_repeatable() -> None:
    """The same seed gives the same weights, another one others, all within the drawn range."""
    config = MODELS["gqa"]
    one = whole_weights(config, 5).layers[0].hidden
    whole_weights.cache_clear()
    assert np.array_equal(one, whole_weights(config, 5).layers[0].hidden)
    assert not np.array_equal(one, whole_weights(config, 6).layers[0].hidden)
    assert np.abs(one).max() == MAX_WEIGHT
