"""Two ``vllm serve`` and a proxy: what an operator runs."""

import json
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.ports import free_port_base
from tests.vllm.conftest import ModelFolder, PlainEngine
from tests.vllm.engines import WAIT_S
from tests.vllm.model import ModelShape
from tests.vllm.pairs import TOKENS, random_prompts
from tests.vllm.servers import MODEL_NAME, Server, complete, complete_all, proxy

pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow]

REQUESTS = 48
ROOM_DEADLINE_S = 2 * WAIT_S
SOURCE = "vllm:prompt_tokens_by_source_total"


class Deployment:
    """A producer, a consumer and the proxy's port."""

    def __init__(self, producer: Server, consumer: Server, port: int) -> None:
        self.producer, self.consumer, self.port = producer, consumer, port


def transfer_config(role: str, **settings: Any) -> tuple[str, str]:
    """The option that gives a server its half."""
    config = {
        "kv_connector": "PdStagingConnector",
        "kv_connector_module_path": "integrations.vllm.connector",
        "kv_role": role,
        "kv_connector_extra_config": settings,
    }
    return "--kv-transfer-config", json.dumps(config)


@pytest.fixture(scope="module")
def deployment(model_folder: ModelFolder, logs: Path) -> Iterator[Deployment]:
    """Both servers are up."""
    ports, model = free_port_base(4), model_folder(ModelShape())
    with tempfile.TemporaryDirectory(prefix="pdv-") as runtime:
        common = {"runtime_dir": runtime, "chunk_tokens": 128}
        held = {"room_deadline_s": ROOM_DEADLINE_S}
        endpoints = [f"tcp://127.0.0.1:{ports + 2}"]
        producing = transfer_config("kv_producer", prefill_id=f"p-{ports}", decode_endpoints=endpoints, **common, **held)
        consuming = transfer_config(
            "kv_consumer", decode_id=f"d-{ports}", base_port=ports + 2, data_base_port=ports + 3, ring_bytes=8 << 20, **common
        )
        with (
            Server("producer", logs, ports, model, *producing, environment={}) as producer,
            Server("consumer", logs, ports + 1, model, *consuming, environment={}) as consumer,
            proxy(producer.wait_ready(), consumer.wait_ready()) as port,
        ):
            yield Deployment(producer, consumer, port)


def test_completions_over_http(deployment: Deployment, plain_engine: PlainEngine) -> None:
    """Forty-eight requests, eight at a time: the tokens are right, and the consumer computed next to nothing of the prompts."""
    prompts = random_prompts(REQUESTS, seed=48)
    expected = plain_engine(ModelShape(), "float32").complete(prompts)
    found = complete_all(deployment.port, prompts, TOKENS)
    assert [completion.tokens for completion in found] == expected
    total = sum(map(len, prompts))
    fetched = deployment.consumer.metric(SOURCE, source="external_kv_transfer")
    computed = deployment.consumer.metric(SOURCE, source="local_compute")
    assert fetched + computed == total
    assert computed <= REQUESTS, "more than the last token of each prompt"


def test_a_rejected_request_costs_nothing(deployment: Deployment) -> None:
    """The decode server refuses a request whose KV waits for it: the producer's blocks come free, long before any deadline."""
    (prompt,) = random_prompts(1, seed=4)
    body = {"model": MODEL_NAME, "prompt": prompt, "max_tokens": 1, "temperature": 0}
    params = post(deployment.producer.port, body | {"kv_transfer_params": {"do_remote_decode": True}})["kv_transfer_params"]
    with pytest.raises(urllib.error.HTTPError, match="400"):
        complete(deployment.consumer.port, prompt, 100_000, kv_transfer_params=params)
    wait_until_unused(deployment.producer)
    # And it goes on.
    assert len(complete(deployment.port, prompt, TOKENS).tokens) == TOKENS


def post(port: int, body: dict[str, Any]) -> dict[str, Any]:
    """The answer to a completion that is not streamed."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=WAIT_S) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def wait_until_unused(server: Server) -> None:
    """Until no block of its cache is in use. It tells only with a step, so it is given something to do each time."""
    deadline = time.monotonic() + ROOM_DEADLINE_S / 2
    while server.metric("vllm:kv_cache_usage_perc") > 0:
        assert time.monotonic() < deadline, "blocks are still held"
        post(server.port, {"model": MODEL_NAME, "prompt": [5, 6, 7], "max_tokens": 2})
