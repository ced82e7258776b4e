"""The example's proxy between two servers that say what they were asked; real vLLM stands behind it in ``tests/vllm``."""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from examples.vllm_proxy import PREFILL_PARAMS, Servers, make_proxy

WAIT_S = 30.0
PARAMS = {"do_remote_prefill": True, "staging_room": "r", "staging_group": "g"}
REQUEST: dict[str, Any] = {"model": "m", "prompt": [5, 6, 7], "max_tokens": 9, "min_tokens": 3}


class Scripted(BaseHTTPRequestHandler):
    """Answers each request with what the test wants said, and keeps it."""

    status = 200
    content_type = "application/json"
    body = b"{}"
    asked: list[tuple[str, str, dict[str, Any]]]

    def do_POST(self) -> None:
        """Keep the request, give the answer."""
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append((self.path, self.headers["X-Request-Id"], request))
        self.send_response(self.status)
        self.send_header("Content-Type", self.content_type)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name it has in the base class
        """Nothing."""


@contextmanager
def serving(server: ThreadingHTTPServer) -> Iterator[int]:
    """The port of a server that serves meanwhile."""
    with server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


class Scene:
    """A prefill server, a decode server and the proxy before them."""

    def __init__(self, stack: ExitStack, **scripts: dict[str, Any]) -> None:
        self.asked: dict[str, list[tuple[str, str, dict[str, Any]]]] = {"prefill": [], "decode": []}
        ports = {}
        for name, asked in self.asked.items():
            script = type("Script", (Scripted,), {"asked": asked, **scripts.get(name, {})})
            ports[name] = stack.enter_context(serving(ThreadingHTTPServer(("127.0.0.1", 0), script)))
        servers = Servers(*(f"127.0.0.1:{ports[name]}" for name in ("prefill", "decode")))
        self.port = stack.enter_context(serving(make_proxy(0, servers)))

    def ask(self, path: str, body: bytes, method: str = "POST") -> tuple[int, str | None, bytes]:
        """Status, type and body of the proxy's answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            return response.status, response.getheader("Content-Type"), response.read()
        finally:
            connection.close()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Ends what the test began."""
    with ExitStack() as entered:
        yield entered


def answering(**answer: Any) -> dict[str, Any]:
    """A script whose body is this."""
    return {"body": json.dumps(answer).encode()}


def test_the_prompt_is_computed_by_one_and_continued_by_the_other(stack: ExitStack) -> None:
    """The prefill server is asked for one token, the decode server for the rest with what the first one answered."""
    scene = Scene(stack, prefill=answering(kv_transfer_params=PARAMS), decode=answering(choices=[1]))
    asked = {**REQUEST, "stream": False}
    assert scene.ask("/v1/completions", json.dumps(asked).encode()) == (200, "application/json", b'{"choices": [1]}')
    ((path, first_id, prefill),) = scene.asked["prefill"]
    ((_, second_id, decode),) = scene.asked["decode"]
    assert (path, first_id) == ("/v1/completions", second_id)
    assert prefill == {
        "model": "m", "prompt": [5, 6, 7], "max_tokens": 1, "stream": False, "kv_transfer_params": PREFILL_PARAMS,
    }  # fmt: skip
    assert decode == {**asked, "kv_transfer_params": PARAMS}


def test_a_stream_passes_as_it_is(stack: ExitStack) -> None:
    """Events of the decode server reach the client byte by byte, with their type; a chat's own limit is lowered as well."""
    events = b'data: {"choices": [1]}\n\ndata: [DONE]\n\n'
    script = {"body": events, "content_type": "text/event-stream"}
    scene = Scene(stack, prefill=answering(kv_transfer_params=PARAMS), decode=script)
    body = json.dumps({"stream": True, "stream_options": {"include_usage": True}, "max_completion_tokens": 9}).encode()
    assert scene.ask("/v1/chat/completions", body) == (200, "text/event-stream", events)
    ((_, _, prefill),) = scene.asked["prefill"]
    assert (prefill["max_completion_tokens"], prefill["stream"]) == (1, False)
    assert "stream_options" not in prefill


@pytest.mark.parametrize("refusing", ["prefill", "decode"])
def test_a_refusal_reaches_the_client(refusing: str, stack: ExitStack) -> None:
    """What either server refuses is the client's answer, status and words; after the prefill's nobody else is asked."""
    refusal = {"status": 400, **answering(error="too long")}
    scripts = {"prefill": answering(kv_transfer_params=PARAMS), "decode": answering()} | {refusing: refusal}
    scene = Scene(stack, **scripts)
    assert scene.ask("/v1/completions", json.dumps(REQUEST).encode()) == (400, "application/json", b'{"error": "too long"}')
    assert len(scene.asked["decode"]) == (refusing == "decode")


def test_without_a_transfer_the_decode_server_is_asked_all_the_same(stack: ExitStack) -> None:
    """A prefill server that announces nothing leaves the request as it is."""
    scene = Scene(stack, prefill=answering(), decode=answering(choices=[]))
    assert scene.ask("/v1/completions", json.dumps(REQUEST).encode())[0] == 200
    assert scene.asked["decode"][0][2] == REQUEST


def test_an_unreachable_server_is_a_bad_gateway(stack: ExitStack) -> None:
    """The client learns which error it was."""
    port = stack.enter_context(serving(make_proxy(0, Servers("127.0.0.1:1", "127.0.0.1:1"))))
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    stack.callback(connection.close)
    connection.request("POST", "/v1/completions", json.dumps(REQUEST))
    response = connection.getresponse()
    assert response.status == 502
    assert b"ConnectionRefusedError" in response.read()


def test_other_requests(stack: ExitStack) -> None:
    """Health is answered; unknown paths, nothing and nonsense are refused."""
    scene = Scene(stack)
    assert scene.ask("/health", b"", "GET")[0] == 200
    assert scene.ask("/metrics", b"", "GET")[0] == 404
    assert scene.ask("/v1/embeddings", b"{}")[0] == 404
    assert scene.ask("/v1/completions", b"")[0] == 404
    assert scene.ask("/v1/completions", b"{")[0] == 400
