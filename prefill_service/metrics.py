"""What a prefill daemon measures of itself, rank by rank, from one look at its machines."""

from collections.abc import Mapping
from typing import Any, Final

from prefill_service.chunks import ChunkState
from runtime.metrics import MAX_LABELLED_PEERS, Families, Measured

COUNTERS: Final = {
    "requests_repeated": ("requests_repeated", "STAGING_REQ sent again for want of an answer."),
    "readies_repeated": ("readies_repeated", "CHUNK_READY sent again for want of a verdict."),
    "probes": ("probes", "Heartbeats that asked for the watermark."),
    "grants_gated": ("grants_gated", "Grants that had to wait for the watermark."),
    "grants_tainted": ("grants_tainted", "Grants into which a failed write may still land."),
    "sessions_lost": ("sessions_lost", "Sessions given up."),
    "leases_lapsed": ("leases_lapsed", "Sessions given up because no heartbeat was answered."),
    "writes_failed": ("writes_failed", "Writes that ended without being complete."),
    "writes_rejected": ("writes_rejected", "Writes that the decode side sent back."),
    "writes_abandoned": ("writes_abandoned", "Writes of lost sessions that are waited for no more."),
    "watermarks_not_larger": ("watermarks_not_larger", "Watermarks that brought nothing new."),
    "stale_sessions": ("stale_session_messages", "Messages of sessions that are over."),
}
"""The machine's counters that have a name of their own; all others are ``events``."""


def describe(families: Families, measured: Measured) -> None:
    """Fill the families from what ``measure`` answered."""
    families.gauge("ready", "Whether work should be given to it, as /readyz says.", float(measured["ready"]))
    for shot in measured["ranks"]:
        rank = str(shot["rank"])
        _tables(families, rank, shot)
        for peer in shot["peers"][:MAX_LABELLED_PEERS]:
            _peer(families, rank, peer)
        _counters(families, rank, shot)


def _tables(families: Families, rank: str, shot: Mapping[str, Any]) -> None:
    families.gauge("peers", "Decode ranks by whether there is a session.", shot["peers_current"], rank=rank, state="current")
    absent = shot["peer_count"] - shot["peers_current"]
    families.gauge("peers", "Decode ranks by whether there is a session.", absent, rank=rank, state="absent")
    families.gauge("rooms", "Live rooms.", shot["room_count"], rank=rank)
    for state in ChunkState:
        if state not in {ChunkState.SCATTERED, ChunkState.DROPPED}:
            number = shot["chunk_states"].get(state.value, 0)
            families.gauge("chunks", "Chunks on their way, by state.", number, rank=rank, state=state.value)
    families.gauge("gated_chunks", "Grants that wait for the watermark.", shot["gated"], rank=rank)
    writes = shot["writes"]
    families.gauge("writes_running", "Writes that run.", writes["running"], rank=rank)
    families.gauge("writes_queued", "Chunks that may be written and wait for others to end.", writes["queued"], rank=rank)
    families.gauge("planes_open", "Data planes open.", shot["planes_open"], rank=rank)
    left_out = max(0, shot["peer_count"] - MAX_LABELLED_PEERS)
    families.gauge("peers_without_series", "Decode ranks beyond the bound on series by peer.", left_out, rank=rank)


def _peer(families: Families, rank: str, peer: Mapping[str, Any]) -> None:
    labels = {"rank": rank, "peer": str(peer["endpoint"])}
    session = peer["session"]
    families.gauge("peer_subscribed", "Whether chunks may move.", float(peer["state"] == "current"), **labels)
    if session is None:
        return
    families.gauge("session_lease_left_seconds", "Until no write may begin.", session["lease_left_s"], **labels)
    families.gauge("session_watermark_round", "Round of the largest watermark heard.", session["watermark"][0], **labels)
    families.gauge("session_watermark_tail_bytes", "Tail of the largest watermark heard.", session["watermark"][1], **labels)
    families.gauge("session_unanswered_heartbeats", "Heartbeats that wait.", session["unanswered_heartbeats"], **labels)


def _counters(families: Families, rank: str, shot: Mapping[str, Any]) -> None:
    counters: Mapping[str, int] = shot["counters"]
    for name, (family, text) in COUNTERS.items():
        families.counter(family, text, counters.get(name, 0), rank=rank)
    for name, number in counters.items():
        if name not in COUNTERS:
            families.counter("events", "Everything else that the machine counts.", number, rank=rank, event=name)
    for outcome, number in shot["sends"].items():
        families.counter("sends", "Messages by what became of them.", number, rank=rank, outcome=outcome)
    for code, number in shot["frames_refused"].items():
        families.counter("malformed_messages", "Messages that could not be read.", number, rank=rank, code=code)
