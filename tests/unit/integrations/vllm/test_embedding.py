"""Both halves in one process, commanded as vLLM does it, over caches in the orders of kernels: tokens arrive, blocks return."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog

from decode_service.server import DecodeStagingServer
from integrations.vllm import embedding
from integrations.vllm.cells import CellCache, CellCopies
from integrations.vllm.consumer_worker import ConsumerWorker
from integrations.vllm.embedding import Embedded, open_logs
from integrations.vllm.layered_copies import LayeredCopies
from integrations.vllm.orders import DISCARD, ConsumerOrders, Decline, Finish, Load, ProducerOrders, Release, Submission
from integrations.vllm.producer_worker import ProducerWorker
from integrations.vllm.reports import Due
from integrations.vllm.settings import read_consumer, read_producer
from integrations.vllm.step_gate import StepGate
from lab.ports import free_port_base
from prefill_service.client import PrefillStagingClient
from runtime.engine_protocol import EngineError
from runtime.foreign_pool import ForeignPool
from runtime.logs import logger
from tests.unit.integrations.vllm.cell_orders import plain, tiled
from tests.unit.integrations.vllm.shapes import SHAPE

BLOCKS, TOKENS, WAIT_S = 8, 45, 60.0
IDLE = ProducerOrders(is_idle=True)


class Pair:
    """One prefill worker with blocks of 16 tokens, one decode worker with blocks of 32."""

    def __init__(self, folder: Path) -> None:
        port = free_port_base(2)
        self.endpoint = f"tcp://127.0.0.1:{port}"
        common: dict[str, Any] = {"chunk_tokens": 16, "shm_dir": str(folder), "runtime_dir": str(folder / "run")}
        self._consumer = read_consumer({**common, "base_port": port, "data_base_port": port + 1, "ring_bytes": 1 << 16}).service
        self._producer = read_producer({**common, "decode_endpoints": [self.endpoint], "room_deadline_s": 30}).service
        self.source, self.target = self._cache(plain(16, 16), seed=1), self._cache(tiled(32, 16), seed=None)
        self.gate = StepGate(("first", "second"), WAIT_S)

    @contextmanager
    def run(self) -> Iterator[None]:
        """Both halves, for a while."""
        server = DecodeStagingServer(self._consumer)
        limits = {"timeout_s": WAIT_S, "idle_wait_s": WAIT_S}
        self.decode = ConsumerWorker(server.engine, rank=0, num_blocks=BLOCKS, block_size=32, log=logger(), **limits)
        layout, closed = SHAPE.rank(0, 1), self.decode.pool_closed
        pool = ForeignPool(layout, 32, 1000, scatter=CellCopies(self.target).scatter, closed=closed)
        self.ending = Embedded(server, partial(server.engine.attach_pool, 0, pool))
        client = PrefillStagingClient(self._producer)
        self.prefill = ProducerWorker(client.engine, self.gate, rank=0, preempt_wait_s=WAIT_S, idle_wait_s=WAIT_S, log=logger())
        pool = ForeignPool(layout, 16, BLOCKS, gather=LayeredCopies(self.source, self.gate).gather)
        half = Embedded(client, partial(client.engine.attach_pool, 0, pool))
        try:
            yield
        finally:
            half.stop()
            self.ending.stop()

    def tokens(self, cache: CellCache, blocks: tuple[int, ...], count: int) -> np.ndarray[Any, np.dtype[Any]]:
        """``[layer, tensor, token, head, dim]`` of the first tokens of these blocks."""
        order = cache.order
        found = [
            layer[list(blocks)][:, :, tensor][:, :, order.half(tensor).index].transpose(0, 2, 1, 3).reshape(-1, 2, 16)[:count]
            for layer in cache.layers
            for tensor in range(2)
        ]
        return np.stack(found)

    @staticmethod
    def _cache(order: Any, seed: int | None) -> CellCache:
        shape = (BLOCKS, 2, 2, order.block_size * order.head_size)
        draw = np.random.default_rng(seed)
        return CellCache(
            [np.zeros(shape, np.uint16) if seed is None else draw.integers(1, 60_000, shape, np.uint16) for _ in range(2)],
            order,
        )


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Two running halves."""
    subject = Pair(tmp_path)
    with subject.run():
        yield subject


def send(pair: Pair, room: str) -> None:
    """The prefill engine has finished request ``p``."""
    submission = Submission(room, (pair.endpoint,), 0, TOKENS, (5, 1, 2))
    pair.prefill.end_step(ProducerOrders(submissions=[submission], finishes=[Finish("p", room)]), broken=False)


def load(pair: Pair, room: str, blocks: tuple[int, ...] = (6, 3)) -> None:
    """The decode engine waits for request ``d``."""
    pair.decode.end_step(ConsumerOrders([Load("d", room, "vllm-prefill", TOKENS, blocks)]), broken=False)


def test_tokens_arrive_and_both_sides_report(pair: Pair) -> None:
    """Whole prompts move between unequal blocks and orders; each side reports its request once."""
    send(pair, "room")
    load(pair, "room")
    assert pair.decode.take(set(), ConsumerOrders(is_idle=True)) == Due(received=frozenset({"d"}))
    assert pair.prefill.take({"p"}, IDLE) == Due(sent=frozenset({"p"}))
    arrived = pair.tokens(pair.target, (6, 3), TOKENS)
    assert np.array_equal(arrived, pair.tokens(pair.source, (5, 1, 2), TOKENS))


def test_blocks_of_the_local_cache_are_not_written(pair: Pair) -> None:
    """What the decode engine holds already stays as it is."""
    load(pair, "room", (DISCARD, 3))
    send(pair, "room")
    assert pair.decode.take(set(), ConsumerOrders(is_idle=True)).received == {"d"}
    assert not pair.tokens(pair.target, (0, 1, 2, 4, 5, 6, 7), 7 * 32).any()
    assert np.array_equal(pair.tokens(pair.target, (3,), 13), pair.tokens(pair.source, (5, 1, 2), TOKENS)[:, 32:])


def test_layers_leave_one_by_one(pair: Pair) -> None:
    """Submitted before it is computed: no byte is read before its layer was saved, and everything arrives."""
    right = [layer.copy() for layer in pair.source.layers]
    for layer in pair.source.layers:
        layer[:] = 0
    load(pair, "room")
    submission = Submission("room", (pair.endpoint,), 0, TOKENS, (5, 1, 2))
    step = ProducerOrders(computed=frozenset({5, 1, 2}), submissions=[submission])
    pair.prefill.begin_step(step)
    for layer, values, name in zip(pair.source.layers, right, ("first", "second"), strict=True):
        layer[:] = values
        pair.prefill.layer_saved(name)
    pair.prefill.end_step(step, broken=False)
    pair.prefill.end_step(ProducerOrders(finishes=[Finish("p", "room")]), broken=False)
    assert pair.decode.take(set(), ConsumerOrders(is_idle=True)) == Due(received=frozenset({"d"}))
    assert pair.prefill.take({"p"}, IDLE).sent == {"p"}
    assert np.array_equal(pair.tokens(pair.target, (6, 3), TOKENS), pair.tokens(pair.source, (5, 1, 2), TOKENS))


def test_released_room_gives_the_blocks_back(pair: Pair) -> None:
    """A decode engine that does not want the KV says so, and the prefill engine's blocks come back at once."""
    send(pair, "room")
    pair.decode.end_step(ConsumerOrders(releases=[Release("room", "vllm-prefill", TOKENS)]), broken=False)
    assert pair.prefill.take({"p"}, IDLE) == Due(sent=frozenset({"p"}))
    assert not pair.tokens(pair.target, tuple(range(BLOCKS)), BLOCKS * 32).any()


def test_declined_room_ends_the_load(pair: Pair) -> None:
    """A prefill engine that will not send a room under the client's name says so to whoever waits for it already."""
    load(pair, "room")
    declined = ProducerOrders(declined=[Decline("room", (pair.endpoint,), "because")])
    pair.prefill.end_step(declined, broken=False)
    assert pair.decode.take(set(), ConsumerOrders(is_idle=True)) == Due(frozenset(), frozenset({"d"}), frozenset({6, 3}))


def test_aborted_load_is_reported(pair: Pair) -> None:
    """Nobody sends: an abort ends the load."""
    load(pair, "room")
    assert pair.decode.take({"d"}, ConsumerOrders(is_idle=True)) == Due(received=frozenset({"d"}))


def test_end_of_the_half_ends_the_loads(pair: Pair) -> None:
    """A service that stops leaves no request waiting."""
    load(pair, "room")
    pair.ending.stop()
    assert pair.decode.take(set(), ConsumerOrders(is_idle=True)) == Due(frozenset(), frozenset({"d"}), frozenset({6, 3}))


@pytest.mark.parametrize("configured", [True, False])
def test_logs_of_the_engine_are_left_alone(configured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that has a place for our logs keeps it; otherwise they go where those of a daemon go."""
    levels: list[str] = []
    monkeypatch.setattr(structlog, "is_configured", lambda: configured)
    monkeypatch.setattr(embedding, "configure_logs", levels.append)
    open_logs("warning")
    assert levels == ([] if configured else ["warning"])


def test_refused_pool_leaves_nothing_running(tmp_path: Path) -> None:
    """If the pool is refused, the half is ended before the error is raised."""
    client = PrefillStagingClient(read_producer({"runtime_dir": str(tmp_path / "run")}).service)
    refused: Future[dict[str, Any]] = Future()
    refused.set_exception(EngineError("layout", "because"))
    with pytest.raises(EngineError, match="because"):
        Embedded(client, lambda: refused)
    assert client.join() == 0


def test_process_that_forgets_ends_nevertheless(tmp_path: Path) -> None:
    """A worker that returns without a word does not hang on the half's thread."""
    program = f"""
from concurrent.futures import Future
from integrations.vllm import embedding
from integrations.vllm.embedding import Embedded, open_logs
from integrations.vllm.settings import read_producer
from prefill_service.client import PrefillStagingClient
done = Future()
done.set_result({{}})
Embedded(PrefillStagingClient(read_producer({{"runtime_dir": {str(tmp_path / "run")!r}}}).service), lambda: done)
"""
    root = Path(__file__).resolve().parents[4]
    assert subprocess.run([sys.executable, "-c", program], cwd=root, timeout=60, check=False).returncode == 0
