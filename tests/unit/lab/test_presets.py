"""Presets against the published sizes of their models."""

import pytest

from lab.presets import PRESETS
from protocol.layout import RankLayout, rank_token_bytes, validate_layout


@pytest.mark.parametrize(
    ("name", "token_bytes"), [("tiny", 2_048), ("qwen3-8b", 147_456), ("llama3-70b", 327_680), ("deepseek-v3", 70_272)]
)
def test_a_token_of_a_preset_has_the_published_bytes(name: str, token_bytes: int) -> None:
    """All layers, heads and tensors of one token add up to what the model's configuration says, and the layout is valid."""
    preset = PRESETS[name]
    whole = RankLayout(preset.model, 0, 1, 0, 1, (0, len(preset.model.layers)))
    validate_layout(whole)
    assert rank_token_bytes(whole) == token_bytes
    assert preset.name == name
    assert preset.page_size >= 1


@pytest.mark.parametrize("name", ["tiny", "qwen3-8b", "llama3-70b"])
def test_grouped_query_presets_split_over_eight_ranks(name: str) -> None:
    """Each of eight ranks holds one head of every layer."""
    preset = PRESETS[name]
    eighth = RankLayout(preset.model, 7, 8, 0, 1, (0, len(preset.model.layers)))
    validate_layout(eighth)
    assert rank_token_bytes(eighth) * 8 == rank_token_bytes(RankLayout(preset.model, 0, 1, 0, 1, eighth.stage_bounds))
