"""Outgoing connections come about in the end, whatever was wrong before, and say what was."""

import socket as sockets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from runtime.connections import RETRY_S, WARN_S, Connections
from runtime.dealer_endpoint import DealerEndpoint
from runtime.endpoint import Context, RouterEndpoint, open_context
from runtime.errors import StartError
from runtime.key_files import write_key_pair
from runtime.loop import EventLoop
from runtime.security import CHECK_S, ClientSecurity, ServerSecurity
from tests.unit.keys import KeyRing

TURNS = 2000


class World:
    """Both sides on one loop whose clock the test moves, and a protected decode endpoint."""

    def __init__(self, folder: Path) -> None:
        self.now = 0.0
        self.ring = KeyRing(folder, "a", "b")
        self.loop = EventLoop(lambda: self.now)
        self.context: Context = open_context(1, 128)
        self.server = ServerSecurity(self.ring.decode["server_key"], self.ring.allow_list, lambda: self.now)
        self.zap = self.server.open_zap(self.context)
        self.loop.add_reader(self.zap.socket, self.zap.read)
        self.router = RouterEndpoint(self.context, "tcp://127.0.0.1:0", protect=self.server.protect)
        self.server.watch_listener(self.router.socket, self.router.address)
        self.dealers: list[tuple[Connections, DealerEndpoint]] = []

    def client(self, name: str | None, *, insecure: bool = False, servers: Path | None = None) -> Connections:
        """The connections of a daemon with that client's key."""
        security = None
        if name is not None:
            keys = self.ring.prefill(name)
            security = ClientSecurity(keys["client_key"], servers or keys["server_keys"])
        connections = Connections(self.loop, security, insecure=insecure)
        self.loop.add_timed(connections)
        return connections

    def connect(self, connections: Connections, address: str | None = None) -> DealerEndpoint:
        """Connect to the decode endpoint or another address."""
        dealer = DealerEndpoint(self.context, address or self.router.address, connect=connections.connect)
        self.dealers.append((connections, dealer))
        return dealer

    def turn_until(self, done: Callable[[], object]) -> None:
        """Run the loop, with the clock standing still, until something has happened."""
        for _ in range(TURNS):
            if done():
                return
            self.loop.turn(0.01)
        pytest.fail("it never happened")

    def later(self, seconds: float) -> None:
        """Let time pass and everything due be done."""
        self.now += seconds
        self.loop.turn(0.0)

    def speaks(self, dealer: DealerEndpoint) -> None:
        """Wait until a message of this dealer arrives."""
        self.turn_until(lambda: dealer.connection.connected)
        dealer.send([b"hello"])
        self.turn_until(self.router.receive_identified)

    def heard_from(self, dealer: DealerEndpoint) -> str:
        """Repeat a message until one arrives, as the protocol does; the key of its sender.

        A message that was handed to the old connection at the last moment is lost with it.
        """
        for _ in range(TURNS):
            dealer.send([b"hello"])
            received = self.router.receive_identified()
            if received is not None:
                return received[2]
            self.loop.turn(0.01)
        pytest.fail("nothing came")

    def close(self) -> None:
        """Close everything; the context ends only if nothing was left open."""
        for connections, dealer in self.dealers:
            connections.forget(dealer.socket)
            dealer.close()
        self.router.close()
        self.zap.close()
        self.loop.close()
        self.context.term()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A world whose sockets are all closed in the end."""
    made = World(tmp_path)
    yield made
    made.close()


def test_a_key_that_is_allowed_later_gets_in_later(world: World) -> None:
    """A refused client is told why in its log, tries again by itself, and gets in once the list has its key."""
    world.ring.allow("b")
    world.server.reload()
    connections = world.client("a")
    with capture_logs() as lines:
        dealer = world.connect(connections)
        world.turn_until(lambda: connections.failures["handshake_failed_auth"])
    assert [line["reason"] for line in lines if line["event"] == "peer_handshake_failed"] == [
        "the decode daemon does not allow this client's key"
    ]
    assert connections.counts() == {"handshake_failed_auth": 1}
    assert not dealer.connection.connected
    assert connections.trouble_of(dealer.socket) == "the decode daemon does not allow this client's key"
    world.ring.allow("a", "b")
    world.server.reload()
    world.later(RETRY_S)
    world.speaks(dealer)
    assert connections.trouble_of(dealer.socket) == ""


def test_a_client_without_keys_is_told_and_goes_on_trying(world: World) -> None:
    """Plain traffic to a protected socket fails, is counted on this side too, and is tried again every second."""
    connections = world.client(None)
    world.connect(connections)
    world.turn_until(lambda: connections.failures["handshake_failed_protocol"] == 1)
    world.later(RETRY_S)
    world.turn_until(lambda: connections.failures["handshake_failed_protocol"] == 2)
    assert set(connections.failures) == {"handshake_failed_protocol"}


def test_a_client_with_a_wrong_server_key_gets_nowhere(world: World) -> None:
    """The server hangs up on it; with the right key in the file it gets in without a restart."""
    wrong = write_key_pair(world.ring.folder, "wrong")
    servers = world.ring.folder / "servers.toml"
    servers.write_text(f'default = "{wrong.public}"\n', encoding="utf-8")
    connections = world.client("a", servers=servers)
    dealer = world.connect(connections)
    world.turn_until(lambda: connections.failures["handshake_failed_no_detail"])
    servers.write_text(f'default = "{world.ring.server.public}"\n', encoding="utf-8")
    world.later(CHECK_S)
    world.speaks(dealer)


def test_the_next_key_is_tried_while_a_server_changes_its_key(world: World) -> None:
    """With two known keys the right one is found, whichever stands first."""
    other = write_key_pair(world.ring.folder, "other")
    servers = world.ring.folder / "servers.toml"
    servers.write_text(f'default = ["{other.public}", "{world.ring.server.public}"]\n', encoding="utf-8")
    connections = world.client("a", servers=servers)
    dealer = world.connect(connections)
    world.turn_until(lambda: connections.failures["handshake_failed_no_detail"])
    world.later(RETRY_S)
    world.speaks(dealer)


def test_a_new_client_key_is_taken_up(world: World) -> None:
    """A replaced key file makes the connection anew under the new key."""
    connections = world.client("a")
    dealer = world.connect(connections)
    world.speaks(dealer)
    world.ring.renew("a")
    world.server.reload()
    world.later(CHECK_S)
    assert world.heard_from(dealer) == world.ring.clients["a"].public


def test_something_else_on_the_port_is_outlived(world: World) -> None:
    """What speaks no ZMTP fails the handshake; once a decode daemon listens there, the connection comes about."""
    connections = world.client("a")
    with sockets.create_server(("127.0.0.1", 0)) as web:
        port = web.getsockname()[1]
        dealer = world.connect(connections, f"tcp://127.0.0.1:{port}")
        with web.accept()[0] as peer:
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" * 4)
            world.turn_until(lambda: connections.next_deadline() == RETRY_S and connections._retries)
    second = RouterEndpoint(world.context, f"tcp://127.0.0.1:{port}", protect=world.server.protect)
    world.later(RETRY_S)
    world.turn_until(lambda: dealer.connection.connected)
    second.close()


def test_a_connection_that_ends_is_named_once(world: World) -> None:
    """Whoever watches the log of an idle daemon sees that its peer is gone; attempts to reach it again are no news."""
    connections = world.client("a")
    with capture_logs() as lines:
        dealer = world.connect(connections)
        world.speaks(dealer)
        world.router.close()
        world.turn_until(lambda: not dealer.connection.connected)
        world.loop.turn(0.2)
    lost = [line for line in lines if line["event"] == "connection_lost"]
    assert [line["address"] for line in lost] == [world.router.address]
    assert "tried again" in lost[0]["reason"]


def test_a_connection_that_we_renew_is_not_lost(world: World) -> None:
    """New keys end the old connection, which is no news either."""
    connections = world.client("a")
    dealer = world.connect(connections)
    world.speaks(dealer)
    with capture_logs() as lines:
        world.ring.renew("a")
        world.server.reload()
        world.later(CHECK_S)
        world.heard_from(dealer)
    assert [line for line in lines if line["event"] == "connection_lost"] == []


def test_an_endpoint_without_a_key_is_refused(world: World) -> None:
    """There is an obstacle before anything is opened, and a socket that is connected all the same is closed."""
    servers = world.ring.folder / "servers.toml"
    servers.write_text(f'[endpoints]\n"{world.router.address}" = "{world.ring.server.public}"\n', encoding="utf-8")
    connections = world.client("a", servers=servers)
    assert connections.obstacle(world.router.address) is None
    assert "add it to server_keys" in str(connections.obstacle("tcp://127.0.0.1:1"))
    with pytest.raises(StartError, match="its public key is not known"):
        DealerEndpoint(world.context, "tcp://127.0.0.1:1", connect=connections.connect)


def test_no_keys_beyond_loopback_needs_consent(world: World) -> None:
    """Without keys a remote endpoint has an obstacle unless it was allowed, and loopback never has."""
    assert "--insecure" in str(world.client(None).obstacle("tcp://decode:7600"))
    assert world.client(None).obstacle("tcp://127.0.0.1:7600") is None
    assert world.client(None, insecure=True).obstacle("tcp://decode:7600") is None


def test_open_insecure_connections_are_told_every_minute(world: World) -> None:
    """The first line comes at once, the next ones a minute apart, and none once the connection is gone."""
    connections = world.client(None, insecure=True)
    dealer = world.connect(connections, "tcp://192.0.2.1:7600")
    with capture_logs() as lines:
        for _ in range(3):
            world.later(WARN_S)
        connections.forget(dealer.socket)
        world.later(WARN_S)
        assert connections.next_deadline() is None
    told = [line["first"] for line in lines if line["event"] == "insecure_connections_open"]
    assert told == [["tcp://192.0.2.1:7600"]] * 3
