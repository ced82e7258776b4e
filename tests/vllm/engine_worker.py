"""A vLLM engine that lives as long as its standard input, does what JSON lines tell it, and answers with JSON lines.

``python -m tests.vllm.engine_worker ANSWER_FD ARGUMENTS``: the arguments are those of ``vllm.EngineArgs`` as JSON. The
scheduler runs in this process, so its block accounting can be read; with a TP size above 1 each rank is a process of its own.

Operations, each with an ``id`` that its one answer repeats: ``generate`` (answered when the request has ended), ``abort`` (of
``request``), ``idle`` (answered when the scheduler holds no request at all, blocks that wait for a transfer included) and
``call`` (a function of this repository, run in every rank).
"""

import importlib
import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any

os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_WORKER_MULTIPROC_METHOD="spawn")

PAUSE_S = 0.001
"""How long the loop listens for commands after a step in which nothing was computed, as vLLM's own loop does."""


def in_rank(worker: object, function: str, arguments: dict[str, Any]) -> Any:  # noqa: ARG001 - vLLM passes its worker
    """Run ``module:name`` of this repository in a rank's process."""
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)(**arguments)


class EngineWorker:
    """The engine, the commands that have not been carried out, and whoever waits until nothing is left to do."""

    def __init__(self, arguments: dict[str, Any], answers: Any) -> None:
        from vllm import EngineArgs, LLMEngine  # noqa: PLC0415 - the environment must be set first
        from vllm.config import KVTransferConfig  # noqa: PLC0415

        if transfer := arguments.pop("kv_transfer_config", None):
            arguments["kv_transfer_config"] = KVTransferConfig(**transfer)
        self._engine = LLMEngine.from_engine_args(EngineArgs(**arguments))
        self._core = self._engine.engine_core.engine_core
        self._answers = answers
        self._commands: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._idle: list[str] = []
        self._internal: dict[str, str] = {}
        self._computed = False
        self._preemptions = 0
        self._watch()

    def run(self) -> None:
        """Say that it is ready, then serve until the input ends."""
        self._answer("ready", **self._accounts())
        threading.Thread(target=self._read, daemon=True).start()
        while self._serve():
            if self._core.scheduler.has_requests():
                self._step()
            else:
                for waiting in self._idle:
                    self._answer(waiting, **self._accounts())
                self._idle.clear()

    def _read(self) -> None:
        for line in sys.stdin:
            self._commands.put(json.loads(line))
        self._commands.put(None)

    def _serve(self) -> bool:
        """Carry out what has come; wait for it where there is nothing else to do. False at the end."""
        busy = self._core.scheduler.has_requests()
        timeout = None if not busy and not self._idle else 0.0 if self._computed or not busy else PAUSE_S
        try:
            while True:
                command = self._commands.get(timeout=timeout) if timeout is None or timeout > 0 else self._commands.get_nowait()
                if command is None:
                    return False
                self._carry_out(command)
                timeout = 0.0
        except queue.Empty:
            return True

    def _carry_out(self, command: dict[str, Any]) -> None:
        deeds: dict[str, Callable[[dict[str, Any]], None]] = {
            "generate": self._generate,
            "abort": self._abort,
            "idle": lambda body: self._idle.append(body["id"]),
            "call": self._call,
        }
        try:
            deeds[command["op"]](command)
        except Exception as error:  # noqa: BLE001 - the one who asked decides what it means
            self._answer(command["id"], error=repr(error))

    def _generate(self, command: dict[str, Any]) -> None:
        from vllm import SamplingParams  # noqa: PLC0415

        extra = {"kv_transfer_params": command["kv"]} if command["kv"] is not None else None
        sampling = SamplingParams(
            temperature=0, max_tokens=command["max_tokens"], ignore_eos=True, detokenize=False, extra_args=extra
        )
        prompt = {"prompt_token_ids": command["prompt"]}
        self._internal[command["id"]] = self._engine.add_request(command["id"], prompt, sampling)
        if command["abort"]:
            # Before any step: the scheduler has never looked at it.
            self._end(command["id"])

    def _abort(self, command: dict[str, Any]) -> None:
        if command["request"] in self._internal:
            self._end(command["request"])
        self._answer(command["id"])

    def _end(self, request: str) -> None:
        self._engine.abort_request([request])
        del self._internal[request]
        self._answer(request, tokens=[], reason="abort", kv=None)

    def _call(self, command: dict[str, Any]) -> None:
        results = self._core.model_executor.collective_rpc(in_rank, args=(command["function"], command["arguments"]))
        self._answer(command["id"], results=results)

    def _step(self) -> None:
        for output in self._engine.step():
            if output.finished:
                del self._internal[output.request_id]
                (choice,) = output.outputs
                tokens = list(choice.token_ids)
                self._answer(output.request_id, tokens=tokens, reason=choice.finish_reason, kv=output.kv_transfer_params)

    def _watch(self) -> None:
        """Learn from the engine what it tells nobody: whether a step computed anything, and how often it preempted."""
        post_step, preempt = self._core.post_step, self._core.scheduler._preempt_request

        def noting_step(model_executed: bool) -> None:
            self._computed = model_executed
            post_step(model_executed=model_executed)

        def noting_preemption(*arguments: Any, **named: Any) -> Any:
            self._preemptions += 1
            return preempt(*arguments, **named)

        self._core.post_step = noting_step
        self._core.scheduler._preempt_request = noting_preemption

    def _accounts(self) -> dict[str, int]:
        pool = self._core.scheduler.kv_cache_manager.block_pool
        return {"free_blocks": pool.get_num_free_blocks(), "preemptions": self._preemptions}

    def _answer(self, name: str, **body: Any) -> None:
        self._answers.write(json.dumps({"id": name, **body}) + "\n")
        self._answers.flush()


def main() -> None:
    """Run one engine."""
    with os.fdopen(int(sys.argv[1]), "w", encoding="utf-8") as answers:
        # The scheduler's loop shares the interpreter with the threads that move KV: let them in quickly.
        sys.setswitchinterval(0.0002)
        EngineWorker(json.loads(sys.argv[2]), answers).run()


if __name__ == "__main__":
    main()
