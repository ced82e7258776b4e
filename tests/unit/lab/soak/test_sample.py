"""Two samples of a deployment at rest are compared figure by figure."""

import os
from dataclasses import replace

import pytest

from lab.soak.sample import (
    FILES_TOLERANCE,
    MEMORY_TOLERANCE_BYTES,
    ProcessSample,
    Sample,
    growth,
    prefill_tables,
    rows_left,
    sample_process,
)

PROCESS = ProcessSample(7, private_bytes=50 << 20, shared_bytes=9 << 20, mapped_segments=4, open_files=70, threads=8)
BEFORE = Sample({"decode": PROCESS}, 12, {"decode.sessions": 16, "decode.rooms": 0, "prefill0.peers": 8})


def grown(**figures: int) -> Sample:
    """The same sample with other figures of its process."""
    return replace(BEFORE, processes={"decode": replace(PROCESS, **figures)})


def test_what_is_equal_has_not_grown() -> None:
    """Growth up to the tolerances, and shared pages that were merely touched, are none."""
    assert growth(BEFORE, BEFORE) == []
    within = grown(
        private_bytes=PROCESS.private_bytes + MEMORY_TOLERANCE_BYTES,
        shared_bytes=2 * PROCESS.shared_bytes,
        open_files=PROCESS.open_files + FILES_TOLERANCE,
    )
    assert growth(BEFORE, within) == []


@pytest.mark.parametrize(
    ("after", "text"),
    [
        (grown(private_bytes=PROCESS.private_bytes + MEMORY_TOLERANCE_BYTES + 1), "decode: private memory: 52428800 bytes"),
        (grown(mapped_segments=5), "decode: mapped segments: 4, then 5"),
        (grown(open_files=PROCESS.open_files + FILES_TOLERANCE + 1), "decode: open files: 70, then 77"),
        (grown(threads=9), "decode: threads: 8, then 9"),
        (grown(pid=8), "decode: process 7 ended, 8 began"),
        (replace(BEFORE, segments=13), "segments: 12 files, then 13"),
        (replace(BEFORE, tables={**BEFORE.tables, "decode.sessions": 17}), "decode.sessions: 16 rows, then 17"),
    ],
)
def test_everything_that_grows_is_named(after: Sample, text: str) -> None:
    """Memory, mappings, files, threads, segments, kept tables, and a process that is not the same one."""
    (found,) = growth(BEFORE, after)
    assert found.startswith(text)


def test_rows_of_rooms_must_be_gone() -> None:
    """Tables of connections keep their rows; all others must be empty at rest."""
    assert rows_left(BEFORE) == []
    assert rows_left(replace(BEFORE, tables={**BEFORE.tables, "decode.rooms": 2})) == ["decode.rooms: 2 left"]


def test_prefill_tables_are_summed_over_ranks() -> None:
    """Sizes are those of all ranks together."""
    peer = {"lost_sessions": [1], "unacknowledged_aborts": ["room"]}
    rank = {"peers": [peer, peer], "rooms": ["room"], "writes": {"running": 1, "queued": 2}, "planes_open": 2}
    assert prefill_tables([rank, rank]) == {
        "rooms": 2,
        "writes": 6,
        "peers": 4,
        "lost_sessions": 4,
        "aborts_unacknowledged": 4,
        "planes_open": 4,
    }


def test_a_process_is_read_from_the_kernel() -> None:
    """This very process has memory, descriptors and a thread, and maps no staging segment."""
    found = sample_process(os.getpid())
    assert found.pid == os.getpid()
    assert found.private_bytes > 1 << 20
    assert found.open_files >= 3
    assert found.threads >= 1
    assert found.mapped_segments == 0
