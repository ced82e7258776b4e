"""Engines as processes: started once, told what to do over a pipe, asked for their accounts, killed, stopped and gone on."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[2]
START_S = 240.0
WAIT_S = 180.0
END_S = 60.0
RANKS_SHARE = "/dev/shm/vllm_dist_"
POLL_S = 0.02
"""Bounds on waiting for an event, far above what it takes on a machine with nothing else to do."""

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # Threads of OpenMP spin: with more of them than idle cores everything takes thirty times as long.
    "OMP_NUM_THREADS": "1",
    # Pinned workers would pin the threads that move KV as well.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "INFO",
    "PYTHONPATH": str(ROOT),
}


class EngineDied(Exception):
    """The engine's process ended while something was expected of it. The message has the end of its log."""


@dataclass(frozen=True)
class Answer:
    """How a request ended: its tokens, vLLM's reason, and the transfer parameters for whoever decodes."""

    tokens: tuple[int, ...]
    reason: str
    kv: dict[str, Any] | None


@dataclass(frozen=True)
class Accounts:
    """Free blocks and preemptions so far of an engine that has nothing to do."""

    free_blocks: int
    preemptions: int


class Engine:
    """One engine process. Close it."""

    def __init__(self, name: str, folder: Path, **arguments: Any) -> None:
        self._names = count()
        self.name = name
        self._log = folder / f"{name}-{os.urandom(3).hex()}.log"
        self._waiting: dict[str, Future[dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self._ended = False
        self._shared: set[Path] = set()
        defaults: dict[str, Any] = {"skip_tokenizer_init": True, "enforce_eager": True, "seed": 0, "disable_log_stats": True}
        tensor_parallel = arguments.get("tensor_parallel_size", 1)
        defaults["distributed_executor_backend"] = "uni" if tensor_parallel == 1 else "mp"
        self._ready = self._expect("ready")
        self._start({**defaults, **arguments})

    def _start(self, arguments: dict[str, Any]) -> None:
        answers, theirs = os.pipe()
        command = [sys.executable, "-m", "tests.vllm.engine_worker", str(theirs), json.dumps(arguments)]
        with self._log.open("w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs,),
                cwd=ROOT,
                env=os.environ | ENVIRONMENT,
                text=True,
                start_new_session=True,
            )
        os.close(theirs)
        self._reader = threading.Thread(target=self._read, args=(answers,), daemon=True)
        self._reader.start()

    def wait_ready(self) -> Accounts:
        """The accounts at the start, once the engine is up."""
        return Accounts(**_body(self._ready.result(START_S)))

    def generate(
        self, prompt: Sequence[int], max_tokens: int, kv: dict[str, Any] | None = None, *, abort: bool = False
    ) -> "Request":
        """Begin a request. With ``abort`` it is aborted before the scheduler looks at it."""
        name = f"{self.name}-{next(self._names)}"
        body = {"prompt": list(prompt), "max_tokens": max_tokens, "kv": kv, "abort": abort}
        return Request(self, name, self._send("generate", name, **body))

    def abort(self, request: str) -> None:
        """Abort a request, wherever it is."""
        self._ask("abort", request=request)

    def idle(self) -> Accounts:
        """Wait until nothing is left to do, blocks that wait for a transfer included."""
        return Accounts(**self._ask("idle"))

    def call(self, function: str, **arguments: Any) -> list[Any]:
        """Run ``module:name`` of this repository in every rank; the results by rank."""
        results: list[Any] = self._ask("call", function=function, arguments=arguments)["results"]
        return results

    def until(self, function: str, **arguments: Any) -> None:
        """Ask until every rank says yes; the engine goes on between two questions. Raises ``TimeoutError``."""
        deadline = time.monotonic() + WAIT_S
        while not all(self.call(function, **arguments)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{function} has not become true; the log ends with\n{self.log_tail()}")
            time.sleep(POLL_S)

    def kill(self) -> None:
        """SIGKILL to the engine and its ranks."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(WAIT_S)
        self.close()

    def freeze(self) -> None:
        """SIGSTOP: it says nothing more, and its locks stay."""
        os.killpg(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        os.killpg(self.process.pid, signal.SIGCONT)

    def request_end(self) -> None:
        """Tell it to end."""
        self._shared |= self._shared_memory()
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()

    def close(self) -> None:
        """Let it end in order; kill it if it does not. What vLLM's ranks leave in shared memory is removed."""
        self.request_end()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        for path in self._shared:
            path.unlink(missing_ok=True)

    def _shared_memory(self) -> set[Path]:
        """The files by which the ranks of this engine reduce their results: vLLM makes them and forgets them."""
        found = set()
        for maps in Path("/proc").glob("[0-9]*/maps"):
            try:
                if os.getsid(int(maps.parent.name)) == self.process.pid:
                    found |= {line.split()[-1] for line in maps.read_text(encoding="utf-8").splitlines() if RANKS_SHARE in line}
            except OSError:
                continue
        return {Path(name) for name in found}

    def log_tail(self, lines: int = 60) -> str:
        """The end of its log."""
        return "\n".join(self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _ask(self, operation: str, **body: Any) -> dict[str, Any]:
        return _body(self._send(operation, f"{operation}-{next(self._names)}", **body).result(WAIT_S))

    def _send(self, operation: str, name: str, **body: Any) -> Future[dict[str, Any]]:
        future = self._expect(name)
        assert self.process.stdin is not None
        try:
            with self._lock:
                self.process.stdin.write(json.dumps({"op": operation, "id": name, **body}) + "\n")
                self.process.stdin.flush()
        except (BrokenPipeError, ValueError):
            self._fail_all()
        return future

    def _expect(self, name: str) -> Future[dict[str, Any]]:
        future: Future[dict[str, Any]] = Future()
        with self._lock:
            if self._ended:
                future.set_exception(EngineDied(f"{self.name} has ended"))
            else:
                self._waiting[name] = future
        return future

    def _read(self, answers: int) -> None:
        with os.fdopen(answers, encoding="utf-8") as lines:
            for line in lines:
                answer = json.loads(line)
                with self._lock:
                    future = self._waiting.pop(answer["id"])
                future.set_result(answer)
        self._fail_all()

    def _fail_all(self) -> None:
        with self._lock:
            self._ended = True
            waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            future.set_exception(EngineDied(f"{self.name} died; its log ends with\n{self.log_tail()}"))


class Request:
    """A request that an engine was given."""

    def __init__(self, engine: Engine, name: str, future: Future[dict[str, Any]]) -> None:
        self._engine = engine
        self.name = name
        self._future = future

    @property
    def ended(self) -> bool:
        """Whether an answer is there."""
        return self._future.done()

    def result(self, timeout: float = WAIT_S) -> Answer:
        """Wait for its end."""
        body = _body(self._future.result(timeout))
        return Answer(tuple(body["tokens"]), body["reason"], body["kv"])

    def abort(self) -> None:
        """Give it up."""
        self._engine.abort(self.name)


def _body(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer without its id. Raises what the engine said was wrong."""
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return {key: value for key, value in answer.items() if key != "id"}
