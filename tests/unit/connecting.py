"""For tests that connect without a loop."""

from collections.abc import Iterator
from contextlib import contextmanager

from runtime.dealer_endpoint import DealerEndpoint
from runtime.endpoint import RouterEndpoint, open_context

WAIT_MS = 10_000


@contextmanager
def listening(address: str) -> Iterator[RouterEndpoint]:
    """A listener in a context of its own: only the end of that tells when its port is free again."""
    with open_context(1, 8) as context:
        router = RouterEndpoint(context, address)
        try:
            yield router
        finally:
            router.close()


def arrived(router: RouterEndpoint) -> tuple[bytes, list[bytes]]:
    """Wait for the next message."""
    assert router.socket.poll(WAIT_MS)
    message = router.receive()
    assert message is not None
    return message


def await_connection(dealer: DealerEndpoint, *, ended: bool = False) -> None:
    """Read the connection's events until it stands, or until it has ended."""
    while dealer.connection.connected is ended:
        assert dealer.connection.source.poll(WAIT_MS)
        dealer.connection.read(1)
