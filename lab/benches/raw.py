"""The raw material: what this machine does without any of the product, measured in the same run as what it limits.

Everything between processes is measured between processes of its own kind: fresh interpreters that import little, start
together, and time themselves on the clock that all processes share (``CLOCK_MONOTONIC``).
"""

import mmap
import multiprocessing
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import zmq

from lab.benches.rows import median
from lab.ports import free_port_base

Span = tuple[float, float]
Work = Callable[..., Sequence[Span]]
PATIENCE_S = 120.0
PIECE_BYTES = 1 << 20
MESSAGE_BYTES = 128
"""About a staging request."""


def shared_memory(size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Touched memory of the kind that pools and rings are made of: shared, in small pages."""
    memory = np.frombuffer(mmap.mmap(-1, size, flags=mmap.MAP_SHARED), np.uint8)
    memory[:] = 1
    return memory


def copy_rate(num_bytes: int, piece: int, rounds: int) -> float:
    """Bytes per second of a plain copy by one thread, in pieces."""
    spans = copy_rounds(None, num_bytes, piece, rounds)
    return median([num_bytes / (ended - began) for began, ended in spans])


def two_copies_rate(num_bytes: int, piece: int, rounds: int) -> float:
    """Payload bytes per second if each of two processes copies them all at the same time, as gather and scatter do."""
    return concurrent_rate([(copy_rounds, (num_bytes, piece, rounds))] * 2, num_bytes)


def push_pull_rate(num_bytes: int, rounds: int) -> float:
    """Payload bytes per second of zero-copy PUSH/PULL over loopback TCP, whose receiver puts every byte into its place."""
    port = _free_port()
    return concurrent_rate([(pull_rounds, (port, num_bytes, rounds)), (push_rounds, (port, num_bytes, rounds))], num_bytes)


def round_trips_s(number: int, pause_s: float = 0.0) -> list[float]:
    """Seconds of each DEALER/ROUTER round trip between two processes that sleep in a poller; a pause goes before each.

    Back to back both processes keep cores and caches warm; after a pause of some milliseconds they have to be woken for real.
    """
    port = _free_port()
    spans = in_processes([(answer_rounds, (port, number)), (ask_rounds, (port, number, pause_s))])[1]
    return [ended - began for began, ended in spans]


def concurrent_rate(works: Sequence[tuple[Work, tuple[Any, ...]]], num_bytes: int) -> float:
    """Bytes per second, each round lasting from the first one's begin to the last one's end."""
    rounds = zip(*in_processes(works), strict=True)
    durations = [max(ended for _, ended in spans) - min(began for began, _ in spans) for spans in rounds]
    return num_bytes / median(durations)


def in_processes(works: Sequence[tuple[Work, tuple[Any, ...]]]) -> list[Sequence[Span]]:
    """Run each work in a process of its own, all from the same moment; the spans that each has timed."""
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        pipes: list[Connection] = []
        for work, arguments in works:
            ours, theirs = context.Pipe()
            process = context.Process(target=_child, args=(theirs, work, arguments), daemon=True)
            process.start()
            theirs.close()
            stack.callback(_end, process)
            stack.callback(ours.close)
            pipes.append(ours)
        for step in ("ready", "go"):
            for pipe in pipes:
                _expect(pipe) if step == "ready" else pipe.send("go")
        return [_expect(pipe) for pipe in pipes]


def _end(process: Any) -> None:  # noqa: ANN401 - a context's own process class
    process.join(5.0)
    if process.is_alive():
        process.kill()
        process.join()


def _expect(pipe: Connection) -> Any:  # noqa: ANN401 - whatever the child sent
    if not pipe.poll(PATIENCE_S):
        raise TimeoutError(f"a measuring process said nothing for {PATIENCE_S:g} s")
    return pipe.recv()


def _child(pipe: Connection, work: Work, arguments: tuple[Any, ...]) -> None:
    pipe.send(work(pipe, *arguments))


def start_line(pipe: Connection | None) -> None:
    """Say that everything is prepared, and wait for the others."""
    if pipe is not None:
        pipe.send("ready")
        pipe.recv()


def copy_rounds(pipe: Connection | None, num_bytes: int, piece: int, rounds: int) -> list[Span]:
    """Copy ``num_bytes`` bytes in pieces, from one shared memory to another."""
    source, target = shared_memory(num_bytes), shared_memory(num_bytes)
    start_line(pipe)
    spans = []
    for _ in range(rounds):
        began = time.monotonic()
        for start in range(0, num_bytes, piece):
            np.copyto(target[start : start + piece], source[start : start + piece])
        spans.append((began, time.monotonic()))
    return spans


def push_rounds(pipe: Connection, port: int, num_bytes: int, rounds: int) -> list[Span]:
    """Send pieces without copying them; each round ends with the receiver's word."""
    payload = shared_memory(num_bytes).data
    with zmq.Context() as context, context.socket(zmq.PUSH) as push, context.socket(zmq.PAIR) as word:
        push.sndhwm = 16
        push.connect(f"tcp://127.0.0.1:{port}")
        word.connect(f"tcp://127.0.0.1:{port + 1}")
        start_line(pipe)
        spans = []
        for _ in range(rounds):
            began = time.monotonic()
            for start in range(0, num_bytes, PIECE_BYTES):
                push.send_multipart((b"DATA", payload[start : start + PIECE_BYTES]), copy=False)
            word.recv()
            spans.append((began, time.monotonic()))
        return spans


def pull_rounds(pipe: Connection, port: int, num_bytes: int, rounds: int) -> list[Span]:
    """Put each piece into its place."""
    ring = shared_memory(num_bytes)
    with zmq.Context() as context, context.socket(zmq.PULL) as pull, context.socket(zmq.PAIR) as word:
        pull.rcvhwm = 16
        pull.bind(f"tcp://127.0.0.1:{port}")
        word.bind(f"tcp://127.0.0.1:{port + 1}")
        start_line(pipe)
        spans = []
        for _ in range(rounds):
            began = time.monotonic()
            for start in range(0, num_bytes, PIECE_BYTES):
                _, piece = pull.recv_multipart(copy=False)
                np.copyto(ring[start : start + PIECE_BYTES], np.frombuffer(piece.buffer, np.uint8))
            spans.append((began, time.monotonic()))
            word.send(b"")
        return spans


def ask_rounds(pipe: Connection, port: int, number: int, pause_s: float) -> list[Span]:
    """Ask and wait for the answer, as often as wanted after a warm-up."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.connect(f"tcp://127.0.0.1:{port}")
        poller = zmq.Poller()
        poller.register(dealer, zmq.POLLIN)
        start_line(pipe)
        spans = []
        for _ in range(number + 100):
            if pause_s:
                time.sleep(pause_s)
            began = time.monotonic()
            dealer.send(bytes(MESSAGE_BYTES))
            poller.poll()
            dealer.recv()
            spans.append((began, time.monotonic()))
        return spans[100:]


def answer_rounds(pipe: Connection, port: int, number: int) -> list[Span]:
    """Answer every question."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.bind(f"tcp://127.0.0.1:{port}")
        poller = zmq.Poller()
        poller.register(router, zmq.POLLIN)
        start_line(pipe)
        for _ in range(number + 100):
            poller.poll()
            router.send_multipart(router.recv_multipart())
        return []


def _free_port() -> int:
    return free_port_base(2)
