"""Who is let in: real handshakes between real sockets, answered by our handler."""

from collections.abc import Iterator

import pytest
import zmq
from structlog.testing import capture_logs

from runtime.endpoint import Context, Socket, open_context
from runtime.errors import StartError
from runtime.key_files import KeyPair
from runtime.zap import ZAP_ADDRESS, ZAP_DOMAIN, ZapHandler

WAIT_MS = 10_000


def new_pair() -> KeyPair:
    """A key pair that is in no file."""
    return KeyPair(*(half.decode("ascii") for half in zmq.curve_keypair()))


SERVER, CLIENT, STRANGER = new_pair(), new_pair(), new_pair()


@pytest.fixture
def context() -> Iterator[Context]:
    """A context whose sockets must all be closed by the test."""
    made = open_context(1, 64)
    yield made
    made.term()


@pytest.fixture
def zap(context: Context) -> Iterator[ZapHandler]:
    """A handler that lets ``CLIENT`` in."""
    made = ZapHandler(context, lambda key: key == CLIENT.public, lambda: 0.0)
    yield made
    made.close()


def served(context: Context) -> Socket:
    """A listening socket that wants keys."""
    socket = context.socket(zmq.ROUTER)
    socket.linger = 0
    socket.curve_server = 1
    socket.curve_secretkey = SERVER.secret.encode()
    socket.zap_domain = ZAP_DOMAIN.encode()
    socket.bind("tcp://127.0.0.1:0")
    return socket


def knock(context: Context, server: Socket, pair: KeyPair) -> tuple[Socket, Socket]:
    """A client that tries to connect, and its monitor."""
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    socket.curve_serverkey = SERVER.public.encode()
    socket.curve_publickey, socket.curve_secretkey = pair.public.encode(), pair.secret.encode()
    monitor: Socket = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH)
    socket.connect(server.getsockopt_string(zmq.LAST_ENDPOINT))
    return socket, monitor


def test_a_known_key_comes_in_and_is_its_user_id(context: Context, zap: ZapHandler) -> None:
    """The connection is accepted, and everything that comes over it carries the key."""
    server = served(context)
    client, monitor = knock(context, server, CLIENT)
    assert zap.socket.poll(WAIT_MS)
    assert zap.read(1)
    client.send(b"hello")
    assert server.poll(WAIT_MS)
    frames = server.recv_multipart(copy=False)
    assert {frame.get("User-Id") for frame in frames} == {CLIENT.public}
    assert zap.verdicts == {"accepted": 1}
    for socket in (monitor, client, server):
        socket.close()


def test_an_unknown_key_is_refused_counted_and_logged(context: Context, zap: ZapHandler) -> None:
    """The client hears 400, and the log names key and address."""
    server = served(context)
    client, monitor = knock(context, server, STRANGER)
    assert zap.socket.poll(WAIT_MS)
    with capture_logs() as lines:
        assert zap.read(1)
    assert monitor.poll(WAIT_MS)
    assert zap.verdicts == {"unknown_key": 1}
    assert [(line["event"], line["key"], line["address"]) for line in lines] == [
        ("client_refused", STRANGER.public, "127.0.0.1")
    ]
    for socket in (monitor, client, server):
        socket.close()


@pytest.mark.parametrize(
    "frames",
    [
        [b"1.0", b"7", b"pd-staging", b"127.0.0.1", b"", b"NULL"],
        [b"1.0", b"7", b"pd-staging", b"127.0.0.1", b"", b"PLAIN", b"user", b"password"],
        [b"2.0", b"7", b"pd-staging", b"127.0.0.1", b"", b"CURVE", bytes(32)],
        [b"1.0", b"7", b"pd-staging", b"127.0.0.1", b"", b"CURVE", bytes(31)],
        [b"1.0"],
    ],
)
def test_whatever_is_no_curve_key_is_refused(context: Context, zap: ZapHandler, frames: list[bytes]) -> None:
    """Other mechanisms and malformed requests get 400 and end nothing."""
    asker = context.socket(zmq.REQ)
    asker.linger = 0
    asker.connect(ZAP_ADDRESS)
    asker.send_multipart(frames)
    assert zap.socket.poll(WAIT_MS)
    assert zap.read(1)
    assert asker.poll(WAIT_MS)
    answer = asker.recv_multipart()
    assert answer[:3] == [b"1.0", frames[1] if len(frames) > 1 else b"", b"400"]
    assert not zap.read(1)
    assert zap.verdicts == {"unreadable": 1}
    asker.close()


def test_one_handler_per_context(context: Context, zap: ZapHandler) -> None:
    """A second one cannot be opened beside the first."""
    assert not zap.read(1)
    with pytest.raises(StartError, match=ZAP_ADDRESS):
        ZapHandler(context, lambda _: True, lambda: 0.0)
