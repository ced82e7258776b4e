"""What is demanded when a room ends, and of everybody when the run does."""

from typing import TYPE_CHECKING

from lab.simulator.decode_checks import decode_leaks
from lab.simulator.decode_process import DecodeProcess
from lab.simulator.memory import ViolationError, source_bytes
from lab.simulator.prefill_checks import prefill_leaks
from lab.simulator.process import Process
from protocol.layout import expected_writers

if TYPE_CHECKING:
    from lab.simulator.engines import Request
    from lab.simulator.world import World

NEVER = frozenset({"invalid", "bad_grant", "scatter_failed", "layout", "writer_taken", "version", "no_plane"})
"""Failures that no fault of this world explains."""
PATIENT_S = 40.0
"""A deadline of that length is no excuse: the faulty phase is shorter."""
_ABSENCE = (
    "prefill_crashes",
    "decode_crashes",
    "takeovers",
    "burials",
    "pauses",
    "long_pauses",
    "torn_writes",
    "partitions",
    "departures",
)
_ENGINES = ("engine_aborts", "unregistered_rooms", "unsubmitted_rooms", "reused_rooms")
_DAMAGE = ("closed_plane", "no_memory", "plane_failures", "write_failures", "slow_copies", "stuck_writes", "late")
REASONS: dict[str, tuple[str, ...]] = {
    "corrupt": ("corruption",),
    "prefill_gone": ("prefill_crashes", "burials", "takeovers", "departures"),
    "stopped": ("departures",),
    "draining": ("departures",),
    "superseded": ("takeovers",),
    "decode_restarted": ("decode_crashes", "departures"),
    "aborted": ("engine_aborts",),
    "write_failed": ("write_failures",),
    "deadline": (*_ABSENCE, *_DAMAGE, "unsubmitted_rooms", "reused_rooms"),
    "plane_failed": ("plane_failures", "closed_plane", "decode_crashes", "slow_copies", *_ABSENCE),
}
"""Which faults may be behind a failure of that code; any fault may be behind the others."""


def demand_reason(world: "World", process: Process, room: str, code: str) -> None:
    """A room may fail for what was done to it, never for our own arithmetic or for messages that were merely lost."""
    faults = world.options.faults
    if world.options.ring_chunks < 1.0 and code in {"oversized", "aborted_by_decode", "aborted_by_prefill"}:
        return
    replaced = any(len(decode.regions) > 1 for decode in world.decodes.values())
    if replaced and code in {"plane_failed", "aborted_by_prefill", "aborted_by_decode"}:
        # The segment that an answer named may be gone before its receiver opens it.
        return
    if code in {"deadline", "aborted_by_prefill", "aborted_by_decode"} and world.options.room_deadline_s < PATIENT_S:
        return
    reasons = REASONS.get(code, (*_ABSENCE, *_ENGINES, *_DAMAGE, "corruption"))
    if code in NEVER or not any(getattr(faults, reason) for reason in reasons):
        raise ViolationError(f"{process.name}: room {room} failed with {code!r} without a reason to fail")


def check_bytes(world: "World", request: "Request", decode: DecodeProcess) -> None:
    """Every chunk of a room that is done must consist of its writers' slices, from the lives that began it."""
    prefills = {process.writer: process for process in world.group(request.group)}
    writers = expected_writers(next(iter(prefills.values())).layout, decode.layout)
    size = world.options.chunk_tokens
    for chunk in range(-(-request.num_tokens // size)):
        tokens = min(size, request.num_tokens - chunk * size)
        expected = b"".join(
            source_bytes(
                request.owners[part.writer], request.content, chunk, part.writer, decode.rank, part.token_bytes * tokens
            )
            for part in writers
        )
        if decode.arrived[request.room].get(chunk) != expected:
            raise ViolationError(f"{decode.name}: room {request.room} is done and the bytes of chunk {chunk} are wrong")


def demand_end(world: "World") -> None:
    """Every room of every surviving life has ended, and every ring is empty that can be."""
    for decode in world.decodes.values():
        if open_rooms := decode.registered.keys() - decode.ended.keys():
            raise ViolationError(f"stuck: {decode.name} never told its engine about {sorted(open_rooms)}")
        if not is_drained(decode):
            raise ViolationError(f"stuck: the ring of {decode.name} never drained")
    for prefill in (*world.prefills.values(), *world.former):
        if prefill.alive and (open_rooms := prefill.submitted.keys() - prefill.ended.keys()):
            raise ViolationError(f"stuck: {prefill.owner} never told its engine about {sorted(open_rooms)}")


def demand_no_leaks(world: "World") -> None:
    """Nobody remembers what nobody needs any more, and who was replaced knows it."""
    for former in world.former:
        rivals = world.prefills[former.name].handler.state.peers.keys() & former.handler.state.peers.keys()
        if former.alive and former.handler.state.over is None and any(world.decodes[peer].life == 1 for peer in rivals):
            raise ViolationError(f"stuck: {former.owner} never heard that its place is taken")
    senders = [prefill for prefill in (*world.prefills.values(), *world.former) if prefill.alive]
    for decode in world.decodes.values():
        if not is_pinned(decode):
            for problem in decode_leaks(decode.handler, len(senders)):
                raise ViolationError(f"leak in {decode.name}: {problem}")
    if any(is_pinned(decode) for decode in world.decodes.values()) or world.options.faults.plane_failures:
        return
    for prefill in (prefill for prefill in world.prefills.values() if prefill.alive):
        for problem in prefill_leaks(prefill.handler):
            raise ViolationError(f"leak in {prefill.owner}: {problem}")


def demand_speed(world: "World", request: "Request", room_bytes_s: float) -> None:
    """With nothing wrong but lost messages, each loss costs at most twice the longest retry interval."""
    faults = world.options.faults
    if not faults.only_messages or request.ended is None:
        return
    losses = sum(request.began <= at <= request.ended for at in world.network.losses)
    bound = room_bytes_s + losses * 2 * world.RETRY_LIMIT_S
    if request.ended - request.began > bound:
        took = request.ended - request.began
        raise ViolationError(f"stuck: room {request.room} took {took:.1f} s with {losses} lost messages, bound {bound:.1f} s")


def is_pinned(decode: DecodeProcess) -> bool:
    """Whether a one-sided writer that will never prove anything holds the last region this rank may have."""
    kept = sum(not memory.released for memory in decode.regions.values())
    return bool(decode.handler.state.stuck_reason) and kept > decode.world.options.max_retired_regions


def is_drained(decode: DecodeProcess) -> bool:
    """Whether its ring is empty, or never will be."""
    return len(decode.handler.state.grants) == 0 or is_pinned(decode)
