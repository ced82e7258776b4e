"""Control sockets: sends never block, messages arrive whole, and a failed bind says what to do."""

import socket as sockets
from collections.abc import Iterator

import pytest
import zmq

from protocol.codec import decode_to_decode
from protocol.errors import RemoteProtocolError
from protocol.limits import MAX_CONTROL_MESSAGE_BYTES, MAX_FRAMES
from runtime.dealer_endpoint import DealerEndpoint
from runtime.endpoint import UNANSWERED_MS, RouterEndpoint, SendOutcome, Socket, SocketLimits
from runtime.errors import StartError
from runtime.monitor import HANDSHAKE_FAILED, ConnectionEvent, ConnectionMonitor
from tests.unit.connecting import WAIT_MS, arrived, await_connection


@pytest.fixture
def context() -> Iterator["zmq.Context[Socket]"]:
    """A context whose sockets must all be closed by the test, or ending it would hang."""
    with zmq.Context() as made:
        yield made


@pytest.fixture
def router(context: "zmq.Context[Socket]") -> Iterator[RouterEndpoint]:
    """A listening endpoint on a free port."""
    made = RouterEndpoint(context, "tcp://127.0.0.1:0", SocketLimits(send_queue=10))
    yield made
    made.close()
    assert made.socket.closed


def connected(context: "zmq.Context[Socket]", router: RouterEndpoint) -> tuple[DealerEndpoint, bytes]:
    """A connected dealer and the route to it."""
    dealer = DealerEndpoint(context, router.address)
    await_connection(dealer)
    assert dealer.send([b"HELLO"]) is SendOutcome.SENT
    return dealer, arrived(router)[0]


def test_a_message_goes_there_and_back(context: "zmq.Context[Socket]", router: RouterEndpoint) -> None:
    """Frames arrive as they were sent, with a route that leads back to their sender."""
    dealer, route = connected(context, router)
    assert router.send(route, [b"A", b"", b"B"]) is SendOutcome.SENT
    assert dealer.socket.poll(WAIT_MS)
    assert dealer.receive() == [b"A", b"", b"B"]
    assert (dealer.receive(), router.receive()) == (None, None)
    dealer.close()


def test_dead_connections_are_found_without_heartbeats_of_zmq(router: RouterEndpoint) -> None:
    """The kernel finds them: a heartbeat that is due on a broken connection with a full queue would end the process."""
    assert router.socket.get(zmq.HEARTBEAT_IVL) == 0
    assert router.socket.get(zmq.TCP_KEEPALIVE) == 1
    options = (zmq.TCP_KEEPALIVE_IDLE, zmq.TCP_KEEPALIVE_INTVL, zmq.TCP_KEEPALIVE_CNT)
    idle, interval, count = (int(router.socket.get(option)) for option in options)
    assert 0 < idle + interval * count <= 20
    assert router.socket.get(zmq.TCP_MAXRT) == UNANSWERED_MS


def test_a_send_to_nobody_is_reported(router: RouterEndpoint) -> None:
    """A route that never existed is unroutable; nothing waits or queues."""
    assert router.send(b"nobody", [b"X"]) is SendOutcome.UNROUTABLE


def test_a_peer_that_does_not_read_is_full_and_alone(context: "zmq.Context[Socket]", router: RouterEndpoint) -> None:
    """Sends to a stopped peer end in ``FULL`` without blocking, and another peer of the same socket still gets its message."""
    slow, slow_route = connected(context, router)
    other, other_route = connected(context, router)
    for _ in range(100_000):
        if router.send(slow_route, [b"X" * 60_000]) is SendOutcome.FULL:
            break
    else:
        pytest.fail("the queue of a peer that does not read has no bound")
    assert router.send(other_route, [b"Y"]) is SendOutcome.SENT
    assert other.socket.poll(WAIT_MS)
    assert router.counters.sends[SendOutcome.FULL] == 1
    slow.close()
    other.close()


def test_too_many_frames_are_cut(context: "zmq.Context[Socket]", router: RouterEndpoint) -> None:
    """A message of many frames reaches the codec as one frame too many, so that it is refused and not stored."""
    dealer, _ = connected(context, router)
    dealer.send([b"F"] * 1000)
    assert arrived(router)[1] == [b"F"] * (MAX_FRAMES + 1)
    dealer.close()


def test_an_oversized_message_costs_its_sender_the_connection(context: "zmq.Context[Socket]", router: RouterEndpoint) -> None:
    """A frame above the limit never arrives; the sender connects anew and is heard again."""
    dealer, _ = connected(context, router)
    dealer.send([b"X" * (MAX_CONTROL_MESSAGE_BYTES + 1)])
    await_connection(dealer, ended=True)
    await_connection(dealer)
    dealer.send([b"AGAIN"])
    assert arrived(router)[1] == [b"AGAIN"]
    dealer.close()


def test_two_listeners_on_one_port_is_a_clear_error(context: "zmq.Context[Socket]", router: RouterEndpoint) -> None:
    """The second bind fails with the address, the cause and what to do."""
    with pytest.raises(StartError, match=rf"listen on {router.address}: the address is in use; stop the process"):
        RouterEndpoint(context, router.address)


def test_ipv6_addresses_work(context: "zmq.Context[Socket]") -> None:
    """A literal IPv6 address can be listened on and connected to."""
    router = RouterEndpoint(context, "tcp://[::1]:0")
    dealer, _ = connected(context, router)
    assert router.address == f"tcp://[::1]:{router.port}"
    dealer.close()
    router.close()


def test_http_text_disturbs_nobody(context: "zmq.Context[Socket]", router: RouterEndpoint) -> None:
    """What a browser sends to the control port is at most a message that the codec refuses; peers are served as before."""
    dealer, route = connected(context, router)
    with sockets.create_connection(("127.0.0.1", router.port)) as browser:
        browser.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: long enough for a greeting\r\n\r\n" * 4)
        browser.shutdown(sockets.SHUT_WR)
        while browser.recv(4096):
            pass
    while (message := router.receive()) is not None:
        with pytest.raises(RemoteProtocolError):
            decode_to_decode(message[1])
    assert router.send(route, [b"A"]) is SendOutcome.SENT
    assert dealer.socket.poll(WAIT_MS)
    dealer.close()


def test_a_failed_handshake_is_seen(router: RouterEndpoint) -> None:
    """A peer that speaks ZMTP and says nonsense is reported by the monitor with the address it came to."""
    events: list[ConnectionEvent] = []
    monitor = ConnectionMonitor(router.socket, HANDSHAKE_FAILED, events.append)
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NONSENSE".ljust(20, b"\0") + bytes(32)
    with sockets.create_connection(("127.0.0.1", router.port)) as stranger:
        stranger.sendall(greeting)
        assert monitor.socket.poll(WAIT_MS)
    assert monitor.read(1)
    assert not monitor.read(10)
    monitor.close()
    assert events[0].address == router.address
    assert events[0].name.startswith("HANDSHAKE_FAILED")
