"""``vllm serve`` as a process, a client for completions of token ids, and two servers behind the example's proxy."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from examples.vllm_proxy import Servers, make_proxy
from tests.vllm.engines import ENVIRONMENT, ROOT, START_S, WAIT_S, EngineDied

STARTED = "Application startup complete"
MODEL_NAME = "tiny"
AT_ONCE = 8
LOADS_FILE = "LOADS_FILE"
"""Names the file into which ``tests.vllm.timed`` writes."""
_SAMPLE = re.compile(r"^(\w[\w:]*)(?:\{(.*)\})? ([0-9.eE+-]+|NaN)$", re.MULTILINE)


@dataclass(frozen=True)
class Completion:
    """Token ids, and seconds from the request to the first of them and to the end."""

    tokens: tuple[int, ...]
    first_s: float
    total_s: float


class Server:
    """One server. Close it."""

    def __init__(self, name: str, folder: Path, port: int, model: Path, *options: str, environment: dict[str, str]) -> None:
        self.name = name
        self.port = port
        self._log = folder / f"serve-{name}-{port}.log"
        self._started = threading.Event()
        vllm = str(Path(sys.executable).with_name("vllm"))
        memory = ("--kv-cache-memory-bytes", str(64 << 20), "--no-enable-prefix-caching", "--max-num-seqs", "8")
        common = ("--dtype", "float32", "--enforce-eager", "--max-model-len", "2048", "--served-model-name", MODEL_NAME)
        place = ("--host", "127.0.0.1", "--port", str(port))
        self.process = subprocess.Popen(
            [vllm, "serve", str(model), *place, *common, *memory, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            # A connection that the server closes between two requests would be an error of nobody's.
            env=os.environ | ENVIRONMENT | {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "60"} | environment,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_ready(self) -> Self:
        """Until it answers requests. Raises ``EngineDied``."""
        if not self._started.wait(START_S) or self.process.poll() is not None:
            tail = "\n".join(self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-200:])
            raise EngineDied(f"the {self.name} server did not start; its log ends with\n{tail}")
        return self

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels; 0 if there is none."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=WAIT_S) as response:
            text = response.read().decode()
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        found = (match for match in _SAMPLE.finditer(text) if match[1] == name)
        return sum(float(match[3]) for match in found if all(pair in (match[2] or "") for pair in wanted))

    def close(self) -> None:
        """End it and every process of it."""
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines, self._log.open("wb") as log:
            for line in lines:
                log.write(line)
                log.flush()
                if STARTED.encode() in line:
                    self._started.set()
        # It has ended: whoever waits learns it.
        self.process.wait()
        self._started.set()


def complete(port: int, prompt: Sequence[int], tokens: int, **more: Any) -> Completion:
    """One completion, streamed. Raises ``urllib.error.HTTPError`` with the server's words in its notes."""
    body = {"model": MODEL_NAME, "prompt": list(prompt), "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    body |= {"return_token_ids": True, "stream": True, **more}
    address = f"http://127.0.0.1:{port}/v1/completions"
    request = urllib.request.Request(address, json.dumps(body).encode(), {"Content-Type": "application/json"})
    began, first, found = time.monotonic(), 0.0, list[int]()
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as response:
            for event in _events(response):
                first = first or time.monotonic() - began
                found += event["choices"][0].get("token_ids") or []
    except urllib.error.HTTPError as error:
        error.add_note(error.read().decode(errors="replace"))
        raise
    return Completion(tuple(found), first, time.monotonic() - began)


def complete_all(port: int, prompts: Sequence[Sequence[int]], tokens: int) -> list[Completion]:
    """Every prompt, ``AT_ONCE`` at a time."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return list(threads.map(lambda prompt: complete(port, prompt, tokens), prompts))


@contextmanager
def proxy(producer: Server, consumer: Server) -> Iterator[int]:
    """The port of the example's proxy before these two."""
    servers = Servers(f"127.0.0.1:{producer.port}", f"127.0.0.1:{consumer.port}")
    with make_proxy(0, servers) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running.server_port
        running.shutdown()
        thread.join()


def _events(response: Any) -> Iterator[dict[str, Any]]:
    """The JSON bodies of a stream of server-sent events."""
    for line in response:
        text = line.decode().strip()
        if text.startswith("data: ") and text != "data: [DONE]":
            yield json.loads(text.removeprefix("data: "))
