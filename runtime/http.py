"""The HTTP port of a daemon, for people and their tools: it only reads, and it is bounded in every way.

A request has a thread of its own, of which there are at most ``MAX_CONNECTIONS``; one more is turned away at once. No thread
here touches a machine: whatever an answer is made of comes through the loop (``runtime/observation.py``).

A page of some other site can make a browser ask a port of its user's own machine, under a name of that site which it lets point
to 127.0.0.1. So a port that only this machine can reach answers to addresses and to ``localhost``, and to no other name.
"""

import ipaddress
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from runtime.addresses import is_loopback
from runtime.errors import StartError
from runtime.logs import logger

MAX_CONNECTIONS: Final = 16
MAX_TARGET_CHARACTERS: Final = 2048
IDLE_S: Final = 5.0
"""How long one read or write of a connection may take."""
BUSY: Final = b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"

Query = Mapping[str, str]
"""The parameters of a request; of a repeated one the last."""


@dataclass(frozen=True, slots=True)
class Response:
    """What goes back: a status, a body, its type, and further headers."""

    body: bytes
    content_type: str = "application/json"
    status: int = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)


Route = Callable[[Query], Response]
"""Answers one path. Called in any thread."""


class HttpEndpoint:
    """Listens from its construction, answers from ``start`` on, ends with ``close``. Raises ``StartError`` for a taken port."""

    def __init__(self, host: str, port: int, routes: Mapping[str, Route]) -> None:
        bare = host.strip("[]")
        try:
            self._server = _Server(bare, port, routes)
        except OSError as error:
            cause = error.strerror or str(error)
            advice = "choose another http_port, or 0 for none"
            raise StartError(f"listen on {_url(host, port)}", cause, advice) from error
        self.address: Final = _url(host, self._server.server_port)
        self._thread = threading.Thread(target=partial(self._server.serve_forever, poll_interval=0.1), name="http", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Take no more requests; those under way end by themselves."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    """Threads by connection, up to a bound."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 2 * MAX_CONNECTIONS

    def __init__(self, host: str, port: int, routes: Mapping[str, Route]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.routes: Final = routes
        self.names_checked: Final = is_loopback(host)
        self._places = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__((host, port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - the standard library's signature
        """Hand the connection to a thread, or turn it away."""
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
            return
        request.settimeout(0.1)
        try:
            request.sendall(BUSY)
        except OSError:
            pass  # it did not wait for the answer, and there is nobody else to tell
        finally:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as above
        """Serve the connection and give its place back."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401, ARG002 - as above
        """A connection that broke is its client's affair."""
        logger().debug("http_connection_broken", client=str(client_address[0]), exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    server: _Server
    timeout = IDLE_S
    server_version = "pd-staging"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer by the table of routes."""
        self._respond(self._answer())

    do_HEAD = do_GET  # noqa: N815 - as above

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ANN401 - as above
        """Requests are no events of the daemon."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """In plain words, with the connection closed."""
        phrase = message or explain or HTTPStatus(code).phrase
        self._respond(_text(code, phrase))

    def _answer(self) -> Response:
        if len(self.path) > MAX_TARGET_CHARACTERS:
            return _text(HTTPStatus.REQUEST_URI_TOO_LONG, "the path is too long")
        if self.server.names_checked and not _is_own_name(self.headers.get("Host")):
            return _text(HTTPStatus.MISDIRECTED_REQUEST, "ask for this port by address or as localhost")
        target = urlsplit(self.path)
        route = self.server.routes.get(target.path)
        if route is None:
            return _text(HTTPStatus.NOT_FOUND, f"there is {', '.join(sorted(self.server.routes))}")
        try:
            parsed = parse_qs(target.query, keep_blank_values=True, max_num_fields=16)
            return route({name: values[-1] for name, values in parsed.items()})
        except ValueError as error:
            return _text(HTTPStatus.BAD_REQUEST, str(error))
        except Exception as error:  # noqa: BLE001 - a fault of ours in one answer must not end the daemon's port
            logger().error("http_answer_failed", path=target.path, exc_info=error)
            return _text(HTTPStatus.INTERNAL_SERVER_ERROR, "this answer failed; the daemon's log says why")

    def _respond(self, response: Response) -> None:
        self.send_response(response.status)
        headers = {
            "Content-Type": response.content_type,
            "Content-Length": str(len(response.body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Connection": "close",
            **response.headers,
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)


def _text(status: int, message: str) -> Response:
    return Response(f"{message}\n".encode(), "text/plain; charset=utf-8", status)


def _url(host: str, port: int) -> str:
    shown = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"http://{shown}:{port}"


def _is_own_name(header: str | None) -> bool:
    """Whether a ``Host`` header names an address or this machine. Only old clients send none, and no browser is one."""
    if header is None:
        return True
    try:
        name = urlsplit(f"//{header}").hostname or ""
        ipaddress.ip_address(name)
    except ValueError:
        return _is_localhost(header)
    return True


def _is_localhost(header: str) -> bool:
    """Whether a ``Host`` header says ``localhost``, with or without a port."""
    return header.rpartition(":")[0].lower() == "localhost" or header.lower() == "localhost"
