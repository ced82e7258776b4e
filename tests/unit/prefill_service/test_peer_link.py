"""A connection to one decode rank: messages in order, bad frames beside them."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lab.ports import free_port_base
from prefill_service.handler import PrefillStagingHandler
from prefill_service.peer_link import PeerLink
from prefill_service.plane_access import PlaneAccess
from prefill_service.surroundings import Surroundings
from protocol.codec import decode_to_decode, encode
from protocol.errors import RemoteProtocolError
from protocol.messages import Heartbeat, HeartbeatAck, ToPrefill
from protocol.watermark import START
from runtime.connections import Connections
from runtime.endpoint import RouterEndpoint, SendOutcome, open_context
from runtime.loop import EventLoop
from runtime.planes import select_planes
from runtime.workers import WorkerPool
from tests.unit.embedded import WAIT_S, decode_config, prefill_config, subscribe

HEARTBEAT = Heartbeat("s", 1, START)


class Bench:
    """A link to a decode endpoint that a test opens when it likes, and everything the link reports."""

    def __init__(self, folder: Path) -> None:
        self.loop, self.context = EventLoop(), open_context(1, 16)
        self._workers = WorkerPool(self.loop, 1, "worker")
        connections = Connections(self.loop, None, insecure=False)
        shared = (prefill_config(folder), self.context, self.loop, self._workers, 1, "h")
        access = PlaneAccess(select_planes(("zmq",)))
        around = Surroundings(*shared, PrefillStagingHandler, lambda _: None, connections, access)
        self.heard: list[tuple[str, ToPrefill]] = []
        self.refused: list[tuple[str, RemoteProtocolError]] = []
        self.peer = f"tcp://127.0.0.1:{free_port_base(1)}"
        self.link = PeerLink(self.peer, around, self._receive, self._refuse)

    def _receive(self, peer: str, message: ToPrefill) -> None:
        self.heard.append((peer, message))

    def _refuse(self, peer: str, error: RemoteProtocolError) -> None:
        self.refused.append((peer, error))

    def turn_until(self, arrived: Callable[[], bool]) -> None:
        """Turn the loop until it is so."""
        while not arrived():
            self.loop.turn(0.1)

    def close(self) -> None:
        """Close everything."""
        self.link.close(0)
        self._workers.close()
        self.loop.close()
        self.context.term()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A bench whose sockets are closed at the end."""
    made = Bench(tmp_path)
    yield made
    made.close()


def test_good_and_bad_frames_go_their_ways(bench: Bench) -> None:
    """Messages reach the machine, frames that are none are reported with what was wrong, and reading goes on."""
    decode = RouterEndpoint(bench.context, bench.peer)
    bench.turn_until(lambda: bench.link.send(HEARTBEAT) is SendOutcome.SENT)
    assert decode.socket.poll(WAIT_S * 1000)
    received = decode.receive()
    assert received is not None
    for frames in (encode(HeartbeatAck("s", 1)), [b"NONSENSE"], encode(HeartbeatAck("s", 2))):
        decode.send(received[0], frames)
    bench.turn_until(lambda: len(bench.heard) + len(bench.refused) == 3)
    assert bench.heard == [(bench.peer, HeartbeatAck("s", 1)), (bench.peer, HeartbeatAck("s", 2))]
    assert [peer for peer, _ in bench.refused] == [bench.peer]
    decode.close()


def test_the_latest_subscription_goes_out_with_the_connection(bench: Bench, tmp_path: Path) -> None:
    """While nobody listens a ``SUBSCRIBE`` waits, replaced by each later one; anything else is dropped; then one goes out."""
    message = subscribe(decode_config(tmp_path))
    assert bench.link.send(message) is SendOutcome.FULL
    assert bench.link.send(HEARTBEAT) is SendOutcome.FULL
    latest = replace(message, attempt=2)
    assert bench.link.send(latest) is SendOutcome.FULL
    decode = RouterEndpoint(bench.context, bench.peer)
    bench.turn_until(lambda: bool(decode.socket.poll(0)))
    received = decode.receive()
    assert received is not None
    assert decode_to_decode(received[1]) == latest
    bench.loop.turn(0.0)
    assert decode.receive() is None
    decode.close()


def test_what_does_not_leave_is_counted_until_something_does(bench: Bench, tmp_path: Path) -> None:
    """Without a listener there is no connection, since the first message that found none; the first that leaves ends it."""
    assert bench.link.unsent() is None
    bench.link.send(subscribe(decode_config(tmp_path)))
    bench.link.send(HEARTBEAT)
    held_up = bench.link.unsent()
    assert held_up is not None
    assert (held_up.messages, held_up.obstacle) == (2, "no connection to")
    assert held_up.since <= bench.loop.clock()
    decode = RouterEndpoint(bench.context, bench.peer)
    bench.turn_until(lambda: bench.link.unsent() is None)
    decode.close()
