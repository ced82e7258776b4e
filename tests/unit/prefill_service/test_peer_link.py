"""A connection to one decode rank: messages in order, bad frames beside them."""

from pathlib import Path

import zmq

from prefill_service.handler import PrefillStagingHandler
from prefill_service.peer_link import PeerLink
from prefill_service.surroundings import Surroundings
from protocol.codec import encode
from protocol.errors import RemoteProtocolError
from protocol.messages import HeartbeatAck, ToPrefill
from runtime.connections import Connections
from runtime.endpoint import RouterEndpoint, open_context
from runtime.loop import EventLoop
from runtime.workers import WorkerPool
from tests.unit.embedded import WAIT_S, prefill_config


def test_good_and_bad_frames_go_their_ways(tmp_path: Path) -> None:
    """Messages reach the machine, frames that are none are reported with what was wrong, and reading goes on."""
    loop, context = EventLoop(), open_context(1, 16)
    workers = WorkerPool(loop, 1, "worker")
    connections = Connections(loop, None, insecure=False)
    around = Surroundings(
        prefill_config(tmp_path), context, loop, workers, 1, "h", PrefillStagingHandler, lambda _: None, connections
    )
    heard: list[tuple[str, ToPrefill]] = []
    refused: list[tuple[str, RemoteProtocolError]] = []
    decode = RouterEndpoint(context, "tcp://127.0.0.1:0")
    link = PeerLink(
        decode.address, around, lambda peer, message: heard.append((peer, message)), lambda *error: refused.append(error)
    )
    assert link.dealer.socket.poll(WAIT_S * 1000, zmq.POLLOUT)
    link.dealer.send([b"HELLO"])
    assert decode.socket.poll(WAIT_S * 1000)
    received = decode.receive()
    assert received is not None
    decode.send(received[0], encode(HeartbeatAck("s", 1)))
    decode.send(received[0], [b"NONSENSE"])
    decode.send(received[0], encode(HeartbeatAck("s", 2)))
    while len(heard) + len(refused) < 3:
        loop.turn(1.0)
    assert heard == [(decode.address, HeartbeatAck("s", 1)), (decode.address, HeartbeatAck("s", 2))]
    assert [peer for peer, _ in refused] == [decode.address]
    link.close(0)
    decode.close()
    workers.close()
    loop.close()
    context.term()
