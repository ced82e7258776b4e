"""One address before one prefill and one decode server of vLLM: the first computes each prompt, the second continues it.

Run it from a checkout or with the package installed::

    python examples/vllm_proxy.py [--port 8000] [--prefill 127.0.0.1:8100] [--decode 127.0.0.1:8200]

It speaks the convention of vLLM's own network connector, so either connector works behind it: the prefill server is asked for
one token with ``do_remote_decode``, and what it answers as ``kv_transfer_params`` goes to the decode server with the client's
request. ``docs/vllm.md`` has the servers' side.
"""

import argparse
import http.client
import json
import uuid
from contextlib import closing, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PATHS = ("/v1/completions", "/v1/chat/completions")
PREFILL_PARAMS = {"do_remote_decode": True, "do_remote_prefill": False}
LONGEST_REQUEST = 16 << 20
TIMEOUT_S = 600.0
PIECE = 64 << 10
DEFAULT_PORT = 8000


class Refusal(Exception):
    """A server answered something else than 200; it is passed on to the client as it came."""

    def __init__(self, status: int, content_type: str, body: bytes) -> None:
        super().__init__(status)
        self.status, self.content_type, self.body = status, content_type, body


@dataclass(frozen=True)
class Servers:
    """``HOST:PORT`` of the two servers behind the proxy."""

    prefill: str
    decode: str


def ask(server: str, path: str, request: dict[str, Any], request_id: str) -> http.client.HTTPResponse:
    """Send a request on a connection of its own, which ends with the answer. Raises ``Refusal`` and ``OSError``."""
    connection = http.client.HTTPConnection(server, timeout=TIMEOUT_S)
    headers = {"Content-Type": "application/json", "X-Request-Id": request_id, "Connection": "close"}
    connection.request("POST", path, json.dumps(request), headers)
    response = connection.getresponse()
    if response.status != HTTPStatus.OK:
        with closing(connection):
            raise Refusal(response.status, response.getheader("Content-Type", "application/json"), response.read())
    return response


def prefill(server: str, path: str, request: dict[str, Any], request_id: str) -> dict[str, Any] | None:
    """Have the prompt computed; the answer is what the decode server needs to fetch it."""
    one_token = {key: value for key, value in request.items() if key not in {"stream_options", "min_tokens"}}
    one_token |= {"max_tokens": 1, "stream": False, "kv_transfer_params": PREFILL_PARAMS}
    if "max_completion_tokens" in request:
        one_token["max_completion_tokens"] = 1
    with closing(ask(server, path, one_token, request_id)) as response:
        params: dict[str, Any] | None = json.load(response).get("kv_transfer_params")
        return params


class Handler(BaseHTTPRequestHandler):
    """One request of a client."""

    servers: Servers

    def do_GET(self) -> None:
        """``/health`` is there as soon as the proxy is."""
        self._answer(HTTPStatus.OK if self.path == "/health" else HTTPStatus.NOT_FOUND, "application/json", b"{}")

    def do_POST(self) -> None:
        """A completion through both servers."""
        length = int(self.headers.get("Content-Length", 0))
        if self.path not in PATHS or not 0 < length <= LONGEST_REQUEST:
            self._answer(HTTPStatus.NOT_FOUND, "application/json", b"{}")
            return
        try:
            request = json.loads(self.rfile.read(length))
        except ValueError:
            self._answer(HTTPStatus.BAD_REQUEST, "application/json", b"{}")
            return
        try:
            response = self._begin(request)
        except Refusal as refusal:
            self._answer(refusal.status, refusal.content_type, refusal.body)
        except (OSError, http.client.HTTPException, ValueError) as error:
            body = json.dumps({"error": {"message": f"{type(error).__name__}: {error}"}}).encode()
            self._answer(HTTPStatus.BAD_GATEWAY, "application/json", body)
        else:
            # A client that has gone ends this, and with the connection to the decode server the request there.
            with closing(response), suppress(OSError):
                self._pass_on(response)

    def _begin(self, request: dict[str, Any]) -> http.client.HTTPResponse:
        """The decode server's answer, of which the status has come."""
        request_id = str(uuid.uuid4())
        params = prefill(self.servers.prefill, self.path, request, request_id)
        if params is not None:
            request["kv_transfer_params"] = params
        return ask(self.servers.decode, self.path, request, request_id)

    def _pass_on(self, response: http.client.HTTPResponse) -> None:
        """Everything as it comes. The end of the connection is the end of the body."""
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", response.getheader("Content-Type", "application/json"))
        self.end_headers()
        while piece := response.read1(PIECE):
            self.wfile.write(piece)
            self.wfile.flush()

    def _answer(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name it has in the base class
        """Nothing: the servers have their own logs."""


def make_proxy(port: int, servers: Servers) -> ThreadingHTTPServer:
    """A proxy on a loopback port that waits for ``serve_forever``; port 0 takes a free one."""
    handler = type("ProxyHandler", (Handler,), {"servers": servers})
    return ThreadingHTTPServer(("127.0.0.1", port), handler)


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="where clients connect (8000)")
    parser.add_argument("--prefill", default="127.0.0.1:8100", help="the server with kv_role kv_producer")
    parser.add_argument("--decode", default="127.0.0.1:8200", help="the server with kv_role kv_consumer")
    arguments = parser.parse_args()
    with make_proxy(arguments.port, Servers(arguments.prefill, arguments.decode)) as proxy, suppress(KeyboardInterrupt):
        print(f"http://127.0.0.1:{proxy.server_port}{PATHS[0]}", flush=True)
        proxy.serve_forever()


if __name__ == "__main__":
    main()
