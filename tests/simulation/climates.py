"""Kinds of weather: a seed's own options, with the faults replaced by those under which one rule matters."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from lab.simulator.options import Faults, Options, draw_options
from lab.simulator.run import Outcome

Climate = Callable[[Options], Options]


def _with(faults: Faults, **changes: object) -> Climate:
    def change(options: Options) -> Options:
        roomy = replace(options, ring_chunks=max(1.0, options.ring_chunks))
        return replace(roomy, faults=faults, **changes)  # type: ignore[arg-type]

    return change


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
    "unanswered": _with(
        Faults(target="ABORT_ACK", target_loss=0.95, engine_aborts=3, reused_rooms=3),
        room_deadline_s=7.0,
        prefill_tp=1,
        decode_tp=1,
        decode_pp=1,
        requests=3,
        write_s=0.05,
        delay_s=0.02,
    ),
    "landing_aborts": _with(
        Faults(loss=0.1, write_failures=0.5, late_landings=True, engine_aborts=3, partitions=3),
        planes=(("nixl",),),
        room_deadline_s=20.0,
    ),
    "damage": _with(
        replace(MESSAGES, corruption=0.5, late=0.02, partitions=2), planes=(("shm",), ("zmq",)), delay_s=0.02, write_s=0.05
    ),
    "pieces": _with(
        replace(MESSAGES, corruption=0.4, late=0.1, engine_aborts=2, slow_copies=0.02),
        planes=(("zmq",),),
        width=3,
        write_s=0.05,
    ),
    "ruin": _with(
        Faults(corruption=1.0), room_deadline_s=40.0, delay_s=0.02, write_s=0.05, requests=3, concurrency=1, max_tokens=2
    ),
    "relics": _with(
        Faults(duplication=0.5, late=0.2, late_s=14.0, corruption=0.4, torn_writes=5, engine_aborts=2),
        planes=(("shm",),),
        write_s=0.05,
        prefill_tp=1,
    ),
    "one_landing": _with(
        Faults(loss=0.02, write_failures=0.1, late_landings=True),
        planes=(("nixl",),),
        room_deadline_s=40.0,
        max_retired_regions=30,
    ),
    "landings": _with(replace(MESSAGES, write_failures=0.4, late_landings=True), planes=(("nixl",),), room_deadline_s=20.0),
    "deaths": _with(
        replace(MESSAGES, prefill_crashes=3, takeovers=1, torn_writes=4, long_pauses=2), planes=(("shm",),), write_s=0.05
    ),
    "stuck": _with(
        replace(MESSAGES, stuck_writes=0.2, partitions=3, pauses=2, long_pauses=2, decode_crashes=1),
        planes=(("shm",), ("nixl",), ("zmq",)),
        stop_wait_s=1.0,
        room_deadline_s=20.0,
    ),
    "torn": _with(
        replace(MESSAGES, torn_writes=6, partitions=2, slow_copies=0.1, engine_aborts=2), planes=(("shm",),), write_s=0.05
    ),
    "queue": _with(
        Faults(),
        ring_chunks=1.0,
        write_s=0.3,
        room_deadline_s=6.0,
        prefill_patience=20.0,
        max_chunks_in_flight=64,
        requests=9,
        concurrency=9,
        max_tokens=2,
    ),
    "closed_plane": _with(Faults(closed_plane="shm", loss=0.05), planes=(("shm", "zmq"),), room_deadline_s=40.0),
    "garbled": _with(Faults(garbled=0.4), room_deadline_s=40.0),
    "partitions": _with(
        Faults(partitions=3), room_deadline_s=40.0, prefill_tp=2, decode_tp=1, heads=2, planes=(("shm",),), write_s=0.05
    ),
    "forgotten": _with(
        Faults(unregistered_rooms=3, unsubmitted_rooms=3), room_deadline_s=7.0, decode_tp=1, decode_pp=1, requests=3
    ),
    "burials": _with(Faults(burials=2, loss=0.05), planes=(("shm",),), room_deadline_s=20.0, write_s=0.05),
    "takeovers": _with(
        replace(MESSAGES, takeovers=5, late=0.05), planes=(("shm",), ("nixl",)), write_s=0.05, requests=9, think_s=1.0
    ),
    "stalls": _with(
        Faults(partitions=3, pauses=3, late=0.3), planes=(("shm",),), ring_chunks=5.0, write_s=0.6, max_tokens=17, concurrency=5
    ),
    "planes": _with(Faults(plane_failures=0.5, loss=0.05), planes=(("shm", "zmq"), ("zmq",)), room_deadline_s=40.0),
    "small_ring": _with(Faults(), ring_chunks=0.6, chunk_tokens=4, room_deadline_s=40.0),
    "stages": _with(Faults(loss=0.05), layers=2, prefill_pp=2, decode_pp=1, room_deadline_s=40.0),
    "halves": _with(Faults(loss=0.05), layers=2, prefill_pp=2, decode_pp=2, room_deadline_s=40.0),
    "slow_memory": _with(
        replace(MESSAGES, torn_writes=5, slow_copies=0.4, long_pauses=2), planes=(("shm",), ("nixl",)), write_s=0.05
    ),
}


ALL_FINISH: Final = frozenset(
    {"calm", "lossy", "queue", "one_landing", "stages", "halves", "closed_plane", "garbled", "partitions"}
)
"""Climates in which no room may fail at all."""
NO_SESSION_IS_LOST: Final = frozenset({"calm", "garbled"})
"""Climates in which no lease may lapse and nobody may be fenced."""
NO_REGION_IS_LOST: Final = frozenset({"burials"})
"""Climates in which every proof can be had."""


def complaint(climate: str, outcome: Outcome) -> str:
    """What is wrong with a run in that climate; empty if nothing is."""
    failures = [name for name in outcome.results if "_failed_" in name]
    if outcome.violation:
        return outcome.violation
    if climate in ALL_FINISH and failures:
        return f"rooms failed: {', '.join(failures)}"
    if climate in NO_SESSION_IS_LOST and outcome.events["fences"] + outcome.events["leases_lapsed"]:
        return "sessions were lost"
    if climate in NO_REGION_IS_LOST and outcome.events["region_replacements"]:
        return "a region was replaced"
    return ""


def weather(climate: str, seed: int) -> Options:
    """The options that a seed draws, in that climate."""
    return CLIMATES[climate](draw_options(seed))
