"""KV layouts from model configurations, in the field names that models are published with."""

import json
from pathlib import Path
from typing import Any

import pytest

from lab.kv_config import ModelConfigError, model_kv, read_model_config
from lab.presets import PRESETS

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 8192,
    "num_attention_heads": 64,
    "num_hidden_layers": 80,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
}
DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "kv_lora_rank": 512,
    "num_attention_heads": 128,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "qk_rope_head_dim": 64,
    "torch_dtype": "bfloat16",
}


def test_published_configurations_give_the_presets() -> None:
    """A grouped-query and a latent-attention model as published have the layouts that the presets state."""
    assert model_kv(LLAMA).layout == PRESETS["llama3-70b"].model
    assert model_kv(DEEPSEEK).layout == PRESETS["deepseek-v3"].model
    assert (model_kv(LLAMA).name, model_kv(LLAMA).notes) == ("llama", ())


def test_missing_fields_have_their_usual_meaning() -> None:
    """Without KV heads every head has its own; ``head_dim`` beats the quotient; no dtype is bfloat16."""
    plain = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1}
    (k, v) = model_kv(plain).layout.layers[0]
    assert (k.name, v.name, k.heads, k.width, k.dtype) == ("k", "v", 4, 32, "bfloat16")
    assert model_kv({**plain, "head_dim": 128}).layout.layers[0][0].width == 256


@pytest.mark.parametrize(("field", "dtype", "width"), [("dtype", "float32", 512), ("torch_dtype", "torch.float16", 256)])
def test_both_names_of_the_dtype_are_read(field: str, dtype: str, width: int) -> None:
    """Newer files say ``dtype``, older ones ``torch_dtype``; a prefix is dropped."""
    config = {**LLAMA, field: dtype} if field == "torch_dtype" else {**LLAMA, "torch_dtype": None, field: dtype}
    assert model_kv(config).layout.layers[0][0].width == width


def test_the_cache_may_have_another_type_than_the_weights() -> None:
    """An 8-bit KV cache halves the bytes."""
    spec = model_kv(LLAMA, "fp8_e4m3").layout.layers[0][0]
    assert (spec.width, spec.dtype) == (128, "fp8_e4m3")


def test_a_language_model_inside_another_is_found() -> None:
    """Models that also see keep the numbers in ``text_config``."""
    assert model_kv({"model_type": "seeing", "text_config": LLAMA}).layout == PRESETS["llama3-70b"].model


def test_layers_without_a_cache_are_not_counted_and_told() -> None:
    """Of a hybrid model only layers with attention count; an index beside the cache is mentioned."""
    types = ["linear_attention", "linear_attention", "full_attention", "sliding_attention"]
    found = model_kv({**LLAMA, "num_hidden_layers": 4, "layer_types": types, "index_head_dim": 128})
    assert len(found.layout.layers) == 2
    assert found.notes[0] == "2 of 4 layers (linear_attention) have no KV cache and are not counted"
    assert "index_head_dim" in found.notes[1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers: expected a whole number"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"hidden_size": 8191}, "head_dim: it is missing"),
        ({"torch_dtype": "complex64"}, "dtype: expected one of"),
        ({"kv_lora_rank": 512}, "qk_rope_head_dim"),
        ({"num_hidden_layers": 1, "layer_types": ["mamba"]}, "at least one layer with attention"),
    ],
)
def test_what_is_missing_is_named(changes: dict[str, Any], words: str) -> None:
    """Each refusal names the field and what was expected."""
    with pytest.raises(ModelConfigError, match=words):
        model_kv({**LLAMA, **changes})


def test_a_file_or_its_directory(tmp_path: Path) -> None:
    """Both name the same configuration; what is no JSON object is refused with the path."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAMA), encoding="utf-8")
    assert read_model_config(file) == read_model_config(tmp_path) == model_kv(LLAMA)
    for text in ("[]", "{"):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(ModelConfigError, match=r"config\.json"):
            read_model_config(tmp_path)
    with pytest.raises(OSError, match=r"none"):
        read_model_config(tmp_path / "none")
