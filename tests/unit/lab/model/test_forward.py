"""Ranks, chunks and batches cannot be heard: every split of the model says the same."""

from collections.abc import Sequence

import numpy as np
import pytest

from lab.model.config import MODELS, ModelConfig
from lab.model.forward import Instance, Segment
from lab.model.kv import PagedKv, PoolViews
from lab.model.single import Answer, Prompt, WholeModel, make_prompt
from protocol.layout import PageRun, RankLayout
from runtime.pool import KvPool
from runtime.pool_layout import Arrangement, arrange_pool

PAGE = 8


def rank_layout(config: ModelConfig, rank: int, tp_size: int) -> RankLayout:
    """One rank without pipeline stages."""
    return RankLayout(config.layout(), rank, tp_size, 0, 1, (0, config.layers))


def caches_of(config: ModelConfig, tp_size: int, pages: Sequence[int], num_pages: int = 40) -> list[PagedKv]:
    """A sequence's pages in every rank's pool, in private memory."""
    caches = []
    for rank in range(tp_size):
        layout = arrange_pool(rank_layout(config, rank, tp_size), PAGE, num_pages, Arrangement.FUSED_PAGES)
        pool = KvPool.over(bytearray(layout.total_bytes), layout)
        caches.append(PagedKv(PoolViews(pool), PageRun(tuple(pages), 3)))
    return caches


def speak(instance: Instance, prompt: Prompt, caches: list[PagedKv], chunk: int) -> tuple[int, ...]:
    """Prefill in chunks, then decode."""
    token = 0
    for start in range(0, len(prompt.tokens), chunk):
        token = instance.forward([Segment(prompt.tokens[start : start + chunk], start, caches)])[0]
    tokens = [token]
    while len(tokens) < prompt.output:
        tokens += instance.forward([Segment(tokens[-1:], len(prompt.tokens) + len(tokens) - 1, caches)])
    return tuple(tokens)


def whole_answer(config: ModelConfig, prompt: Prompt) -> Answer:
    """What is right."""
    return WholeModel(config, 0).answer(prompt)


@pytest.mark.parametrize("attention", list(MODELS))
@pytest.mark.parametrize(("tp_size", "chunk"), [(1, 64), (2, 16), (4, 7), (8, 64), (16, 5)])
def test_any_split_says_the_same_and_keeps_the_same_bytes(attention: str, tp_size: int, chunk: int) -> None:
    """On any number of ranks, replicated heads included, and in chunks of any size: the same tokens and the same KV bytes."""
    config = MODELS[attention]
    instance = Instance(config, 0, tp_size)
    for number in range(3):
        prompt = make_prompt(config, f"room-{number}", 20 + 17 * number, seed=1)
        caches = caches_of(config, tp_size, np.random.default_rng(number).permutation(40)[:12].tolist())
        answer = whole_answer(config, prompt)
        assert speak(instance, prompt, caches, chunk) == answer.tokens
        found = [cache.digest(len(prompt.tokens)) for cache in caches]
        assert found == [answer.rank_digest(rank_layout(config, rank, tp_size)) for rank in range(tp_size)]


@pytest.mark.parametrize("attention", list(MODELS))
def test_a_batch_says_what_each_of_its_sequences_says_alone(attention: str) -> None:
    """Sequences of different lengths that share a step do not hear each other."""
    config = MODELS[attention]
    instance = Instance(config, 0, 2)
    prompts = [make_prompt(config, f"room-{number}", 5 + 11 * number, seed=2) for number in range(4)]
    caches = [caches_of(config, 2, range(10)) for _ in prompts]
    first = [instance.forward([Segment(p.tokens, 0, own)])[0] for p, own in zip(prompts, caches, strict=True)]
    both = zip(prompts, first, caches, strict=True)
    second = instance.forward([Segment([token], len(p.tokens), own) for p, token, own in both])
    for prompt, *found in zip(prompts, first, second, strict=True):
        assert tuple(found) == whole_answer(config, prompt).tokens[:2]


@pytest.mark.parametrize("attention", list(MODELS))
def test_wrong_kv_is_heard(attention: str) -> None:
    """With one head (or one latent) of the cache gone, most answers are others: equal tokens say something."""
    config = MODELS[attention]
    instance = Instance(config, 0, 1)
    changed = 0
    for number in range(20):
        prompt = make_prompt(config, f"room-{number}", 30, seed=3)
        (cache,) = caches_of(config, 1, range(10))
        token = instance.forward([Segment(prompt.tokens, 0, [cache])])[0]
        for layer in range(config.layers):
            tensors = cache.read(layer, 30)
            for tensor in tensors:
                tensor[:, 0] = 0
            cache.write(layer, 0, tensors)
        said = [token]
        while len(said) < prompt.output:
            said += instance.forward([Segment(said[-1:], 30 + len(said) - 1, [cache])])
        changed += tuple(said) != whole_answer(config, prompt).tokens
    assert changed >= 8
