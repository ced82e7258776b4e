"""The model that these tests know: two layers of two KV heads of 16 elements of two bytes."""

from integrations.vllm.placement import ModelShape

SHAPE = ModelShape(layers=2, kv_heads=2, head_size=16, dtype="bfloat16", itemsize=2)
