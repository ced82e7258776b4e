"""KV layouts of known models, from their public configurations: layers, KV heads, head dimension, dtype."""

from dataclasses import dataclass

from protocol.layout import ModelLayout, TensorSpec


@dataclass(frozen=True, slots=True)
class Preset:
    """A model's KV cache and the page size (tokens) that engines commonly run it with."""

    name: str
    model: ModelLayout
    page_size: int


def _grouped_query(layers: int, kv_heads: int, head_dim: int) -> ModelLayout:
    """K and V of equal shape in every layer, two bytes a value."""
    width = 2 * head_dim
    return ModelLayout(((TensorSpec("k", kv_heads, width, "bfloat16"), TensorSpec("v", kv_heads, width, "bfloat16")),) * layers)


def _latent(layers: int, lora_rank: int, rope_dim: int) -> ModelLayout:
    """Multi-head latent attention: one compressed vector with its rotary part, held whole by every rank."""
    return ModelLayout(((TensorSpec("latent", 1, 2 * (lora_rank + rope_dim), "bfloat16", sharded=False),),) * layers)


PRESETS = {
    preset.name: preset
    for preset in (
        Preset("tiny", _grouped_query(layers=4, kv_heads=8, head_dim=16), page_size=16),
        Preset("qwen3-8b", _grouped_query(layers=36, kv_heads=8, head_dim=128), page_size=16),
        Preset("llama3-70b", _grouped_query(layers=80, kv_heads=8, head_dim=128), page_size=16),
        Preset("deepseek-v3", _latent(layers=61, lora_rank=512, rope_dim=64), page_size=64),
    )
}
"""By name. ``tiny`` is no real model: it is small enough for thousands of requests and has every kind of head split."""
