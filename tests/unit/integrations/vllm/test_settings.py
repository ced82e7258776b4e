"""``kv_connector_extra_config``: every setting of the half by its name, and every mistake at once."""

from pathlib import Path

import pytest

from integrations.vllm.settings import consumer_of_rank, group_of, producer_of_rank, read_consumer, read_producer
from runtime.settings import ConfigurationError


def problems_of(error: ConfigurationError) -> dict[str, str]:
    """The text of each problem by its first field."""
    return {problem.fields[0]: str(problem) for problem in error.problems}


def test_defaults_suit_an_engine() -> None:
    """Quiet, without an HTTP port, and patient with requests that wait in the decode engine's queue."""
    consumer, producer = read_consumer({}), read_producer({})
    assert (consumer.service.decode_id, consumer.service.http_port, consumer.service.log_level) == ("vllm-decode", 0, "warning")
    assert consumer.service.park_s > producer.service.room_deadline_s
    assert (producer.service.prefill_id, producer.service.group) == ("vllm-prefill", "vllm-prefill")
    assert producer.options.save == "finish"
    assert consumer.options.prefill_group == group_of(producer.service)


def test_names_are_those_of_the_services(tmp_path: Path) -> None:
    """Values may be typed as in JSON or written as on the command line; sessions exist before the first request."""
    consumer = read_consumer({"ring_bytes": "64MiB", "base_port": 9000, "runtime_dir": str(tmp_path), "planes": ["shm"]})
    assert (consumer.service.ring_bytes, consumer.service.base_port) == (64 << 20, 9000)
    producer = read_producer({"decode_endpoints": "tcp://127.0.0.1:9000-9001", "save": "layer", "group": "g"})
    assert producer.options.decode_endpoints == ("tcp://127.0.0.1:9000", "tcp://127.0.0.1:9001")
    assert producer.service.decode_peers == producer.options.decode_endpoints
    assert producer.service.group == "g"
    assert read_producer({"decode_peers": ["tcp://127.0.0.1:1"]}).service.decode_peers == ("tcp://127.0.0.1:1",)


def test_every_mistake_is_told_at_once() -> None:
    """Unknown names, values that cannot be read, values out of bounds, and what vLLM decides, each with what to do."""
    with pytest.raises(ConfigurationError) as caught:
        read_consumer({"ring_byte": 1, "base_port": "x", "park_s": -1, "load_timeout_s": "soon", "ranks": [0], "save": "layer"})
    found = problems_of(caught.value)
    assert found.keys() == {"ring_byte", "base_port", "park_s", "load_timeout_s", "ranks", "save"}
    assert "did you mean ring_bytes?" in found["ring_byte"]
    assert "each tensor-parallel worker" in found["ranks"]
    assert "base_port in kv_connector_extra_config" in found["base_port"]


def test_producer_needs_a_decode_engine() -> None:
    """An empty list of endpoints, or a way of saving that does not exist, is a mistake."""
    with pytest.raises(ConfigurationError) as caught:
        read_producer({"decode_endpoints": [], "save": "sometimes"})
    assert {"save"} <= problems_of(caught.value).keys()
    with pytest.raises(ConfigurationError, match="decode_endpoints"):
        read_producer({"decode_endpoints": []})


def test_key_files_are_looked_at_before_a_start(tmp_path: Path) -> None:
    """A key that cannot be read is told like any other mistake."""
    missing = str(tmp_path / "key")
    with pytest.raises(ConfigurationError, match="server_key"):
        read_consumer({"server_key": missing, "allow_list": missing})


def test_each_rank_has_names_and_ports_of_its_own() -> None:
    """Several workers on one host share no socket, no segment and no port; one alone keeps the plain name."""
    service = read_consumer({"http_port": 9100}).service
    second = consumer_of_rank(service, 1, 2)
    assert (second.ranks, second.decode_id, second.http_port) == ((1,), "vllm-decode.tp1", 9101)
    assert consumer_of_rank(service, 0, 1).decode_id == "vllm-decode"
    prefill = read_producer({}).service
    first = producer_of_rank(prefill, 0, 2)
    assert (first.prefill_id, first.group, first.http_port) == ("vllm-prefill.tp0", "vllm-prefill", 0)
    assert producer_of_rank(prefill, 0, 1).prefill_id == "vllm-prefill"
