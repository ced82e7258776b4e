"""Kinds of weather: a seed's own options, with the faults replaced by those under which one rule matters."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from lab.simulator.options import Faults, Options, draw_options

Climate = Callable[[Options], Options]


def _with(faults: Faults, **changes: object) -> Climate:
    return lambda options: replace(options, faults=faults, **changes)  # type: ignore[arg-type]


MESSAGES: Final = Faults(loss=0.05, duplication=0.3, reordering=0.3)
CLIMATES: Final[dict[str, Climate]] = {
    "mixed": lambda options: options,
    "calm": _with(Faults(), room_deadline_s=40.0),
    "lossy": _with(Faults(loss=0.3, duplication=0.2), room_deadline_s=40.0),
    "engines": _with(
        Faults(loss=0.05, engine_aborts=3, unregistered_rooms=1, repeated_calls=0.3), room_deadline_s=40.0, concurrency=5
    ),
    "reuse": _with(
        Faults(loss=0.02, duplication=0.3, late=0.03, engine_aborts=3, reused_rooms=3, unsubmitted_rooms=2),
        room_deadline_s=7.0,
        prefill_tp=2,
        heads=2,
        decode_tp=1,
    ),
    "damage": _with(
        replace(MESSAGES, corruption=0.5, late=0.02, partitions=2), planes=(("shm",), ("zmq",)), delay_s=0.02, write_s=0.05
    ),
    "pieces": _with(replace(MESSAGES, corruption=0.4, late=0.02), planes=(("zmq",),), width=3, write_s=0.05),
    "ruin": _with(Faults(corruption=1.0), room_deadline_s=40.0),
    "landings": _with(replace(MESSAGES, write_failures=0.4, late_landings=True), planes=(("nixl",),), room_deadline_s=20.0),
    "deaths": _with(
        replace(MESSAGES, prefill_crashes=3, takeovers=1, torn_writes=4, long_pauses=2), planes=(("shm",),), write_s=0.05
    ),
    "torn": _with(
        replace(MESSAGES, torn_writes=6, partitions=2, slow_copies=0.1, engine_aborts=2), planes=(("shm",),), write_s=0.05
    ),
    "queue": _with(Faults(), ring_chunks=1.0, write_s=0.6, room_deadline_s=6.0, requests=9, concurrency=9, max_tokens=9),
    "planes": _with(Faults(plane_failures=0.5, loss=0.05), planes=(("shm", "zmq"), ("zmq",)), room_deadline_s=40.0),
    "small_ring": _with(Faults(), ring_chunks=0.6, chunk_tokens=4, room_deadline_s=40.0),
    "stages": _with(Faults(loss=0.05), layers=2, prefill_pp=2, decode_pp=1, room_deadline_s=40.0),
    "halves": _with(Faults(loss=0.05), layers=2, prefill_pp=2, decode_pp=2, room_deadline_s=40.0),
    "slow_memory": _with(
        replace(MESSAGES, torn_writes=5, slow_copies=0.4, long_pauses=2), planes=(("shm",), ("nixl",)), write_s=0.05
    ),
}


def weather(climate: str, seed: int) -> Options:
    """The options that a seed draws, in that climate."""
    return CLIMATES[climate](draw_options(seed))
