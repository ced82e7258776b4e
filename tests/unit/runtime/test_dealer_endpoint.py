"""A dealer's queues outlive connections, sends need one, and no end of a connection is an end of the process."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
import zmq

from runtime.dealer_endpoint import DealerEndpoint
from runtime.endpoint import Context, RouterEndpoint, SendOutcome, open_context
from tests.unit.connecting import WAIT_MS, await_connection


@pytest.fixture
def context() -> Iterator[Context]:
    """A context that ends only if every socket was closed."""
    made = open_context(1, 16)
    yield made
    made.term()


def test_connections_that_end_amid_messages_end_nothing_else() -> None:
    """Peers that reset their connections while their messages are read cost at most messages; each one comes whole."""
    command = [sys.executable, "-m", "tests.unit.runtime.breaking_peer"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert int(result.stdout) > 0


def test_a_send_without_a_connection_is_refused(context: Context) -> None:
    """Before the first connection and after its end a message is refused, and counted so; nothing of it arrives later."""
    router = RouterEndpoint(context, "tcp://127.0.0.1:0")
    dealer = DealerEndpoint(context, router.address)
    assert dealer.send([b"early"]) is SendOutcome.FULL
    await_connection(dealer)
    router.close()
    await_connection(dealer, ended=True)
    assert dealer.send([b"late"]) is SendOutcome.FULL
    router = RouterEndpoint(context, router.address)
    await_connection(dealer)
    assert dealer.send([b"A", b"B"]) is SendOutcome.SENT
    assert router.socket.poll(WAIT_MS)
    received = router.receive()
    assert received is not None
    assert received[1] == [b"A", b"B"]
    assert dealer.counters.sends == {SendOutcome.FULL: 2, SendOutcome.SENT: 1}
    dealer.close()
    router.close()


def test_what_was_handed_over_goes_out_on_the_next_connection(context: Context) -> None:
    """A message sent before the end was known reaches the next listener, and what the former one said can still be read."""
    router = RouterEndpoint(context, "tcp://127.0.0.1:0")
    dealer = DealerEndpoint(context, router.address)
    await_connection(dealer)
    dealer.send([b"who"])
    assert router.socket.poll(WAIT_MS)
    asked = router.receive()
    assert asked is not None
    router.send(asked[0], [b"answer", b"of the former"])
    assert dealer.socket.poll(WAIT_MS)
    router.close()
    assert dealer.connection.source.poll(WAIT_MS)
    assert dealer.send([b"late"]) is SendOutcome.SENT
    router = RouterEndpoint(context, router.address)
    assert router.socket.poll(WAIT_MS)
    received = router.receive()
    assert received is not None
    assert received[1] == [b"late"]
    assert dealer.receive() == [b"answer", b"of the former"]
    dealer.close()
    router.close()


def test_its_socket_never_drops_what_it_reads(context: Context) -> None:
    """The option that makes libzmq drop a queue with its connection, amid a message if it comes to that, is not set."""
    dealer = DealerEndpoint(context, "tcp://127.0.0.1:1")
    assert dealer.socket.get(zmq.IMMEDIATE) == 0
    dealer.close()
