"""For tests that connect without a loop."""

from runtime.dealer_endpoint import DealerEndpoint

WAIT_MS = 10_000


def await_connection(dealer: DealerEndpoint, *, ended: bool = False) -> None:
    """Read the connection's events until it stands, or until it has ended."""
    while dealer.connection.connected is ended:
        assert dealer.connection.source.poll(WAIT_MS)
        dealer.connection.read(1)
