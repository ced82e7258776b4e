"""A stall is found exactly when nothing can move, from what both real machines say of themselves."""

import copy
from typing import Any

import pytest

from lab.stall import find_stall, rings_are_empty
from protocol.watermark import Watermark
from tests.unit.lab.machines import JoinedMachines

Snapshots = tuple[list[Any], list[Any]]


def stalled_machines(*, restart: bool = True, snapshot: bool = False, repair: bool = False) -> JoinedMachines:
    """A drained ring, and a session that began afterwards and holds a chunk of 70 that it may not write."""
    machines = JoinedMachines(restart=restart, snapshot=snapshot, repair=repair)
    for number in range(4):
        machines.send(f"early-{number}", "first", 15)
    assert not machines.send("late", "second", 70)
    return machines


def copies(machines: JoinedMachines) -> Snapshots:
    """Snapshots that a test may change."""
    decode, prefill = machines.snapshots()
    return copy.deepcopy(decode), copy.deepcopy(prefill)


def test_a_stall_names_what_is_missing() -> None:
    """The blocked chunk tells what it needs, what its session believes and what the ring's watermark is."""
    decode, prefill = stalled_machines().snapshots()
    blocked = find_stall(decode, prefill, {"late"}, repair=False)
    assert blocked is not None
    (chunk,) = blocked
    assert (chunk.room, chunk.chunk, chunk.prefill_id, chunk.decode_rank) == ("late", 0, "second", 0)
    assert chunk.believed == Watermark(0, 0)
    assert chunk.true == Watermark(chunk.round, 0), "the drain raised the round, and the chunk is the oldest grant"
    assert f"needs watermark ({chunk.round - 1}, 70)" in str(chunk)


def test_what_repair_will_heal_is_no_stall() -> None:
    """Where the ring's own watermark lets the chunk pass, only a deployment without repair is stalled."""
    decode, prefill = stalled_machines().snapshots()
    assert find_stall(decode, prefill, {"late"}, repair=False) is not None
    assert find_stall(decode, prefill, {"late"}, repair=True) is None


def test_what_the_ring_itself_refuses_is_a_stall_even_with_repair() -> None:
    """A parked head refuses whoever asks."""
    machines = stalled_machines(restart=False, snapshot=True, repair=True)
    decode, prefill = machines.snapshots()
    assert find_stall(decode, prefill, {"late"}, repair=True) is not None


def test_a_moving_ring_is_not_stalled_and_an_idle_one_is_empty() -> None:
    """Nothing in flight is no stall, whatever the watermark."""
    machines = JoinedMachines()
    assert machines.send("early", "first", 15)
    decode, prefill = machines.snapshots()
    assert find_stall(decode, prefill, set(), repair=True) is None
    assert rings_are_empty(decode)
    assert not rings_are_empty(stalled_machines().snapshots()[0])


def test_a_watermark_on_its_way_is_no_stall() -> None:
    """A session that was told more than it has heard will hear it, or its loss is not the defect that is being shown."""
    machines = stalled_machines(snapshot=True, restart=False)
    machines.drop_watermarks = True
    assert not machines.send("later", "third", 70)
    assert machines.dropped_watermarks
    decode, prefill = machines.snapshots()
    assert find_stall(decode, prefill, {"late", "later"}, repair=False) is None


@pytest.mark.parametrize(
    ("side", "path", "value"),
    [
        pytest.param("prefill", (1, "writes", "running"), 1, id="a gather runs"),
        pytest.param("prefill", (1, "writes", "queued"), 1, id="a gather is about to run"),
        pytest.param("prefill", (1, "rooms", 0, "targets", 0, "chunks", 0, "state"), "requested", id="a request is unanswered"),
        pytest.param("prefill", (1, "rooms", 0, "targets", 0, "chunks", 0, "state"), "written", id="a verdict is awaited"),
        pytest.param("prefill", (1, "rooms", 0, "finished"), False, id="the engine has not submitted everything"),
        pytest.param("prefill", (1, "rooms", 0, "chunks_offered"), 2, id="a chunk is not on its way yet"),
        pytest.param("prefill", (1, "peers", 0, "state"), "subscribing", id="a session is being negotiated"),
        pytest.param("prefill", (1, "peers", 0, "unacknowledged_aborts"), ["late"], id="an abort is unacknowledged"),
        pytest.param("decode", (0, "watermarks_owed"), 1, id="a watermark is still to be sent"),
        pytest.param("decode", (0, "parked_requests"), 1, id="a request waits for its room"),
        pytest.param("decode", (0, "grants", 0, "scatter_running"), True, id="a scatter runs"),
        pytest.param("decode", (0, "grants", 0, "alloc_id"), 77, id="a grant is on its way"),
        pytest.param("decode", (0, "grants"), [], id="a verdict is on its way"),
    ],
)
def test_anything_that_may_still_happen_is_no_stall(side: str, path: tuple[int | str, ...], value: object) -> None:
    """Each single thing that could lead to a write, a message or a free is enough."""
    decode, prefill = copies(stalled_machines())
    place: Any = {"decode": decode, "prefill": prefill}[side]
    for step in path[:-1]:
        place = place[step]
    assert place[path[-1]] != value
    place[path[-1]] = value
    assert find_stall(decode, prefill, {"late"}, repair=False) is None


def test_a_request_that_only_the_engines_know_is_no_stall() -> None:
    """A room that is still on its way from an engine to its daemon may change everything."""
    decode, prefill = stalled_machines().snapshots()
    assert find_stall(decode, prefill, {"late", "unheard-of"}, repair=False) is None
    assert find_stall(decode, prefill, set(), repair=False) is None


def test_snapshots_are_plain_values() -> None:
    """What the daemons say survives the engine socket's encoding, so the proof holds on what a process receives."""
    for snapshots in stalled_machines().snapshots():
        for snapshot in snapshots:
            assert is_plain(snapshot)


def is_plain(value: object) -> bool:
    """Numbers, texts, lists and maps only."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(is_plain(item) for item in value)
    return value is None or isinstance(value, int | float | str)
