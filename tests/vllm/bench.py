"""The same requests through this project's connector and through vLLM's own, one after the other in one run, as JSON.

``python -m tests.vllm.bench [--requests 48] [--idle-s 20]``. For each: two ``vllm serve`` on this machine and the example's
proxy; a pause in which nothing is asked; the requests one at a time, then eight at a time. One server without transfer answers
the same requests for comparison. Tokens are compared, so a number of a wrong transfer is never printed.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from lab.ports import free_port_base
from tests.vllm.model import ModelShape, make_model
from tests.vllm.pairs import TOKENS, random_prompts
from tests.vllm.servers import AT_ONCE, LOADS_FILE, Completion, Server, complete, complete_all, proxy

SHAPE = ModelShape(layers=8, hidden=512, kv_heads=8, head_dim=64, intermediate=1024, seed=12)
"""Eight KV heads of 64 in eight layers of fp32: 32 KiB a token."""
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
WARM_UP = 8
MEMORY = ("--kv-cache-memory-bytes", str(512 << 20))

Connector = Callable[[int, str], tuple[dict[str, Any], dict[str, Any]]]
"""From a free run of ports and a folder to the transfer configurations of producer and consumer."""


def ours(ports: int, folder: str, save: str = "finish") -> tuple[dict[str, Any], dict[str, Any]]:
    """This project's connector with its own defaults."""
    common = {"runtime_dir": folder}
    consuming = {"decode_id": f"d-{ports}", "base_port": ports, "data_base_port": ports + 1, **common}
    producing = {"prefill_id": f"p-{ports}", "decode_endpoints": [f"tcp://127.0.0.1:{ports}"], "save": save, **common}
    name = {"kv_connector": "PdStagingConnector", "kv_connector_module_path": "tests.vllm.timed"}
    return (
        {**name, "kv_role": "kv_producer", "kv_connector_extra_config": producing},
        {**name, "kv_role": "kv_consumer", "kv_connector_extra_config": consuming},
    )


def theirs(ports: int, folder: str) -> tuple[dict[str, Any], dict[str, Any]]:  # noqa: ARG001 - as the other
    """The network connector of vLLM, over host memory."""
    name = {"kv_connector": "NixlConnector", "kv_connector_module_path": "tests.vllm.timed", "kv_buffer_device": "cpu"}
    return {**name, "kv_role": "kv_producer"}, {**name, "kv_role": "kv_consumer"}


def processor_seconds(server: Server) -> dict[str, float]:
    """Seconds of processor time so far of each process of a server, by the name it gives itself."""
    found: dict[str, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text(encoding="utf-8").partition(") ")
        except OSError:
            continue
        fields = rest.split()
        if int(fields[3]) == server.process.pid:
            key = f"{server.name}: {name.partition('(')[2]}"
            found[key] = found.get(key, 0.0) + (int(fields[11]) + int(fields[12])) / CLOCK_TICKS
    return found


@contextmanager
def processor_share(servers: Iterable[Server], shares: dict[str, float]) -> Iterator[None]:
    """Into ``shares``: which part of a core each process used meanwhile."""
    servers = list(servers)
    before, began = [processor_seconds(server) for server in servers], time.monotonic()
    yield
    took = time.monotonic() - began
    for server, earlier in zip(servers, before, strict=True):
        for name, seconds in processor_seconds(server).items():
            shares[name] = round((seconds - earlier.get(name, 0.0)) / took, 3)


def milliseconds(values: Sequence[float]) -> dict[str, float]:
    """Of some seconds: the median, the 90th percentile and the mean, in milliseconds."""
    ordered = sorted(values)
    ninth = ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]
    return {
        "median": round(1e3 * statistics.median(ordered), 2),
        "p90": round(1e3 * ninth, 2),
        "mean": round(1e3 * statistics.fmean(ordered), 2),
    }


class Loads:
    """The file in which a consumer notes its loads, read from where it was left."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def take(self) -> list[float]:
        """Seconds of every load since the last call."""
        lines = self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []
        new, self._read = lines[self._read :], len(lines)
        return [json.loads(line)["seconds"] for line in new]


def measure(
    port: int, servers: Sequence[Server], loads: Loads | None, prompts: list[list[int]], idle_s: float
) -> dict[str, Any]:
    """Everything about one way of answering the prompts, with the tokens under ``tokens``."""
    complete_all(port, prompts[:WARM_UP], TOKENS)
    if loads is not None:
        loads.take()
    report: dict[str, Any] = {"processor_idle": {}, "processor_loaded": {}}
    with processor_share(servers, report["processor_idle"]):
        threading.Event().wait(idle_s)
    one_by_one = [complete(port, prompt, TOKENS) for prompt in prompts]
    report["alone"] = described(one_by_one, loads)
    began = time.monotonic()
    with processor_share(servers, report["processor_loaded"]):
        together = complete_all(port, prompts, TOKENS)
    report["together"] = described(together, loads) | {"all_s": round(time.monotonic() - began, 2)}
    report["tokens"] = [completion.tokens for completion in one_by_one]
    assert [completion.tokens for completion in together] == report["tokens"], "the tokens change with the load"
    return report


def described(completions: Sequence[Completion], loads: Loads | None) -> dict[str, Any]:
    """Times of some completions, and of the loads that they waited for."""
    report = {
        "first_token_ms": milliseconds([completion.first_s for completion in completions]),
        "total_ms": milliseconds([completion.total_s for completion in completions]),
    }
    if loads is not None:
        seconds = loads.take()
        assert len(seconds) == len(completions), f"{len(seconds)} loads for {len(completions)} requests"
        report["transfer_ms"] = milliseconds(seconds)
    return report


def through(connector: Connector, folder: Path, model: Path, prompts: list[list[int]], idle_s: float) -> dict[str, Any]:
    """Measure one connector."""
    ports = free_port_base(6)
    runtime = tempfile.mkdtemp(prefix="pdv-", dir=folder)
    configs = connector(ports + 2, runtime)
    with ExitStack() as stack:
        servers = []
        for place, (role, config) in enumerate(zip(("producer", "consumer"), configs, strict=True)):
            environment = {
                LOADS_FILE: f"{runtime}/loads",
                "VLLM_NIXL_SIDE_CHANNEL_PORT": str(ports + 4 + place),
                "UCX_TLS": "tcp",
                "UCX_NET_DEVICES": "lo",
            }
            options = (*MEMORY, "--kv-transfer-config", json.dumps(config))
            servers.append(stack.enter_context(Server(role, folder, ports + place, model, *options, environment=environment)))
        for server in servers:
            server.wait_ready()
        port = stack.enter_context(proxy(*servers))
        return measure(port, servers, Loads(Path(runtime) / "loads"), prompts, idle_s)


def alone(folder: Path, model: Path, prompts: list[list[int]], idle_s: float) -> dict[str, Any]:
    """One server that computes and continues."""
    port = free_port_base(1)
    with Server("plain", folder, port, model, *MEMORY, environment={}) as server:
        server.wait_ready()
        return measure(port, [server], None, prompts, idle_s)


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=48, help="how many random prompts (48)")
    parser.add_argument("--idle-s", type=float, default=20.0, help="how long to watch servers that have nothing to do (20)")
    arguments = parser.parse_args()
    prompts = random_prompts(arguments.requests, seed=48)
    with tempfile.TemporaryDirectory(prefix="pdv-bench-") as name:
        folder = Path(name)
        model = make_model(folder, SHAPE)
        ways: Mapping[str, Callable[[], dict[str, Any]]] = {
            "no transfer": lambda: alone(folder, model, prompts, arguments.idle_s),
            "pd-staging, save finish": lambda: through(ours, folder, model, prompts, arguments.idle_s),
            "pd-staging, save layer": lambda: through(
                lambda ports, where: ours(ports, where, "layer"), folder, model, prompts, arguments.idle_s
            ),
            "NixlConnector": lambda: through(theirs, folder, model, prompts, arguments.idle_s),
        }
        reports = {}
        for way, measured in ways.items():
            before = os.getloadavg()[0]
            reports[way] = measured() | {"load_before": before, "load_after": os.getloadavg()[0]}
            # What has been measured is not lost if a later way fails.
            sys.stderr.write(f"{way}: {json.dumps({**reports[way], 'tokens': '...'})}\n")
    tokens = {way: report.pop("tokens") for way, report in reports.items()}
    assert all(found == tokens["no transfer"] for found in tokens.values()), "the tokens differ"
    kv_bytes = SHAPE.layers * 2 * SHAPE.kv_heads * SHAPE.head_dim * 4
    machine = {"processors": os.cpu_count(), "machine": platform.machine(), "python": sys.version.split()[0]}
    workload = {
        "requests": len(prompts),
        "prompt_tokens": sum(map(len, prompts)),
        "kv_bytes_of_a_token": kv_bytes,
        "tokens": TOKENS,
        "at_once": AT_ONCE,
    }
    sys.stdout.write(json.dumps({"machine": machine, "workload": workload, "results": reports}, indent=1) + "\n")


if __name__ == "__main__":
    main()
