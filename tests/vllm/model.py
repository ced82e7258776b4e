"""A tiny Llama whose weights are random and *sharp*: what it says next depends on every token before it.

vLLM's own dummy weights are so small that a model says the same whatever its KV cache holds, so they cannot show that a
transfer was wrong. The weights here are scaled so that attention picks few tokens and its result outweighs the residual.
"""

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FIRST_WORD = 3
"""Tokens below are the unknown word, begin and end."""


@dataclass(frozen=True)
class ModelShape:
    """What can be chosen about a model. Two models of one shape are equal byte for byte."""

    layers: int = 4
    hidden: int = 256
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 32
    intermediate: int = 512
    vocabulary: int = 512
    seed: int = 7

    @property
    def name(self) -> str:
        """A folder's name that differs where the shape does."""
        return "-".join(str(value) for value in asdict(self).values())


def make_model(folder: Path, shape: ModelShape) -> Path:
    """Write configuration, weights and tokenizer below ``folder``; the model's own folder is the answer."""
    path = folder / shape.name
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(_config(shape)), encoding="utf-8")
    (path / "tokenizer.json").write_text(json.dumps(_tokenizer(shape)), encoding="utf-8")
    words = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    (path / "tokenizer_config.json").write_text(json.dumps(words), encoding="utf-8")
    _save(path / "model.safetensors", dict(_weights(shape)))
    return path


def _config(shape: ModelShape) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "float32",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def _tokenizer(shape: ModelShape) -> dict[str, Any]:
    words = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"w{token}": token for token in range(FIRST_WORD, shape.vocabulary)}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"},
    }


def _weights(shape: ModelShape) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Every tensor by its name. A matrix with gain 1 keeps the size of what it is applied to."""
    random = np.random.default_rng(shape.seed)

    def matrix(rows: int, columns: int, gain: float) -> NDArray[np.float32]:
        return random.standard_normal((rows, columns), dtype=np.float32) * np.float32(gain / math.sqrt(columns))

    ones = np.ones(shape.hidden, np.float32)
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield "model.embed_tokens.weight", matrix(shape.vocabulary, shape.hidden, math.sqrt(shape.hidden))
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", ones
        yield prefix + "self_attn.q_proj.weight", matrix(query, shape.hidden, 1.6)
        yield prefix + "self_attn.k_proj.weight", matrix(key, shape.hidden, 1.6)
        yield prefix + "self_attn.v_proj.weight", matrix(key, shape.hidden, 1.5)
        yield prefix + "self_attn.o_proj.weight", matrix(shape.hidden, query, 1.5)
        yield prefix + "post_attention_layernorm.weight", ones
        yield prefix + "mlp.gate_proj.weight", matrix(shape.intermediate, shape.hidden, 1.0)
        yield prefix + "mlp.up_proj.weight", matrix(shape.intermediate, shape.hidden, 1.0)
        yield prefix + "mlp.down_proj.weight", matrix(shape.hidden, shape.intermediate, 1.0)
    yield "model.norm.weight", ones
    yield "lm_head.weight", matrix(shape.vocabulary, shape.hidden, 1.0)


def _save(path: Path, weights: dict[str, NDArray[np.float32]]) -> None:
    """Write the safetensors format: the length of the header, the header as JSON, the tensors one after the other."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in weights.items():
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [end, end + tensor.nbytes]}
        end += tensor.nbytes
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in weights.values():
            file.write(tensor.tobytes())
