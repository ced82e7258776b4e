"""What every engine's description has in common."""

import pytest

from runtime.one_sided import OneSidedError, address_of, described_memory


def test_the_address_is_that_of_the_first_byte() -> None:
    """A part of a buffer lies where its offset says."""
    buffer = memoryview(bytearray(64))
    assert address_of(buffer[24:]) == address_of(buffer) + 24


def test_described_memory() -> None:
    """The address comes out if the length is what the handshake said."""
    assert described_memory({"address": 4096, "num_bytes": 10}, 10) == 4096


@pytest.mark.parametrize(
    ("region", "field"),
    [
        ({"address": 4096}, "num_bytes"),
        ({"address": 4096, "num_bytes": 11}, "num_bytes"),
        ({"num_bytes": 10}, "address"),
        ({"address": 0, "num_bytes": 10}, "address"),
        ({"address": -1, "num_bytes": 10}, "address"),
        ({"address": (1 << 63) - 10, "num_bytes": 10}, "address"),
        ({"address": "4096", "num_bytes": 10}, "address"),
    ],
)
def test_a_description_that_does_not_fit(region: dict[str, int | str | bytes], field: str) -> None:
    """The error names the field."""
    with pytest.raises(OneSidedError, match=f"^{field}: expected"):
        described_memory(region, 10)
