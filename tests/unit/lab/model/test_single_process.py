"""The single process answers as the whole model does, and is asked once."""

import pytest

from lab.model.config import MODELS
from lab.model.single import WholeModel, make_prompt
from lab.model.single_process import SingleProcess
from protocol.layout import RankLayout


def test_answers_and_digests_come_back_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of its own gives the model's tokens and each decode rank's digest; what it said is not asked again."""
    config = MODELS["gqa"]
    prompts = [make_prompt(config, f"room-{number}", 10 + number, seed=0) for number in range(3)]
    single = SingleProcess(config, 0)
    verdicts = single.answers([*prompts, prompts[0]], 2)
    for prompt, verdict in zip([*prompts, prompts[0]], verdicts, strict=True):
        answer = WholeModel(config, 0).answer(prompt)
        assert verdict.tokens == answer.tokens
        layouts = [RankLayout(config.layout(), rank, 2, 0, 1, (0, config.layers)) for rank in range(2)]
        assert verdict.digests == tuple(answer.rank_digest(layout) for layout in layouts)
    monkeypatch.setattr(single, "_ask", lambda *_: pytest.fail("asked again"))
    assert single.answers(prompts[1:], 2) == verdicts[1:3]


def test_a_prompt_is_the_room_s() -> None:
    """The same room and seed give the same prompt; every answer has at least two tokens, so there is time between tokens."""
    config = MODELS["mla"]
    prompts = [make_prompt(config, f"room-{number}", 9, seed=4) for number in range(50)]
    assert prompts == [make_prompt(config, f"room-{number}", 9, seed=4) for number in range(50)]
    assert len(set(prompts)) == 50
    assert min(prompt.output for prompt in prompts) == 2
