"""The model's sizes, as the daemons see them."""

from lab.model.config import MODELS
from protocol.layout import RankLayout, rank_token_bytes, validate_layout


def test_layouts_are_of_both_kinds() -> None:
    """Grouped-query attention has sharded keys and values, latent attention one tensor that every rank holds whole."""
    keys, values = MODELS["gqa"].layout().layers[0]
    assert (keys.heads, keys.width, keys.dtype, keys.sharded, values.name) == (8, 32, "float16", True, "v")
    (latent,) = MODELS["mla"].layout().layers[0]
    assert (latent.heads, latent.width, latent.sharded) == (1, 80, False)
    for config in MODELS.values():
        rank = RankLayout(config.layout(), 0, 8, 0, 1, (0, config.layers))
        validate_layout(rank)
        assert rank_token_bytes(rank) in {2 * 2 * 32, 2 * 80}


def test_what_cannot_be_shared_out_is_named() -> None:
    """Sizes that do not divide are a sentence, others nothing."""
    assert MODELS["gqa"].tp_problem(16) is None
    assert MODELS["gqa"].tp_problem(32) == "the model's 16 heads cannot be shared out over 32 ranks"
