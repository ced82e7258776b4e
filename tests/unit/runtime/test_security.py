"""Keys and lists that change while the daemon runs, with real sockets on both sides."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from zmq.utils.monitor import parse_monitor_message

from runtime.dealer_endpoint import DealerEndpoint
from runtime.endpoint import Context, RouterEndpoint, open_context
from runtime.errors import StartError
from runtime.key_files import read_key_pair, write_key_pair
from runtime.monitor import HANDSHAKE_FAILED, HANDSHAKE_SUCCEEDED
from runtime.security import CHECK_S, ClientSecurity, ServerSecurity, key_file_problem
from tests.unit.keys import KeyRing

WAIT_MS = 10_000


@pytest.fixture
def ring(tmp_path: Path) -> KeyRing:
    """Keys of a server and two clients, both allowed."""
    return KeyRing(tmp_path, "a", "b")


def opened(ring: KeyRing) -> ServerSecurity:
    """A server's security at time 0."""
    return ServerSecurity(ring.decode["server_key"], ring.decode["allow_list"], lambda: 0.0)


@contextmanager
def listening(ring: KeyRing) -> Iterator[tuple[Context, ServerSecurity, RouterEndpoint]]:
    """A protected listening endpoint whose handshakes nobody answers until ``let_in``."""
    context = open_context(1, 64)
    security = opened(ring)
    zap = security.open_zap(context)
    router = RouterEndpoint(context, "tcp://127.0.0.1:0", protect=security.protect)
    security.watch_listener(router.socket, router.address)
    yield context, security, router
    router.close()
    zap.close()
    context.term()


def let_in(security: ServerSecurity) -> None:
    """Answer the next handshake."""
    assert security._zap is not None
    assert security._zap.socket.poll(WAIT_MS)
    security._zap.read(1)


def connected(context: Context, ring: KeyRing, name: str, router: RouterEndpoint) -> DealerEndpoint:
    """A client that has that key and knows the server's as its file says now."""
    client = ClientSecurity(ring.prefill(name)["client_key"], ring.prefill(name)["server_keys"])
    dealer = DealerEndpoint(context, "tcp://127.0.0.1:1")
    dealer.socket.disconnect("tcp://127.0.0.1:1")
    client.protect(dealer.socket, router.address)
    dealer.socket.connect(router.address)
    return dealer


def test_a_protected_socket_tells_who_speaks(ring: KeyRing) -> None:
    """Each message arrives with the public key of its sender, and the key leads to its client."""
    with listening(ring) as (context, security, router):
        dealer = connected(context, ring, "b", router)
        let_in(security)
        dealer.socket.send_multipart([b"X", b"Y"])
        assert router.socket.poll(WAIT_MS)
        received = router.receive_identified()
        assert received is not None
        assert received[1:] == ([b"X", b"Y"], ring.clients["b"].public)
        client = security.client(received[2])
        assert client is not None
        assert client.name == "b"
        assert router.receive_identified() is None
        dealer.close()


def test_nobody_is_let_in_while_nobody_answers(ring: KeyRing) -> None:
    """Without the handler even a listed key fails the handshake: a missing part closes the door and does not open it."""
    context = open_context(1, 16)
    router = RouterEndpoint(context, "tcp://127.0.0.1:0", protect=opened(ring).protect)
    monitor = router.socket.get_monitor_socket(HANDSHAKE_FAILED | HANDSHAKE_SUCCEEDED)
    dealer = connected(context, ring, "a", router)
    assert monitor.poll(WAIT_MS)
    assert parse_monitor_message(monitor.recv_multipart())["event"] & HANDSHAKE_FAILED
    router.socket.disable_monitor()
    monitor.close()
    dealer.close()
    router.close()
    context.term()


def test_a_changed_list_holds_from_the_next_look(ring: KeyRing) -> None:
    """A key that is taken off is nobody's from then on, a new one somebody's; the log says whose went."""
    security = opened(ring)
    assert security.client(ring.clients["a"].public) is not None
    ring.allow("b")
    with capture_logs() as lines:
        security.tick(CHECK_S)
        security.tick(2 * CHECK_S)
    assert security.client(ring.clients["a"].public) is None
    assert security.client(ring.clients["b"].public) is not None
    assert [(line["event"], line["removed_keys_of"]) for line in lines] == [("allow_list_loaded", ["a"])]
    ring.allow("a", "b")
    security.reload()
    assert security.client(ring.clients["a"].public) is not None


def test_a_list_that_cannot_be_used_changes_nothing(ring: KeyRing) -> None:
    """A broken or missing file is reported and the former list stays in force: nobody is let in or shut out by a typo."""
    security = opened(ring)
    ring.allow_list.write_text("= nonsense", encoding="utf-8")
    with capture_logs() as lines:
        security.tick(CHECK_S)
        ring.allow_list.unlink()
        security.tick(2 * CHECK_S)
    assert [line["event"] for line in lines] == ["allow_list_rejected"] * 2
    assert security.client(ring.clients["a"].public) is not None


def test_a_new_server_key_takes_the_place_of_the_old(ring: KeyRing) -> None:
    """After the key file was replaced, clients that know the new public key get in on the same port."""
    with listening(ring) as (context, security, router):
        old = connected(context, ring, "a", router)
        let_in(security)
        for path in (ring.folder / "server.key", ring.folder / "server.key_secret"):
            path.unlink()
        fresh = write_key_pair(ring.folder, "server")
        now = CHECK_S
        security.tick(now)
        assert security.public_key == fresh.public
        while any(listener.rebind_due for listener in security._listeners):
            # libzmq releases the port in a thread of its own and tells nobody when.
            time.sleep(0.001)
            security.tick(now := now + CHECK_S / 20)
        new = connected(context, ring, "b", router)
        let_in(security)
        new.socket.send(b"after")
        assert router.socket.poll(WAIT_MS)
        received = router.receive_identified()
        assert received is not None
        assert received[2] == ring.clients["b"].public
        old.close()
        new.close()


def test_a_server_key_that_cannot_be_used_changes_nothing(ring: KeyRing) -> None:
    """A missing key file is reported; the daemon keeps the key it has."""
    security = opened(ring)
    before = security.public_key
    (ring.folder / "server.key_secret").unlink()
    with capture_logs() as lines:
        security.tick(CHECK_S)
    assert ([line["event"] for line in lines], security.public_key) == (["allow_list_loaded", "server_key_rejected"], before)


def test_a_client_takes_new_keys_up(ring: KeyRing) -> None:
    """``reload`` says whether anything is different, and keeps what it has if a file cannot be used."""
    client = ClientSecurity(ring.prefill("a")["client_key"], ring.prefill("a")["server_keys"])
    assert (client.files_changed(), client.reload()) == (False, False)
    for path in (ring.folder / "a.key", ring.folder / "a.key_secret"):
        path.unlink()
    with capture_logs() as lines:
        assert (client.files_changed(), client.reload()) == (True, False)
    assert [line["event"] for line in lines] == ["keys_rejected"]
    fresh = write_key_pair(ring.folder, "a")
    assert (client.files_changed(), client.reload(), client.public_key) == (True, True, fresh.public)


def test_a_server_without_a_known_key_is_not_connected_to(ring: KeyRing) -> None:
    """The error names the endpoint and the file to add its key to."""
    servers = ring.folder / "servers.toml"
    servers.write_text(f'[endpoints]\n"tcp://d:7600" = "{ring.server.public}"\n', encoding="utf-8")
    client = ClientSecurity(ring.prefill("a")["client_key"], servers)
    assert (client.keys_known("tcp://d:7600"), client.keys_known("tcp://e:7600")) == (1, 0)
    with open_context(1, 8) as context:
        dealer = DealerEndpoint(context, "tcp://127.0.0.1:1")
        with pytest.raises(StartError, match=r"connect to tcp://e:7600: its public key is not known; add it to .*servers.toml"):
            client.protect(dealer.socket, "tcp://e:7600")
        dealer.close()


def test_keys_that_cannot_be_used_stop_the_start(ring: KeyRing, tmp_path: Path) -> None:
    """Each side refuses to start, naming the file; the same is a problem of the setting."""
    with pytest.raises(StartError, match="none"):
        ServerSecurity(tmp_path / "none", ring.allow_list, lambda: 0.0)
    with pytest.raises(StartError, match="none"):
        ServerSecurity(ring.decode["server_key"], tmp_path / "none", lambda: 0.0)
    with pytest.raises(StartError, match="none"):
        ClientSecurity(ring.prefill("a")["client_key"], tmp_path / "none")
    problems = list(key_file_problem("server_key", lambda: read_key_pair(tmp_path / "none")))
    assert [problem.fields for problem in problems] == [("server_key",)]
    assert list(key_file_problem("server_key", lambda: read_key_pair(ring.decode["server_key"]))) == []


def test_a_secret_that_all_can_read_is_told(ring: KeyRing) -> None:
    """Container secrets often are readable by all, so it is a warning and not a refusal."""
    ring.decode["server_key"].chmod(0o644)
    with capture_logs() as lines:
        opened(ring)
    assert [line["event"] for line in lines] == ["secret_key_readable_by_all"]
