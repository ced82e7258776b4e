"""``staged``: KV bytes per second from the pools of a prefill daemon to those of a decode daemon, beside the bare transport.

The engines are in a third process and do little: they fill no page and compare none. Rates count a payload byte once, though it
is copied twice (gather, scatter) and on ``zmq`` crosses the kernel in between.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from decode_service.config import DecodeServiceConfig
from lab.benches.copies import has_compiled_copies
from lab.benches.effort import Effort
from lab.benches.played import Play, played
from lab.benches.raw import push_pull_rate, two_copies_rate
from lab.benches.rows import Row, Target, median, ratio_at_least
from lab.presets import PRESETS
from lab.shape import PairShape
from lab.workload import Request

PAIRS = ((4, 8), (8, 4), (2, 1))
PRESET_NAMES = ("qwen3-8b", "llama3-70b")
PLANES = ("shm", "zmq")
RING_CHUNKS = 4
CHUNK_TOKENS = DecodeServiceConfig().chunk_tokens
SHORT_CHUNK_TOKENS = 256
REQUEST_CHUNKS = 2
LEAST_REQUESTS = 4
WAYS = {"numpy": ("--no-compiled-copies",), "compiled": ("--compiled-copies",)}
CHECKSUMS = {True: ("--checksums",), False: ("--no-checksums",)}
CHECKSUM_COST = 0.9
"""With checksums at least this part of the rate without them."""


@dataclass(frozen=True, slots=True)
class Case:
    """One deployment to measure, and how many bytes a round moves."""

    plane: str
    preset: str
    prefill_tp: int
    decode_tp: int
    round_bytes: int
    chunk_tokens: int = CHUNK_TOKENS

    @property
    def name(self) -> str:
        """As it stands in the tables."""
        chunks = "" if self.chunk_tokens == CHUNK_TOKENS else f", chunks of {self.chunk_tokens}"
        return f"{self.plane}/{self.preset}/{self.prefill_tp} to {self.decode_tp}{chunks}"

    @property
    def shape(self) -> PairShape:
        """Rings of a few chunks; pages of both sides alike in size, as engines have them."""
        preset = PRESETS[self.preset]
        ranks = (self.prefill_tp, 1, self.decode_tp)
        shape = PairShape(preset.model, *ranks, self.plane, self.chunk_tokens, 0, preset.page_size, preset.page_size)
        return shape.with_ring_chunks(RING_CHUNKS)

    @property
    def row_bytes(self) -> int:
        """Bytes of one token of one tensor that lie together in a slice."""
        spec = PRESETS[self.preset].model.layers[0][0]
        return spec.width * spec.heads // max(self.prefill_tp, self.decode_tp)

    @property
    def request_tokens(self) -> int:
        """Tokens of one request."""
        return REQUEST_CHUNKS * self.chunk_tokens

    @property
    def requests(self) -> int:
        """Requests of one round, all under way at once."""
        return max(LEAST_REQUESTS, self.round_bytes // self.shape.request_bytes(self.request_tokens))

    def target(self) -> tuple[Target, ...]:
        """What the plane promises for rows of this size in chunks as they come by default."""
        if self.chunk_tokens != CHUNK_TOKENS:
            return ()
        if self.plane == "zmq":
            return (ratio_at_least(0.9),)
        return (ratio_at_least(0.8),) if self.row_bytes >= 1024 else (ratio_at_least(0.5),)


def bench_staged(effort: Effort) -> Iterator[Row]:
    """With either way to copy, with checksums and without, on a pair of daemons each; the bare transport before and after."""
    ways = [way for way in WAYS if way == "numpy" or has_compiled_copies()]
    for case in cases(effort):
        effort.view.phase(f"staged {case.name}", len(ways))
        bare = [bare_rate(case, effort)]
        rates: dict[str, dict[bool, float]] = {}
        for done, way in enumerate(ways, start=1):
            rates[way] = measure(case, way, effort)
            effort.view.advance(done)
        bare.append(bare_rate(case, effort))
        for way, measured in rates.items():
            yield from _rows(case, way, measured, median(bare))


def _rows(case: Case, way: str, rates: dict[bool, float], limit: float) -> Iterator[Row]:
    name = f"staged/{case.name}/{way}"
    for checksums, rate in rates.items():
        title = f"{name}/{'checksums' if checksums else 'no checksums'}"
        yield Row(title, rate / 1e9, "GB/s", limit / 1e9, case.target(), f"rows of {case.row_bytes} B")
    cost = (ratio_at_least(CHECKSUM_COST),) if case.target() else ()
    yield Row(f"{name}/checksums beside none", rates[True] / 1e9, "GB/s", rates[False] / 1e9, cost)


def cases(effort: Effort) -> list[Case]:
    """Every combination and one of short chunks, or a few in the short form."""
    if effort.short:
        return [Case(plane, "qwen3-8b", 2, 1, 80 << 20, SHORT_CHUNK_TOKENS) for plane in PLANES]
    every = [Case(plane, preset, *pair, 512 << 20) for plane in PLANES for preset in PRESET_NAMES for pair in PAIRS]
    return [*every, *(Case(plane, "qwen3-8b", 4, 8, 512 << 20, SHORT_CHUNK_TOKENS) for plane in PLANES)]


def bare_rate(case: Case, effort: Effort) -> float:
    """What the transport does alone with as many bytes."""
    rounds, num_bytes = effort.pick(3, 7), min(case.round_bytes, 256 << 20)
    if case.plane == "zmq":
        return push_pull_rate(num_bytes, rounds)
    return two_copies_rate(num_bytes, 1 << 20, rounds)


def measure(case: Case, way: str, effort: Effort) -> dict[bool, float]:
    """Bytes per second with checksums and without."""
    shape, rounds = case.shape, effort.pick(3, 7)
    moved = case.requests * shape.request_bytes(case.request_tokens)
    rates = {}
    for checksums, switches in CHECKSUMS.items():
        settings = (*WAYS[way], *switches)
        with played(shape, requests_of(case, "warm"), case.requests, effort.view.say, settings=settings) as play:
            seconds: list[float] = []
            asyncio.run(play.run(_time_rounds(play, case, rounds, seconds)))
            rates[checksums] = moved / median(seconds)
    return rates


def requests_of(case: Case, name: str) -> Sequence[Request]:
    """One round's requests."""
    return [Request(index, f"{name}-{index}", case.request_tokens, 0) for index in range(case.requests)]


async def _time_rounds(play: Play, case: Case, rounds: int, seconds: list[float]) -> None:
    """Seconds of each round after one that opens sessions and touches memory for the first time."""
    for number in range(rounds + 1):
        began = time.monotonic()
        await asyncio.gather(*(play.engines.play(request, verify=False) for request in requests_of(case, f"round-{number}")))
        if number:
            seconds.append(time.monotonic() - began)
