"""The HTTP port: it answers its own paths to those who mean it, and nobody can make it wait, grow or fail."""

import socket
from collections.abc import Iterator
from http.client import HTTPConnection
from threading import Event

import pytest

from lab.ports import free_port_base
from runtime.errors import StartError
from runtime.http import MAX_CONNECTIONS, HttpEndpoint, Query, Response

WAIT_S = 20


class Site:
    """A port with a few routes; ``slow`` answers when ``released``."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.port = free_port_base(1)
        self.released = Event()
        self.entered = 0
        routes = {"/": self.echo, "/slow": self.slow, "/bad": self.bad, "/broken": self.broken}
        self.endpoint = HttpEndpoint(host, self.port, routes)
        self.endpoint.start()

    def echo(self, query: Query) -> Response:
        """What was asked."""
        return Response(repr(sorted(query.items())).encode(), "text/plain")

    def slow(self, query: Query) -> Response:  # noqa: ARG002 - a route's signature
        """When it may."""
        self.entered += 1
        self.released.wait(WAIT_S)
        return Response(b"at last", "text/plain")

    def bad(self, query: Query) -> Response:  # noqa: ARG002 - as above
        """A question that cannot be answered."""
        raise ValueError("chunk: expected a whole number")

    def broken(self, query: Query) -> Response:  # noqa: ARG002 - as above
        """A fault of ours."""
        raise RuntimeError("secret detail")

    def get(self, path: str, host: str | None = None, method: str = "GET") -> tuple[int, str]:
        """Status and body."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        headers = {} if host is None else {"Host": host}
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        body = answer.read().decode()
        connection.close()
        return answer.status, body


@pytest.fixture
def site() -> Iterator[Site]:
    """A running port."""
    running = Site()
    yield running
    running.released.set()
    running.endpoint.close()


def test_it_answers_its_paths(site: Site) -> None:
    """Parameters reach the route, unknown paths are answered with those that exist, and only reading is possible."""
    assert site.get("/?room=a%20b&chunk=3&chunk=4") == (200, "[('chunk', '4'), ('room', 'a b')]")
    assert site.get("/none") == (404, "there is /, /bad, /broken, /slow\n")
    assert site.get("/", method="HEAD") == (200, "")
    assert site.get("/", method="POST")[0] == 501
    assert site.endpoint.address == f"http://127.0.0.1:{site.port}"


def test_what_goes_wrong_in_an_answer_stays_there(site: Site) -> None:
    """A question that cannot be answered is a 400 with the reason, a fault of ours a 500 without; the port lives on."""
    assert site.get("/bad") == (400, "chunk: expected a whole number\n")
    status, body = site.get("/broken")
    assert status == 500
    assert "secret" not in body
    assert site.get("/?" + "a=1&" * 40)[0] == 400
    assert site.get("/" + "x" * 3000)[0] == 414
    assert site.get("/")[0] == 200


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:7590", "127.0.0.1", "127.0.0.1:1", "[::1]:80"])
def test_it_is_asked_by_address_or_as_localhost(site: Site, host: str) -> None:
    """A browser that was sent by the user's own hand, or a tool."""
    assert site.get("/", host)[0] == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:7590", "localhost.evil.example", "", "[", "127.0.0.1.evil.example"]
)
def test_a_name_of_some_site_is_not_ours(site: Site, host: str) -> None:
    """A page whose name was made to point here gets nothing (DNS rebinding)."""
    assert site.get("/", host)[0] == 421


def test_connections_are_bounded(site: Site) -> None:
    """One more than there are places for is turned away at once; places come back."""
    clients = [socket.create_connection(("127.0.0.1", site.port), WAIT_S) for _ in range(MAX_CONNECTIONS)]
    for client in clients:
        client.sendall(b"GET /slow HTTP/1.0\r\n\r\n")
    extra = socket.create_connection(("127.0.0.1", site.port), WAIT_S)
    assert extra.recv(100).startswith(b"HTTP/1.0 503")
    site.released.set()
    for client in clients:
        received = b""
        while part := client.recv(4096):
            received += part
        assert received.endswith(b"at last")
        client.close()
    extra.close()
    assert site.get("/")[0] == 200


def test_noise_ends_its_own_connection(site: Site) -> None:
    """Bytes that are no HTTP, endless headers, and a client that leaves in the middle do no harm."""
    for noise in (
        b"\x00\x01\xff\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 300 + b"\r\n",
        b"GET /" + b"a" * 70_000 + b"\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", site.port), WAIT_S) as client:
            client.sendall(noise)
            assert b" 4" in client.recv(200) or noise.startswith(b"\x00")
    socket.create_connection(("127.0.0.1", site.port), WAIT_S).close()
    assert site.get("/")[0] == 200


def test_a_taken_port_is_named() -> None:
    """The error says which address and what to do."""
    port = free_port_base(1)
    with socket.create_server(("127.0.0.1", port)), pytest.raises(StartError, match=f"listen on http://127.0.0.1:{port}"):
        HttpEndpoint("127.0.0.1", port, {})


def test_a_port_that_never_answered_can_be_closed() -> None:
    """A daemon that fails to start closes what it has opened."""
    endpoint = HttpEndpoint("127.0.0.1", free_port_base(1), {})
    endpoint.close()
