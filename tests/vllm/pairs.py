"""One producer and one consumer of a model, joined by the connector, and the way of a request through both."""

import itertools
import os
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from lab.ports import free_port_base
from tests.vllm.engines import Accounts, Answer, Engine, Request
from tests.vllm.model import FIRST_WORD, ModelShape

TOKENS = 16
"""Length of every completion that is compared."""
LONGEST_PROMPT = 900
CHUNK_TOKENS = 128
PRODUCE = {"do_remote_decode": True, "do_remote_prefill": False}
"""What a proxy gives the producer."""

_names = itertools.count()


@dataclass(frozen=True)
class Side:
    """One engine of a pair: its TP size, arguments of vLLM beyond the common ones, and settings of the connector."""

    tp: int = 1
    arguments: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PairShape:
    """What can be chosen about a pair."""

    model: ModelShape = field(default_factory=ModelShape)
    dtype: str = "float32"
    save: str = "finish"
    policy: str = "fail"
    producer: Side = field(default_factory=Side)
    consumer: Side = field(default_factory=Side)


def engine_arguments(model: Path, dtype: str) -> dict[str, Any]:
    """What every engine of these tests is started with."""
    return {
        "model": str(model),
        "dtype": dtype,
        "max_model_len": 2048,
        "max_num_seqs": 8,
        "kv_cache_memory_bytes": 64 << 20,
        "enable_prefix_caching": False,
    }


def random_prompts(number: int, seed: int, longest: int = LONGEST_PROMPT, vocabulary: int = 512) -> list[list[int]]:
    """Prompts of random length and random words."""
    draw = random.Random(seed)
    return [[draw.randrange(FIRST_WORD, vocabulary) for _ in range(draw.randrange(2, longest))] for _ in range(number)]


class Pair:
    """Both engines, started together. Close it."""

    def __init__(self, shape: PairShape, model: Path, logs: Path) -> None:
        self.shape = shape
        self._model = model
        self._logs = logs
        self._name = f"v{os.getpid()}-{next(_names)}"
        self._runtime = tempfile.TemporaryDirectory(prefix="pdv-")
        self._ports = free_port_base(2 * shape.consumer.tp)
        self.producer = self._start_producer()
        self.consumer = self._start_consumer()
        self.producer_start, self.consumer_start = self.producer.wait_ready(), self.consumer.wait_ready()

    @property
    def group(self) -> str:
        """The producer's group, as the consumer must name it."""
        return f"{self._name}-p"

    @property
    def endpoints(self) -> list[str]:
        """Control endpoints of the consumer's ranks."""
        return [f"tcp://127.0.0.1:{self._ports + rank}" for rank in range(self.shape.consumer.tp)]

    def restart_consumer(self) -> None:
        """A new life of the consumer, under the same name and ports."""
        self.consumer = self._start_consumer()
        assert self.consumer.wait_ready() == self.consumer_start

    def restart_producer(self) -> None:
        """A new life of the producer, under the same name."""
        self.producer = self._start_producer()
        assert self.producer.wait_ready() == self.producer_start

    def prefill(self, prompt: Sequence[int], **more: Any) -> Request:
        """Ask the producer for a prompt's KV."""
        return self.producer.generate(prompt, 1, PRODUCE | more)

    def decode(self, prompt: Sequence[int], kv: dict[str, Any] | None, tokens: int = TOKENS) -> Request:
        """Ask the consumer for a completion of a prompt that the producer has computed."""
        assert kv is not None, "the producer announced no transfer"
        return self.consumer.generate(prompt, tokens, kv)

    def complete(self, prompts: Sequence[Sequence[int]], tokens: int = TOKENS) -> list[Answer]:
        """Every prompt through both engines, as many at once as they take; each is decoded as soon as it was computed."""
        prefills = [self.prefill(prompt) for prompt in prompts]
        decodes = [self.decode(prompt, prefill.result().kv, tokens) for prompt, prefill in zip(prompts, prefills, strict=True)]
        return [decode.result() for decode in decodes]

    def assert_nothing_left(self) -> None:
        """Both engines have every block back, no room lives on either side, and the ring is empty."""
        assert self.producer.idle().free_blocks == self.producer_start.free_blocks
        assert self.consumer.idle().free_blocks == self.consumer_start.free_blocks
        for engine in (self.producer, self.consumer):
            left = engine.call("tests.vllm.tampering:leftovers")
            assert not any(left), f"{engine.name}: {left}"

    def close(self) -> None:
        """End both."""
        self.producer.request_end()
        self.consumer.request_end()
        for engine in (self.producer, self.consumer):
            engine.close()
        self._runtime.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _start_producer(self) -> Engine:
        settings = {"prefill_id": self.group, "save": self.shape.save, "decode_endpoints": self.endpoints}
        return self._engine("producer", self.shape.producer, settings)

    def _start_consumer(self) -> Engine:
        ports = {"base_port": self._ports, "data_base_port": self._ports + self.shape.consumer.tp}
        settings = {"decode_id": f"{self._name}-d", "ring_bytes": 8 << 20, **ports}
        return self._engine("consumer", self.shape.consumer, settings)

    def _engine(self, role: str, side: Side, settings: dict[str, Any]) -> Engine:
        common = {"chunk_tokens": CHUNK_TOKENS, "runtime_dir": self._runtime.name, "http_port": 0}
        transfer = {
            "kv_connector": "PdStagingConnector",
            "kv_connector_module_path": "integrations.vllm.connector",
            "kv_role": f"kv_{role}",
            "kv_load_failure_policy": self.shape.policy,
            "kv_connector_extra_config": {**common, **settings, **side.settings},
        }
        arguments = {**engine_arguments(self._model, self.shape.dtype), "tensor_parallel_size": side.tp, **side.arguments}
        return Engine(role, self._logs, **arguments, kv_transfer_config=transfer)


class Plain:
    """An engine that knows of no transfer, and what it says to each prompt."""

    def __init__(self, model: Path, logs: Path, dtype: str) -> None:
        self.engine = Engine("plain", logs, **engine_arguments(model, dtype))
        self._start: Accounts | None = None

    def complete(self, prompts: Sequence[Sequence[int]], tokens: int = TOKENS) -> list[tuple[int, ...]]:
        """The right completions."""
        self.engine.wait_ready()
        requests = [self.engine.generate(prompt, tokens) for prompt in prompts]
        return [request.result().tokens for request in requests]
