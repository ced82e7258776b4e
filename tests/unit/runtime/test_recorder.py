"""The recorder keeps between half and all of its bound, and what it keeps begins with a memory to start from."""

from random import Random

import pytest

from decode_service.handler import DecodeStagingHandler
from prefill_service.handler import PrefillStagingHandler
from runtime import recorder
from runtime.freezing import Frozen, TooLargeError, freeze
from runtime.recorder import Entry, Raised, Recorder, verbs_of


class Counter:
    """A machine that adds up, and refuses what is negative."""

    def __init__(self) -> None:
        self.sum = 0

    def add(self, number: int, now: float) -> tuple[int, ...]:  # noqa: ARG002 - as verbs are
        """The sum so far."""
        if number < 0:
            raise ValueError("negative")
        self.sum += number
        return (self.sum,)

    def add_twice(self, number: int, now: float, *, times: int = 2) -> tuple[int, ...]:
        """The last sum of several."""
        return [self.add(number, now) for _ in range(times)][-1]

    def as_of(self, now: float) -> int:  # noqa: ARG002 - as verbs are
        """Only looks."""
        return self.sum

    def reset(self) -> None:
        """Takes no time, so it is no verb."""


def recorded(max_bytes: int = 1 << 20, max_entries: int = 1000) -> tuple[Counter, Recorder]:
    """A new machine with its recorder."""
    machine, kept = Counter(), Recorder("m", max_bytes, max_entries)
    kept.attach(machine, ("settings",), 5)
    return machine, kept


def test_verbs_take_the_time_and_return_outputs() -> None:
    """Looking at a machine is no verb; every way into the shipped machines is one."""
    assert verbs_of(Counter) == ("add", "add_twice")
    assert {"receive", "tick", "register_room", "scatter_finished", "fan_out", "drain"} <= {*verbs_of(DecodeStagingHandler)}
    assert {"receive", "tick", "submit_chunk", "write_finished", "finish_room", "stop"} <= {*verbs_of(PrefillStagingHandler)}
    assert "as_of" not in verbs_of(DecodeStagingHandler)


def test_every_call_is_an_entry_with_its_outcome() -> None:
    """Arguments, named arguments, outputs and what was raised are kept, in their order and numbered from 1."""
    machine, kept = recorded()
    machine.add(3, 1.0)
    with pytest.raises(ValueError, match="negative"):
        machine.add(-1, now=2.0)
    machine.as_of(3.0)
    assert list(kept.recording().entries()) == [
        Entry(1, "add", (3, 1.0), {}, (3,)),
        Entry(2, "add", (-1,), {"now": 2.0}, Raised("ValueError", "negative")),
    ]


def test_a_verb_within_a_verb_is_one_entry() -> None:
    """What a machine calls on itself is part of the outer verb: a replay would otherwise do it twice."""
    machine, kept = recorded()
    assert machine.add_twice(2, 1.0, times=3) == (6,)
    assert list(kept.recording().entries()) == [Entry(1, "add_twice", (2, 1.0), {"times": 3}, (6,))]


@pytest.mark.parametrize("max_entries", [2, 7, 100])
def test_entries_are_bounded(max_entries: int) -> None:
    """However many calls there are, at most the bound is kept and, once there were enough, at least half of it less one."""
    machine, kept = recorded(max_entries=max_entries)
    for call in range(1, 400):
        machine.add(1, float(call))
        number = kept.recording().count
        assert number <= max_entries
        assert number >= min(call, max_entries // 2 - 1)
    serials = [entry.serial for entry in kept.recording().entries()]
    assert serials == list(range(400 - len(serials), 400))


def test_bytes_are_bounded() -> None:
    """Large arguments push out old ones, whatever the number of entries allows."""
    machine, random = JoinedText(), Random(1)
    kept = Recorder("m", 200_000, 1_000_000)
    kept.attach(machine, None)
    for call in range(500):
        machine.hear(random.randbytes(1000), float(call))
        assert kept.weight <= 200_000 + 2_000
    assert 90 <= kept.recording().count <= 200


def test_entries_that_resemble_each_other_take_little_room() -> None:
    """Of a long run of similar calls ten times as many are kept as their bytes would allow one by one, and all come back."""
    machine = JoinedText()
    kept = Recorder("m", 200_000, 1_000_000)
    kept.attach(machine, None)
    for call in range(2000):
        machine.hear(b"x" * 1000, float(call))
    assert kept.weight <= 100_000
    assert [entry.arguments[1] for entry in kept.recording().entries()] == [float(call) for call in range(2000)]


class JoinedText:
    """Remembers nothing of what it hears."""

    def hear(self, text: bytes, now: float) -> tuple[int, ...]:  # noqa: ARG002 - as verbs are
        """How long it was."""
        return (len(text),)


def test_what_is_kept_begins_with_its_memory() -> None:
    """The first entry found the machine in exactly the memory that the recording starts with."""
    machine, kept = recorded(max_entries=10)
    for call in range(1, 50):
        machine.add(1, float(call))
    recording = kept.recording()
    assert recording.start is not None
    first = next(iter(recording.entries()))
    assert recording.start.nodes[0].content == (("sum",), (first.serial - 1,))
    assert (recording.machine, recording.seed, recording.settings, recording.total) == ("m", 5, ("settings",), 49)


def test_a_machine_too_large_to_copy_is_still_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a memory to start from there are entries to read, and a later memory is taken as soon as there is one."""

    def refuse(_: object, *, max_weight: float) -> None:  # noqa: ARG001 - as it is called
        raise TooLargeError

    machine, kept = recorded(max_entries=10)
    with monkeypatch.context() as patch:
        patch.setattr(recorder, "freeze", refuse)
        for call in range(20):
            machine.add(1, float(call))
    assert kept.recording().start is None
    assert kept.recording().count > 0
    for call in range(20, 26):
        machine.add(1, float(call))
    assert kept.recording().start is not None


class Hoarder:
    """Its memory alone is heavier than what its recorder may keep."""

    def __init__(self) -> None:
        self.things: list[list[int]] = [[] for _ in range(1000)]

    def look(self, now: float) -> tuple[int, ...]:  # noqa: ARG002 - as verbs are
        """How many things there are."""
        return (len(self.things),)


def test_a_heavy_memory_leaves_room_for_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine heavier than half a segment is recorded without its memory, and not copied anew with every entry."""
    attempts = 0

    def counted(machine: object, *, max_weight: float) -> Frozen:
        nonlocal attempts
        attempts += 1
        return freeze(machine, max_weight=max_weight)

    monkeypatch.setattr(recorder, "freeze", counted)
    machine, kept = Hoarder(), Recorder("m", 20_000, 1_000_000)
    kept.attach(machine, None)
    for call in range(1000):
        machine.look(float(call))
    assert kept.recording().count > 100
    assert attempts < 15


def test_what_cannot_be_recorded_ends_nothing() -> None:
    """An argument of no known kind leaves a gap: the verb works, and what is kept begins after it."""
    machine, kept = recorded()
    machine.add(1, 1.0)
    assert machine.add(True, object()) == (2,)  # type: ignore[arg-type]  # a caller's bug
    machine.add(1, 3.0)
    assert [entry.serial for entry in kept.recording().entries()] == [3]
