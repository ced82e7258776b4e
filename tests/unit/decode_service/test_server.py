"""The decode daemon's life: everything is taken before it begins, and nothing is left when it ends."""

import socket
from pathlib import Path
from random import Random

import pytest

from decode_service.allocator import StagingAllocator
from decode_service.handler import DecodeStagingHandler
from decode_service.handler_settings import DecodeHandlerSettings
from decode_service.server import DecodeStagingServer
from runtime.engine_protocol import EngineError
from runtime.errors import StartError
from tests.unit.embedded import RUN, WAIT_S, EmbeddedPair, decode_config, leftovers, private_pool


def test_it_starts_answers_and_stops(tmp_path: Path) -> None:
    """A started server says where it is, answers its engine, stops with 0 and leaves no file; afterwards calls are refused."""
    config = decode_config(tmp_path)
    server = DecodeStagingServer(config)
    server.start()
    assert server.endpoints == {
        "control_0": f"tcp://127.0.0.1:{config.base_port}",
        "engine": str(tmp_path / "run" / "decode.engine.sock"),
    }
    assert server.engine.ping().result(WAIT_S)["ranks"] == [0]
    server.request_stop()
    server.request_stop()
    assert server.join() == 0
    assert leftovers(tmp_path) == []
    with pytest.raises(EngineError, match="closed"):
        server.engine.ping()


def test_a_taken_port_stops_the_start_and_leaves_nothing(tmp_path: Path) -> None:
    """Whatever was opened before the port that is taken is closed again, and a later start succeeds."""
    config = decode_config(tmp_path)
    with socket.create_server(("127.0.0.1", config.data_base_port)), pytest.raises(StartError, match="in use"):
        DecodeStagingServer(config).start()
    assert leftovers(tmp_path) == []
    with DecodeStagingServer(config):
        pass


def test_two_servers_of_one_id_do_not_start(tmp_path: Path) -> None:
    """The second one is refused by the lock of the engine's socket, and the first one goes on."""
    with DecodeStagingServer(decode_config(tmp_path)) as first:
        with pytest.raises(StartError, match="a daemon with this id is running"):
            DecodeStagingServer(decode_config(tmp_path)).start()
        assert first.engine.ping().result(WAIT_S)


def test_a_stop_asked_for_before_the_start_is_kept(tmp_path: Path) -> None:
    """A signal that comes during ``start`` is not lost."""
    server = DecodeStagingServer(decode_config(tmp_path))
    server.request_stop()
    server.start()
    assert server.join() == 0


def test_a_stop_fails_the_rooms_that_are_left(tmp_path: Path) -> None:
    """An engine that waits for a room hears that the daemon stopped, and no call hangs."""
    server = DecodeStagingServer(decode_config(tmp_path))
    server.start()
    server.engine.attach_pool(0, private_pool()).result(WAIT_S)
    server.engine.register_room("room", 0, "prefill", 8, RUN).result(WAIT_S)
    waiting = server.engine.wait_room("room", 0)
    server.request_stop()
    assert waiting.result(WAIT_S).code == "aborted"
    assert server.join() == 0


def test_a_fault_ends_the_daemon_with_1_and_leaves_nothing(tmp_path: Path) -> None:
    """A bug stops the loop; it never goes on with a broken machine, and open calls fail."""

    def broken(settings: DecodeHandlerSettings, allocator: StagingAllocator, random: Random) -> DecodeStagingHandler:
        raise ZeroDivisionError(settings.decode_id, allocator, random)

    server = DecodeStagingServer(decode_config(tmp_path), make_handler=broken)
    server.start()
    registered = server.engine.attach_pool(0, private_pool())
    assert server.join() == 1
    with pytest.raises(EngineError, match="closed"):
        registered.result(WAIT_S)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("planes", [("shm",), ("zmq",), ("shm", "zmq")])
def test_an_embedded_pair_moves_a_room(tmp_path: Path, planes: tuple[str, ...]) -> None:
    """Both services as libraries in one process carry a room over any plane, byte for byte."""
    with EmbeddedPair(tmp_path, planes) as pair:
        decode, prefill = pair.carry("room", 50)
        assert (decode.done, prefill.done) == (True, True)
        assert pair.destination.memory.reshape(-1).nbytes == pair.source.memory.nbytes
        for layer in range(2):
            for tensor in range(2):
                sent = pair.source.view(layer, tensor).reshape(-1, 2, 32)[:50]
                got = pair.destination.view(layer, tensor).reshape(-1, 2, 32)[:50]
                assert (sent == got).all()
