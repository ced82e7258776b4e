"""What a deployment is made for; tests/integration plays on it."""

import pytest

from lab.deployment import EngineChoice, check_model_fits
from lab.model.run import ModelOptions, model_shape
from lab.shape import ShapeError


def test_a_choice_of_engines() -> None:
    """Simulated engines need no single process to be judged by; the model has the one of its attention."""
    assert EngineChoice(seed=3).single is None
    chosen = EngineChoice.model("mla", 3)
    assert chosen.single is not None
    assert (chosen.single.config.name, chosen.seed) == ("mla", 3)


def test_a_model_must_fit_both_sides() -> None:
    """The side, the size and the ranks are named."""
    check_model_fits("gqa", model_shape(ModelOptions()))
    with pytest.raises(ShapeError, match="prefill: the model's 16 heads cannot be shared out over 32 ranks"):
        model_shape(ModelOptions(prefill_tp=32, prefill_dp=1))
