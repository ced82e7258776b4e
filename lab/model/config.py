"""The model's size, the two kinds of attention, and what its KV cache looks like to the daemons."""

from dataclasses import dataclass
from typing import Final

from protocol.layout import ModelLayout, TensorSpec

DTYPE: Final = "float16"
ITEM_BYTES: Final = 2
"""KV values are whole numbers of at most 127, which half precision holds exactly."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes of one model. ``latent_dim`` 0 means grouped-query attention, else multi-head latent attention."""

    name: str
    layers: int = 2
    model_dim: int = 64
    heads: int = 16
    kv_heads: int = 8
    head_dim: int = 16
    hidden_dim: int = 128
    vocabulary: int = 512
    latent_dim: int = 0
    rotary_dim: int = 16
    """Dimensions of a key (and query) that are rotated by the token's position; the last ones."""

    @property
    def is_latent(self) -> bool:
        """Whether the cache holds one latent for all heads instead of keys and values."""
        return self.latent_dim > 0

    @property
    def query_dim(self) -> int:
        """Dimensions of one head's query."""
        return self.head_dim + self.rotary_dim if self.is_latent else self.head_dim

    def layout(self) -> ModelLayout:
        """The KV cache of the whole model."""
        return ModelLayout((self._layer(),) * self.layers)

    def tp_problem(self, tp_size: int) -> str | None:
        """Why the model cannot be split over that many ranks, or ``None``."""
        for name, count in (("heads", self.heads), ("hidden_dim", self.hidden_dim), ("vocabulary", self.vocabulary)):
            if count % tp_size:
                return f"the model's {count} {name} cannot be shared out over {tp_size} ranks"
        return None

    def _layer(self) -> tuple[TensorSpec, ...]:
        if self.is_latent:
            return (TensorSpec("latent", 1, ITEM_BYTES * (self.latent_dim + self.rotary_dim), DTYPE, sharded=False),)
        width = ITEM_BYTES * self.head_dim
        return (TensorSpec("k", self.kv_heads, width, DTYPE), TensorSpec("v", self.kv_heads, width, DTYPE))


MODELS: Final = {
    config.name: config
    for config in (
        ModelConfig("gqa"),
        ModelConfig("mla", latent_dim=32, rotary_dim=8),
    )
}
"""By the name of their attention."""
