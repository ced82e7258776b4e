"""What a decode daemon measures of itself, rank by rank, from one look at its machines."""

from collections.abc import Mapping
from typing import Any, Final

from runtime.metrics import MAX_LABELLED_PEERS, Families, Measured

GRANT_STATES: Final = ("open", "scattering", "closed")

COUNTERS: Final = {
    "grants": ("grants", "Regions granted."),
    "grants_quarantined": ("grants_quarantined", "Grants that closed without proof and pin the ring."),
    "regions_replaced": ("regions_replaced", "Rings that were given up for new memory."),
    "replacements_refused": ("region_replacements_failed", "Rings that were pinned and could not be replaced."),
    "sessions_opened": ("sessions_opened", "Sessions opened."),
    "sessions_fenced": ("sessions_fenced", "Sessions that ended other than by being replaced."),
    "subscribes_refused": ("subscribes_refused", "Subscriptions refused."),
    "ready_repeated": ("ready_repeated", "CHUNK_READY heard again before its verdict."),
    "unknown_session": ("unknown_session_messages", "Messages of sessions that are over."),
    "pauses": ("pauses", "Times that this process did not run while rooms lived."),
}
"""The machine's counters that have a name of their own; all others are ``events``."""
BY_PREFIX: Final = {
    "answers_": ("responses", "status", "Answers to staging requests; busy ones were deferred."),
    "malformed_": ("malformed_messages", "code", "Messages that could not be read."),
    "sends_failed_": ("send_failures", "reason", "Sends that did not leave."),
    "room_failed_": ("rooms_failed", "code", "Rooms that failed."),
    "ready_rejected_": ("writes_rejected", "code", "Writes that were sent back."),
}


def describe(families: Families, measured: Measured) -> None:
    """Fill the families from what ``measure`` answered."""
    families.gauge("ready", "Whether requests should be sent here, as /readyz says.", float(measured["ready"]))
    for shot in measured["ranks"]:
        rank = str(shot["rank"])
        _ring(families, rank, shot)
        _tables(families, rank, shot)
        _sessions(families, rank, shot)
        _counters(families, rank, shot["counters"])


def _ring(families: Families, rank: str, shot: Mapping[str, Any]) -> None:
    ring, states = shot["ring"], shot["grant_states"]
    families.gauge("ring_size_bytes", "Size of the ring.", ring["total_bytes"], rank=rank)
    families.gauge("ring_used_bytes", "Bytes of live grants.", ring["live_bytes"], rank=rank)
    families.gauge("ring_round", "How often the ring has wrapped or restarted in this epoch.", ring["round"], rank=rank)
    families.gauge("ring_head_bytes", "Next free offset.", ring["head"], rank=rank)
    for state in GRANT_STATES:
        families.gauge(
            "ring_live_grants", "Live grants; closed ones are quarantined.", states.get(state, 0), rank=rank, state=state
        )
    round_, tail = ring["watermark"]
    families.gauge("watermark_round", "Round of the watermark.", round_, rank=rank)
    families.gauge("watermark_tail_bytes", "Tail of the watermark.", tail, rank=rank)
    families.gauge("watermark_age_seconds", "Since when the watermark has not moved.", ring["watermark_age_s"], rank=rank)
    families.gauge("ring_stuck", "Whether a pinned ring could not be replaced.", float(bool(shot["stuck_reason"])), rank=rank)
    _oldest(families, rank, shot, ring["oldest_grant"])


def _oldest(families: Families, rank: str, shot: Mapping[str, Any], oldest: Mapping[str, Any] | None) -> None:
    families.gauge(
        "oldest_grant_age_seconds", "Age of the grant that pins the ring.", oldest["age_s"] if oldest else 0.0, rank=rank
    )
    if oldest is None:
        return
    waited = {writer["session"] for writer in oldest["writers"] if not writer["quiet"]}
    owners = [session["prefill_id"] for session in shot["sessions"] if session["session"] in waited]
    owner = owners[0] if owners else ""
    text = "Whom the grant that pins the ring waits for; nobody while it is scattered."
    families.gauge("oldest_grant_info", text, 1.0, rank=rank, prefill_id=owner, state=str(oldest["state"]))


def _tables(families: Families, rank: str, shot: Mapping[str, Any]) -> None:
    families.gauge("sessions", "Sessions by state.", shot["session_count"] - shot["fenced_count"], rank=rank, state="current")
    families.gauge("sessions", "Sessions by state.", shot["fenced_count"], rank=rank, state="fenced")
    families.gauge("rooms", "Live rooms.", shot["room_count"], rank=rank)
    families.gauge("tombstones", "Rooms that are over and remembered.", shot["tombstones"], rank=rank)
    families.gauge("parked_requests", "Requests whose room no engine has registered.", shot["parked_requests"], rank=rank)
    families.gauge("waiting_turns", "Chunks that wait for their turn in the ring.", shot["waiting_turns"], rank=rank)
    families.gauge("watermarks_owed", "Sessions that have not been sent the watermark.", shot["watermarks_owed"], rank=rank)
    left_out = max(0, shot["session_count"] - MAX_LABELLED_PEERS)
    families.gauge("sessions_without_series", "Sessions beyond the bound on series by prefill.", left_out, rank=rank)
    for outcome, number in shot["sends"].items():
        families.counter("sends", "Control messages by what became of them.", number, rank=rank, outcome=outcome)


def _sessions(families: Families, rank: str, shot: Mapping[str, Any]) -> None:
    for session in shot["sessions"]:
        if session["fenced"]:
            continue
        labels = {"rank": rank, "prefill_id": str(session["prefill_id"])}
        families.gauge("session_silence_seconds", "Since when nothing was heard.", session["silent_s"], **labels)
        families.gauge("session_lease_left_seconds", "Until the session is fenced.", session["lease_left_s"], **labels)
        sent, seen = session["told_watermark"], session["seen"]
        families.gauge("session_watermark_sent_round", "Round of the last watermark sent.", sent[0], **labels)
        families.gauge("session_watermark_sent_tail_bytes", "Tail of the last watermark sent.", sent[1], **labels)
        families.gauge("session_watermark_seen_round", "Round of the last watermark it reported.", seen[0], **labels)
        families.gauge("session_watermark_seen_tail_bytes", "Tail of the last watermark it reported.", seen[1], **labels)
        families.gauge("session_unwritten_grants", "Grants that wait for its bytes.", session["unwritten_grants"], **labels)
        families.counter("session_send_failures", "Sends to it that did not leave.", session["sends_failed"], **labels)


def _counters(families: Families, rank: str, counters: Mapping[str, int]) -> None:
    for name, (family, text) in COUNTERS.items():
        families.counter(family, text, counters.get(name, 0), rank=rank)
    for name, number in counters.items():
        prefix = next((start for start in BY_PREFIX if name.startswith(start)), None)
        if prefix is not None:
            family, label, text = BY_PREFIX[prefix]
            families.counter(family, text, number, **{"rank": rank, label: name.removeprefix(prefix)})
        elif name not in COUNTERS:
            families.counter("events", "Everything else that the machine counts.", number, rank=rank, event=name)
