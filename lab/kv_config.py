"""A model's KV layout from its ``config.json``, in the field names of Hugging Face.

Grouped-query models: ``num_hidden_layers``, ``num_key_value_heads`` (else ``num_attention_heads``), ``head_dim`` (else
``hidden_size / num_attention_heads``). Multi-head latent attention: ``kv_lora_rank + qk_rope_head_dim``, one vector that every
rank holds whole. ``dtype`` or ``torch_dtype`` gives the bytes of a value unless the engine keeps its KV cache in another one.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol.layout import ModelLayout, TensorSpec

DTYPE_BYTES = {
    "float32": 4, "float16": 2, "bfloat16": 2, "half": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "float8_e4m3fn": 1,
    "float8_e5m2": 1, "int8": 1,
}  # fmt: skip
_SHORT = {"float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2"}


class ModelConfigError(ValueError):
    """A model configuration from which no KV layout can be told: which field, and what was expected."""


@dataclass(frozen=True, slots=True)
class ModelKv:
    """The KV cache of a model, and what of the model is not in it."""

    name: str
    layout: ModelLayout
    notes: tuple[str, ...] = ()


def read_model_config(path: Path, kv_dtype: str = "auto") -> ModelKv:
    """Read a ``config.json``, or the one in a directory. Raises ``ModelConfigError`` or ``OSError``."""
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelConfigError(f"{file}: {error}") from error
    if not isinstance(config, dict):
        raise ModelConfigError(f"{file}: expected a JSON object")
    return model_kv(config, kv_dtype)


def model_kv(config: Mapping[str, Any], kv_dtype: str = "auto") -> ModelKv:
    """The KV layout that a parsed configuration describes. Raises ``ModelConfigError``."""
    # Models that also see or hear keep the language model's numbers in an object of their own.
    text = config.get("text_config")
    fields = {**config, **text} if isinstance(text, dict) else config
    dtype = _dtype(fields, kv_dtype)
    if fields.get("kv_lora_rank"):
        width = _whole(fields, "kv_lora_rank") + _whole(fields, "qk_rope_head_dim")
        layer: tuple[TensorSpec, ...] = (
            TensorSpec("latent", 1, width * DTYPE_BYTES[dtype], _SHORT.get(dtype, dtype), sharded=False),
        )
    else:
        heads = _whole(fields, "num_key_value_heads" if fields.get("num_key_value_heads") else "num_attention_heads")
        width = _head_dim(fields) * DTYPE_BYTES[dtype]
        layer = tuple(TensorSpec(name, heads, width, _SHORT.get(dtype, dtype)) for name in ("k", "v"))
    layers, notes = _layers(fields)
    if fields.get("index_head_dim"):
        notes += ("the model keeps an index beside its KV cache (index_head_dim), which is not counted here",)
    return ModelKv(str(config.get("model_type", "unknown")), ModelLayout((layer,) * layers), notes)


def _layers(fields: Mapping[str, Any]) -> tuple[int, tuple[str, ...]]:
    """How many layers have a KV cache, and a note about those that have none."""
    count = _whole(fields, "num_hidden_layers")
    types = fields.get("layer_types")
    if not isinstance(types, list) or len(types) != count:
        return count, ()
    others = [str(kind) for kind in types if "attention" not in str(kind) or "linear" in str(kind)]
    if not others:
        return count, ()
    if len(others) == count:
        raise ModelConfigError("layer_types: expected at least one layer with attention")
    note = f"{len(others)} of {count} layers ({', '.join(sorted(set(others)))}) have no KV cache and are not counted"
    return count - len(others), (note,)


def _head_dim(fields: Mapping[str, Any]) -> int:
    if fields.get("head_dim"):
        return _whole(fields, "head_dim")
    hidden, heads = _whole(fields, "hidden_size"), _whole(fields, "num_attention_heads")
    if hidden % heads:
        raise ModelConfigError(f"head_dim: it is missing, and hidden_size {hidden} is no multiple of {heads} attention heads")
    return hidden // heads


def _dtype(fields: Mapping[str, Any], kv_dtype: str) -> str:
    named = fields.get("dtype") or fields.get("torch_dtype") or "bfloat16"
    dtype = str(named).removeprefix("torch.") if kv_dtype == "auto" else kv_dtype
    if dtype not in DTYPE_BYTES:
        raise ModelConfigError(f"dtype: expected one of {', '.join(DTYPE_BYTES)}, got {dtype!r}")
    return dtype


def _whole(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelConfigError(f"{name}: expected a whole number of at least 1, got {value!r}")
    return value
