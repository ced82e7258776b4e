"""The one process that does both, prefill and decode: what it answers is what the separated engines must have answered.

As a program (``python -m lab.model.single_process``) it reads its prompts from stdin and writes its answers to stdout, each as
one JSON value. ``SingleProcess`` runs it.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import lab.launch
from lab.model.assignment import SINGLE_THREADED
from lab.model.config import MODELS, ModelConfig
from lab.model.single import Prompt, WholeModel
from protocol.layout import RankLayout


@dataclass(frozen=True, slots=True)
class Verdict:
    """The right answer, and the digest of the prompt's KV bytes that each decode rank must hold."""

    tokens: tuple[int, ...]
    digests: tuple[bytes, ...]


class SingleProcess:
    """Asks the process, and remembers what it answered: several runs ask the same."""

    def __init__(self, config: ModelConfig, seed: int) -> None:
        self.config = config
        self._seed = seed
        self._known: dict[tuple[Prompt, int], Verdict] = {}

    def answers(self, prompts: Sequence[Prompt], decode_tp: int) -> list[Verdict]:
        """The answer to each prompt, with digests for that many decode ranks. Takes as long as the model does."""
        new = [prompt for prompt in dict.fromkeys(prompts) if (prompt, decode_tp) not in self._known]
        if new:
            for prompt, verdict in zip(new, self._ask(new, decode_tp), strict=True):
                self._known[prompt, decode_tp] = verdict
        return [self._known[prompt, decode_tp] for prompt in prompts]

    def _ask(self, prompts: Sequence[Prompt], decode_tp: int) -> list[Verdict]:
        asked = [{"tokens": prompt.tokens, "output": prompt.output} for prompt in prompts]
        question = {"model": self.config.name, "seed": self._seed, "decode_tp": decode_tp, "prompts": asked}
        command = [sys.executable, "-I", "-S", lab.launch.__file__, str(os.getpid()), sys.executable, "-m", __name__]
        environment = {**os.environ, **SINGLE_THREADED}
        done = subprocess.run(
            command, input=json.dumps(question), stdout=subprocess.PIPE, text=True, env=environment, check=True
        )
        return [
            Verdict(tuple(answer["tokens"]), tuple(bytes.fromhex(digest) for digest in answer["digests"]))
            for answer in json.loads(done.stdout)
        ]


def answer_all(question: Mapping[str, Any]) -> list[dict[str, object]]:
    """The program's work."""
    config, tp_size = MODELS[question["model"]], question["decode_tp"]
    whole = WholeModel(config, question["seed"])
    layout = config.layout()
    ranks = [RankLayout(layout, rank, tp_size, 0, 1, (0, config.layers)) for rank in range(tp_size)]
    answers: list[dict[str, object]] = []
    for asked in question["prompts"]:
        answer = whole.answer(Prompt(tuple(asked["tokens"]), asked["output"]))
        answers.append({"tokens": answer.tokens, "digests": [answer.rank_digest(rank).hex() for rank in ranks]})
    return answers


if __name__ == "__main__":
    json.dump(answer_all(json.load(sys.stdin)), sys.stdout)
