"""Real daemons under rough treatment: stopped, flooded and spoken to in the wrong language."""

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from signal import SIGCONT, SIGSTOP

import pytest
import zmq

from protocol.layout import PageRun
from runtime.engine_protocol import EngineError
from tests.integration.daemons import WAIT_S, Daemon, Deployment
from tests.integration.test_moving_kv import carry, longer, runs

SHORT_LEASES = ("--lease-s", "1.0", "--heartbeat-s", "0.2", "--grace-s", "0.2")


@pytest.fixture
def deploy(tmp_path: Path) -> Iterator[Callable[..., Deployment]]:
    """Start a deployment with extra decode settings; it is gone at the end."""
    made: list[Deployment] = []

    def start(plane: str, *decode: str, prefill: tuple[str, ...] = ()) -> Deployment:
        deployment = Deployment(tmp_path, plane)
        deployment.decode.command += decode
        deployment.prefill.command += prefill
        made.append(deployment)
        return deployment.start()

    yield start
    for deployment in made:
        deployment.close()


def sessions_of(deployment: Deployment) -> list[str]:
    """Current sessions of decode rank 0."""
    state = deployment.decode_engine.inspect(0).result(WAIT_S)["ranks"][0]
    return [session["session"] for session in state["sessions"] if not session["fenced"]]


@pytest.mark.parametrize("plane", ["shm", "zmq"])
def test_a_stopped_prefill_is_fenced_and_comes_back(deploy: Callable[..., Deployment], plane: str) -> None:
    """A prefill under SIGSTOP loses its session with its lease; after SIGCONT it subscribes again and rooms go through."""
    deployment = deploy(plane, *SHORT_LEASES)
    carry(deployment, "before", 50)
    former = sessions_of(deployment)
    deployment.prefill.signal(SIGSTOP)
    while set(sessions_of(deployment)) & set(former):
        pass
    deployment.prefill.signal(SIGCONT)
    carry(deployment, "after", 50, seed=4)


@pytest.mark.parametrize("daemon", ["decode", "prefill"])
def test_a_daemon_stopped_in_the_middle_of_a_room_goes_on(deploy: Callable[..., Deployment], daemon: str) -> None:
    """Stopped while tokens are still to come, and continued: the room arrives whole, byte for byte."""
    deployment = deploy("shm")
    source, destination = runs(6, 160)
    destination = longer(destination, 160)
    deployment.expect("room", 160, destination)
    stopped: Daemon = getattr(deployment, daemon)
    deployment.submit("room", 96, source, finish=False)
    stopped.signal(SIGSTOP)
    calls = []
    for rank in range(2):
        calls.append(deployment.prefill_engine.submit_chunk("room", rank, deployment.endpoints, 96, 64, source))
        calls.append(deployment.prefill_engine.finish_room("room", rank))
    stopped.signal(SIGCONT)
    for call in calls:
        call.result(WAIT_S)
    assert all(outcome.done for outcome in deployment.outcomes("room"))
    assert deployment.differences(160, source, destination) == 0


def test_strangers_on_every_port_disturb_nobody(deploy: Callable[..., Deployment]) -> None:
    """HTTP, noise and unfinished handshakes on control and data ports: rooms go through, and the log says what was refused."""
    deployment = deploy("zmq")
    strangers = []
    port = int(deployment.endpoints[0].rpartition(":")[2])
    for number in (port, port + 4):
        for text in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 20, bytes(range(256)) * 10, b"\xff", b""):
            stranger = socket.create_connection(("127.0.0.1", number))
            stranger.sendall(text)
            strangers.append(stranger)
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(deployment.endpoints[0])
        for frames in ([b"NEWS", b"\x80"], [b"SUBSCRIBE"], [b"STAGING_REQ", b"\xff" * 1000], [b""] * 20):
            dealer.send_multipart(frames)
        carry(deployment, "room", 100)
    for stranger in strangers:
        stranger.close()
    assert "frame_refused" in deployment.decode.log
    assert deployment.decode.end() == 0


def test_a_full_engine_socket_answers_busy_with_the_limit(deploy: Callable[..., Deployment]) -> None:
    """Waits up to the bound are accepted, one more is refused at once with the bound, and those accepted end well."""
    deployment = deploy("shm", "--max-engine-requests", "8")
    source, destination = runs(7, 40)
    deployment.expect("room", 40, destination)
    waits = [deployment.decode_engine.wait_room("room", 0) for _ in range(8)]
    with pytest.raises(EngineError) as caught:
        deployment.decode_engine.wait_room("room", 0).result(WAIT_S)
    assert (caught.value.code, caught.value.limit) == ("busy", 8)
    deployment.submit("room", 40, source)
    assert all(wait.result(WAIT_S).done for wait in waits)


def test_an_engine_that_vanishes_can_come_back(deploy: Callable[..., Deployment]) -> None:
    """A second engine aborts what the first one left behind, registers its pools again and goes on."""
    deployment = deploy("shm")
    deployment.expect("left", 40, runs(8, 40)[1])
    with pytest.raises(EngineError, match="1 rooms are live"):
        deployment.register_decode()
    for rank, state in enumerate(deployment.decode_engine.inspect().result(WAIT_S)["ranks"]):
        for room in state["rooms"]:
            deployment.decode_engine.abort_room(room["room"], rank).result(WAIT_S)
    deployment.register_decode()
    carry(deployment, "room", 40)


def test_a_pool_path_that_is_no_pool_is_refused(deploy: Callable[..., Deployment]) -> None:
    """Pages that are not in the pool are refused before anything moves, and the daemon serves on."""
    deployment = deploy("shm")
    with pytest.raises(EngineError, match="page 999 is not in the pool"):
        deployment.decode_engine.register_room("room", 0, "p", 8, PageRun((999,))).result(WAIT_S)
    with pytest.raises(EngineError, match="page 999 is not in the pool"):
        deployment.prefill_engine.submit_chunk("room", 0, deployment.endpoints, 0, 8, PageRun((999,))).result(WAIT_S)
    carry(deployment, "room", 8)
