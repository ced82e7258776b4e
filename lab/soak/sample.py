"""What a deployment holds on to when nothing is under way: memory, descriptors, threads, files, and the rows of every table."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from lab.chaos.cluster import Cluster, Snapshot
from lab.pair import DECODE_ID

MEMORY_TOLERANCE = 0.1
MEMORY_TOLERANCE_BYTES = 8 << 20
"""Private memory may grow by the larger of the two: allocators keep what they once had."""
FILES_TOLERANCE = 6
"""Descriptors of connections that are just being made or unmade."""
SEGMENT_PREFIX = f"/pd-staging-{DECODE_ID}-"


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """One daemon's process. Resident memory in bytes, ``shared_bytes`` being the touched pages of its pools and rings."""

    pid: int
    private_bytes: int
    shared_bytes: int
    mapped_segments: int
    """Mappings of staging segments, those included whose file is gone."""
    open_files: int
    threads: int


@dataclass(frozen=True, slots=True)
class Sample:
    """Everything at one quiet moment. Table sizes are summed over the ranks of a daemon."""

    processes: Mapping[str, ProcessSample]
    segments: int
    """Files in the directory of the staging segments: rings and the locks of those who map them."""
    tables: Mapping[str, int]

    def to_json(self) -> dict[str, object]:
        """The JSON object of one sample."""
        return {
            "processes": {name: asdict(process) for name, process in self.processes.items()},
            "segments": self.segments,
            "tables": dict(self.tables),
        }


async def take_sample(cluster: Cluster) -> Sample:
    """Look at everything now."""
    tables = decode_tables(await cluster.inspect_decode())
    for group in range(len(cluster.prefills)):
        found = prefill_tables(await cluster.inspect_prefill(group))
        tables |= {f"prefill{group}.{name}": rows for name, rows in found.items()}
    processes = {daemon.process.name: sample_process(daemon.process.pid) for daemon in cluster.daemons}
    return Sample(processes, sum(1 for _ in cluster.segments.iterdir()), tables)


def sample_process(pid: int) -> ProcessSample:
    """Read a process's figures from ``/proc``."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines() if ":" in line
    )
    resident, shared = (int(status[name].split()[0]) << 10 for name in ("VmRSS", "RssShmem"))
    files = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    mapped = sum(SEGMENT_PREFIX in line for line in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines())
    return ProcessSample(pid, resident - shared, shared, mapped, files, int(status["Threads"]))


def decode_tables(ranks: list[Snapshot]) -> dict[str, int]:
    """Rows of the decode machines' tables; all but ``sessions`` are empty when nothing is under way."""
    return {
        "decode.live_grants": sum(rank["ring"]["live_grants"] for rank in ranks),
        "decode.ring_bytes_before_tail": sum(rank["ring"]["watermark"][1] for rank in ranks),
        "decode.rooms": sum(rank["room_count"] for rank in ranks),
        "decode.tombstones": sum(rank["tombstones"] for rank in ranks),
        "decode.parked_requests": sum(rank["parked_requests"] for rank in ranks),
        "decode.watermarks_owed": sum(rank["watermarks_owed"] for rank in ranks),
        "decode.sessions": sum(rank["session_count"] for rank in ranks),
    }


def prefill_tables(ranks: list[Snapshot]) -> dict[str, int]:
    """Rows of one prefill daemon's tables; all but the peers and their open planes are empty when nothing is under way."""
    peers = [peer for rank in ranks for peer in rank["peers"]]
    return {
        "rooms": sum(len(rank["rooms"]) for rank in ranks),
        "writes": sum(rank["writes"]["running"] + rank["writes"]["queued"] for rank in ranks),
        "peers": len(peers),
        "lost_sessions": sum(len(peer["lost_sessions"]) for peer in peers),
        "aborts_unacknowledged": sum(len(peer["unacknowledged_aborts"]) for peer in peers),
        "planes_open": sum(rank["planes_open"] for rank in ranks),
    }


KEPT = ("sessions", "peers", "planes_open")
"""Tables with a row for each connection rather than for each room: they keep their size. All others must be empty."""


def rows_left(sample: Sample) -> list[str]:
    """Rows that are there although nothing is under way."""
    found = [(name, rows) for name, rows in sample.tables.items() if rows and name.rpartition(".")[2] not in KEPT]
    return [f"{name}: {rows} left" for name, rows in found]


def growth(before: Sample, after: Sample) -> list[str]:
    """What has grown from one quiet moment to a later one, beyond the stated tolerances, or belongs to another process now."""
    found = [f"segments: {before.segments} files, then {after.segments}"] if before.segments != after.segments else []
    for name, rows in before.tables.items():
        if name.rpartition(".")[2] in KEPT and after.tables[name] != rows:
            found.append(f"{name}: {rows} rows, then {after.tables[name]}")
    for name, process in before.processes.items():
        found += [f"{name}: {text}" for text in _process_growth(process, after.processes[name])]
    return found


def _process_growth(before: ProcessSample, after: ProcessSample) -> list[str]:
    if before.pid != after.pid:
        return [f"process {before.pid} ended, {after.pid} began"]
    found = []
    if after.private_bytes > before.private_bytes + max(MEMORY_TOLERANCE_BYTES, MEMORY_TOLERANCE * before.private_bytes):
        found.append(f"private memory: {before.private_bytes} bytes, then {after.private_bytes}")
    if after.mapped_segments != before.mapped_segments:
        found.append(f"mapped segments: {before.mapped_segments}, then {after.mapped_segments}")
    if after.open_files > before.open_files + FILES_TOLERANCE:
        found.append(f"open files: {before.open_files}, then {after.open_files}")
    if after.threads > before.threads:
        found.append(f"threads: {before.threads}, then {after.threads}")
    return found
