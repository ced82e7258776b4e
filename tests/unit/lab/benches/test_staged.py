"""Cases of staged transfers know their rows and targets."""

from lab.benches.staged import Case


def test_a_staged_case_knows_its_rows() -> None:
    """Heads of 256 bytes: one of them to a rank at TP 8, four at TP 2."""
    assert Case("shm", "qwen3-8b", 4, 8, 1 << 20).row_bytes == 256
    assert Case("shm", "qwen3-8b", 2, 1, 1 << 20).row_bytes == 1024
    assert Case("shm", "qwen3-8b", 2, 1, 1 << 20).target()[0].bound == 0.8


def test_chunks_that_are_not_the_default_are_named_and_promised_nothing() -> None:
    """The targets are for what an operator gets who sets nothing."""
    case = Case("shm", "qwen3-8b", 4, 8, 1 << 20, 256)
    assert case.name == "shm/qwen3-8b/4 to 8, chunks of 256"
    assert case.target() == ()
    assert case.shape.chunk_tokens == 256
