"""Engine and daemon over the unix socket: many in flight, answers in any order, nothing hangs."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import zmq

from runtime.endpoint import Socket
from runtime.engine_client import EngineClient
from runtime.engine_endpoint import EngineEndpoint
from runtime.engine_protocol import Body, EngineError, pack, unpack
from runtime.errors import StartError
from runtime.loop import EventLoop

WAIT_S = 30
MAX_IN_FLIGHT = 3


class Daemon:
    """A daemon of one thread: ``echo`` answers at once, ``hold`` when ``release`` comes, ``refuse`` and ``break`` fail."""

    def __init__(self, path: Path) -> None:
        self.held: list[Future[Body]] = []
        self.context: zmq.Context[Socket] = zmq.Context()
        self.loop = EventLoop()
        self.endpoint = EngineEndpoint(self.context, path, MAX_IN_FLIGHT, self.execute)
        self.loop.add_reader(self.endpoint.socket, self.endpoint.read)
        self.thread = threading.Thread(target=self.loop.run)
        self.thread.start()

    def execute(self, op: str, body: Body) -> "Future[Body]":
        """The commands of the class docstring."""
        future: Future[Body] = Future()
        if op == "hold":
            self.held.append(future)
        elif op == "release":
            for held in reversed(self.held):
                held.set_result(body)
            self.held.clear()
            future.set_result({})
        elif op == "refuse":
            future.set_exception(EngineError("invalid", "no", "pages", 7))
        elif op == "break":
            future.set_exception(ZeroDivisionError("a fault"))
        else:
            future.set_result(body)
        return future

    def release(self) -> None:
        """Answer what is held."""
        self.execute("release", {})

    def close(self) -> None:
        """Stop the thread and close everything."""
        self.loop.stop()
        self.thread.join(WAIT_S)
        self.endpoint.close(1000)
        self.context.term()
        self.loop.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the socket goes."""
    return tmp_path / "run" / "d.engine.sock"


@pytest.fixture
def daemon(path: Path) -> Iterator[Daemon]:
    """A running daemon; at the end its directory is empty again."""
    made = Daemon(path)
    yield made
    made.close()
    assert list(path.parent.iterdir()) == []


@pytest.fixture
def client(path: Path) -> Iterator[EngineClient]:
    """A client of that path, daemon or not."""
    with EngineClient(path) as made:
        yield made


def error_of(future: "Future[dict[str, Any]]") -> EngineError:
    """The refusal that a call ended in."""
    with pytest.raises(EngineError) as caught:
        future.result(WAIT_S)
    return caught.value


def test_answers_come_in_any_order(daemon: Daemon, client: EngineClient) -> None:
    """A request that waits does not hold up the next one, and each answer finds its own future."""
    held = [client.call("hold") for _ in range(2)]
    assert client.call("echo", value=[1, b"x", "y", None]).result(WAIT_S) == {"value": [1, b"x", "y", None]}
    assert not any(future.done() for future in held)
    client.call("release", value=5).result(WAIT_S)
    assert [future.result(WAIT_S) for future in held] == [{"value": 5}] * 2
    assert daemon.endpoint.in_flight == 0


def test_a_full_queue_answers_busy_with_the_limit(daemon: Daemon, client: EngineClient) -> None:
    """One request more than the bound is refused at once and names the bound; the ones in flight are not touched."""
    held = [client.call("hold") for _ in range(MAX_IN_FLIGHT)]
    error = error_of(client.call("echo"))
    assert (error.code, error.limit) == ("busy", MAX_IN_FLIGHT)
    daemon.loop.call_soon_threadsafe(daemon.release)
    assert [future.result(WAIT_S) for future in held] == [{}] * MAX_IN_FLIGHT


def test_errors_carry_code_field_and_limit(daemon: Daemon, client: EngineClient) -> None:  # noqa: ARG001 - it must run
    """A refusal arrives as it was raised; a fault of the daemon arrives as ``internal`` and the daemon lives on."""
    error = error_of(client.call("refuse"))
    assert (error.code, error.message, error.field, error.limit) == ("invalid", "no", "pages", 7)
    assert error_of(client.call("break")).code == "internal"
    assert client.call("echo").result(WAIT_S) == {}


def test_a_daemon_that_comes_later_is_waited_for(path: Path, client: EngineClient) -> None:
    """Requests made before the daemon listens are answered once it does."""
    early = client.call("echo", n=1)
    daemon = Daemon(path)
    assert early.result(WAIT_S) == {"n": 1}
    daemon.close()


def test_a_daemon_that_goes_away_fails_what_it_had_accepted(path: Path, client: EngineClient) -> None:
    """No future hangs on a daemon that is gone, and the same client talks to the next one."""
    daemon = Daemon(path)
    client.call("echo").result(WAIT_S)
    held = client.call("hold")
    client.call("echo").result(WAIT_S)
    daemon.close()
    assert error_of(held).code == "disconnected"
    daemon = Daemon(path)
    assert client.call("echo", n=2).result(WAIT_S) == {"n": 2}
    daemon.close()


def test_closing_the_client_fails_what_is_open(daemon: Daemon, path: Path) -> None:  # noqa: ARG001 - it must run
    """After ``close`` every future is done and new calls are refused."""
    client = EngineClient(path)
    held = client.call("hold")
    client.close()
    client.close()
    assert error_of(held).code == "closed"
    with pytest.raises(EngineError, match="closed"):
        client.call("echo")


@pytest.mark.parametrize("frame", [b"", b"\xc1", b"[1]", pack({"id": 1}), pack({"id": 1, "op": 5}), b"\x81\x01\x02"])
def test_malformed_requests_are_answered(daemon: Daemon, path: Path, frame: bytes) -> None:
    """Whatever is sent, the answer says what was expected, and the next request is served."""
    with daemon.context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(f"ipc://{path}")
        for sent, code in ((frame, "malformed"), (pack({"id": 3, "op": "echo"}), None)):
            dealer.send(sent)
            assert dealer.poll(WAIT_S * 1000)
            answer = unpack(dealer.recv())
            assert answer.get("code") == code


def test_the_socket_is_private(daemon: Daemon, path: Path) -> None:  # noqa: ARG001 - it must run
    """Directory 0700, socket 0600."""
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_live_daemons_socket_is_not_taken(daemon: Daemon, path: Path, client: EngineClient) -> None:
    """A second daemon of the same id does not start, and the first one goes on."""
    with pytest.raises(StartError, match="a daemon with this id is running"):
        EngineEndpoint(daemon.context, path, 1, daemon.execute)
    assert client.call("echo").result(WAIT_S) == {}


def test_a_dead_daemons_socket_is_replaced(path: Path) -> None:
    """What a killed daemon left behind does not keep the next one from starting."""
    script = (
        "import os, sys, pathlib, zmq; from runtime.engine_endpoint import EngineEndpoint;"
        "EngineEndpoint(zmq.Context(), pathlib.Path(sys.argv[1]), 1, None); os._exit(1)"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=False, env={**os.environ})
    assert path.exists()
    daemon = Daemon(path)
    with EngineClient(path) as client:
        assert client.call("echo").result(WAIT_S) == {}
    daemon.close()


def test_a_path_that_is_too_long_is_a_clear_error(tmp_path: Path, daemon: Daemon) -> None:
    """The error says how long a path may be and what to shorten."""
    with pytest.raises(StartError, match="at most 107 bytes"):
        EngineEndpoint(daemon.context, tmp_path / ("x" * 107), 1, daemon.execute)
