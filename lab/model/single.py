"""What is right: the whole model and the whole prompt in one place, no pages, no ranks, no transfer."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from lab.model.config import ModelConfig
from lab.model.forward import Instance, Segment
from lab.model.kv import WholeKv
from protocol.layout import RankLayout

LEAST_OUTPUT, MOST_OUTPUT = 2, 5
"""Tokens of an answer; at least two, so that every request has a time between tokens."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is asked: the tokens of the prompt, and how many tokens the answer has."""

    tokens: tuple[int, ...]
    output: int


def make_prompt(config: ModelConfig, room: str, num_tokens: int, seed: int) -> Prompt:
    """The prompt of a room; the same arguments give the same prompt."""
    digest = blake2b(f"{seed}:{room}".encode(), digest_size=8).digest()
    random = np.random.default_rng(int.from_bytes(digest, "little"))
    output = int(random.integers(LEAST_OUTPUT, MOST_OUTPUT, endpoint=True))
    return Prompt(tuple(random.integers(0, config.vocabulary, num_tokens).tolist()), output)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the whole model says, and the cache that it had after the prompt."""

    tokens: tuple[int, ...]
    cache: WholeKv
    prompt_tokens: int

    def rank_digest(self, rank: RankLayout) -> bytes:
        """Digest of the prompt's KV bytes that such a rank must hold."""
        return self.cache.rank_digest(self.prompt_tokens, rank)


class WholeModel:
    """Answers prompts, one after the other."""

    def __init__(self, config: ModelConfig, seed: int) -> None:
        self.config = config
        self._instance = Instance(config, seed, 1)

    def answer(self, prompt: Prompt) -> Answer:
        """Compute the prompt in one go, then token by token."""
        length = len(prompt.tokens)
        cache = WholeKv(self.config, length + prompt.output)
        tokens = [self._next(prompt.tokens, 0, cache)]
        while len(tokens) < prompt.output:
            tokens.append(self._next(tokens[-1:], length + len(tokens) - 1, cache))
        return Answer(tuple(tokens), cache, length)

    def _next(self, tokens: Sequence[int], start: int, cache: WholeKv) -> int:
        return self._instance.forward([Segment(tokens, start, [cache])])[0]
