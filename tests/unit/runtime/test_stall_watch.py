"""The log speaks of what stands still after a first wait, and then once per doubling of it."""

from runtime.stall_watch import MAX_LINES, MAX_LOOKED_AT, StallWatch


def spoken(watch: StallWatch[str], since: float, looks: list[float]) -> list[float]:
    """At which of these moments something is said of one thing that waits all the time."""
    return [now for now in looks if watch.look(now, [("a", since)])]


def test_it_speaks_once_per_doubling() -> None:
    """With a first wait of one second: after 1, 2, 4 and 8 seconds, however often it looks."""
    moments = [100 + step / 2 for step in range(33)]
    assert spoken(StallWatch(1.0), 100.0, moments) == [101.0, 102.0, 104.0, 108.0, 116.0]


def test_a_long_silence_is_made_up_for_once() -> None:
    """A look that comes late says it once, with the true wait, and goes on from there."""
    watch: StallWatch[str] = StallWatch(1.0)
    assert watch.look(110.0, [("a", 100.0)]) == [("a", 10.0)]
    assert watch.look(115.0, [("a", 100.0)]) == []
    assert watch.look(116.0, [("a", 100.0)]) == [("a", 16.0)]


def test_what_has_moved_on_starts_anew() -> None:
    """Another state of the same thing has a wait of its own, and what is gone is forgotten."""
    watch: StallWatch[str] = StallWatch(1.0)
    assert watch.look(102.0, [("a", 100.0)])
    assert watch.look(103.0, [("a", 102.5)]) == []
    assert watch.look(103.5, [("a", 102.5)]) == [("a", 1.0)]
    watch.look(104.0, [])
    assert watch._said == {}


def test_it_says_how_soon_it_wants_to_look() -> None:
    """Twice per first wait is enough."""
    watch: StallWatch[str] = StallWatch(2.0)
    watch.look(10.0, [])
    assert watch.next_look == 11.0


def test_only_the_longest_waits_are_said() -> None:
    """A thousand chunks behind one stopped peer are not a thousand lines."""
    watch: StallWatch[int] = StallWatch(1.0)
    due = watch.look(100.0, [(number, number / 100) for number in range(1000)])
    assert [key for key, _ in due] == list(range(MAX_LINES))


def test_a_look_is_bounded() -> None:
    """However much waits, the loop is not held up for it."""
    watch: StallWatch[int] = StallWatch(1.0)
    numbers = iter(range(10**9))
    watch.look(100.0, ((number, 0.0) for number in numbers))
    assert next(numbers) == MAX_LOOKED_AT
