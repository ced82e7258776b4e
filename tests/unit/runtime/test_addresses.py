"""What stays on this machine."""

import pytest

from runtime.addresses import is_loopback, is_loopback_endpoint


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"])
def test_loopback(host: str) -> None:
    """Every address of the loopback interface, and its name."""
    assert is_loopback(host)
    assert is_loopback_endpoint(f"tcp://{host if ':' not in host or '[' in host else f'[{host}]'}:7600")


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "[::]", "decode", "localhost.example", "127.0.0.1.example", ""])
def test_beyond(host: str) -> None:
    """Everything else, and every name: what it means is not ours to know."""
    assert not is_loopback(host)
    assert not is_loopback_endpoint(f"tcp://{host}:7600")
