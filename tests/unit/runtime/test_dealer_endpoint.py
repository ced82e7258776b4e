"""A dealer's queues outlive connections, sends need one, and no end of a connection is an end of the process."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
import zmq

from lab.ports import free_port_base
from runtime.dealer_endpoint import DealerEndpoint
from runtime.endpoint import SendOutcome, open_context
from tests.unit.connecting import WAIT_MS, arrived, await_connection, listening


@pytest.fixture
def dealer() -> Iterator[DealerEndpoint]:
    """A dealer to a port at which nobody listens yet."""
    with open_context(1, 8) as context:
        made = DealerEndpoint(context, f"tcp://127.0.0.1:{free_port_base(1)}")
        yield made
        made.close()


def test_connections_that_end_amid_messages_end_nothing_else() -> None:
    """Peers that reset their connections while their messages are read cost at most messages; each one comes whole."""
    command = [sys.executable, "-m", "tests.unit.runtime.breaking_peer"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert int(result.stdout) > 0


def test_a_send_without_a_connection_is_refused(dealer: DealerEndpoint) -> None:
    """Before the first connection and after its end a message is refused, and counted so; nothing of it arrives later."""
    assert dealer.send([b"early"]) is SendOutcome.FULL
    with listening(dealer.address):
        await_connection(dealer)
    await_connection(dealer, ended=True)
    assert dealer.send([b"late"]) is SendOutcome.FULL
    with listening(dealer.address) as router:
        await_connection(dealer)
        assert dealer.send([b"A", b"B"]) is SendOutcome.SENT
        assert arrived(router)[1] == [b"A", b"B"]
    assert dealer.counters.sends == {SendOutcome.FULL: 2, SendOutcome.SENT: 1}


def test_what_was_handed_over_goes_out_on_the_next_connection(dealer: DealerEndpoint) -> None:
    """A message sent before the end was known reaches the next listener, and what the former one said can still be read."""
    with listening(dealer.address) as router:
        await_connection(dealer)
        dealer.send([b"who"])
        router.send(arrived(router)[0], [b"answer", b"of the former"])
        assert dealer.socket.poll(WAIT_MS)
    assert dealer.connection.source.poll(WAIT_MS)
    assert dealer.send([b"late"]) is SendOutcome.SENT
    with listening(dealer.address) as router:
        assert arrived(router)[1] == [b"late"]
    assert dealer.receive() == [b"answer", b"of the former"]


def test_its_socket_never_drops_what_it_reads(dealer: DealerEndpoint) -> None:
    """The option that makes libzmq drop a queue with its connection, amid a message if it comes to that, is not set."""
    assert dealer.socket.get(zmq.IMMEDIATE) == 0
