"""A scenario never waits for ever, and says what it waited for."""

import asyncio

import pytest

from lab.chaos.expectations import NotAsExpected, expect, until, within


def test_what_holds_passes_and_what_does_not_is_said() -> None:
    """The text of a broken expectation is the scenario's own."""
    expect(True, "never said")
    with pytest.raises(NotAsExpected, match="two regions"):
        expect(False, "two regions")


def test_what_does_not_come_in_time_is_named() -> None:
    """The error names what was awaited and the bound; what is in time is returned."""
    assert asyncio.run(within(30.0, "answer", asyncio.sleep(0, "yes"))) == "yes"
    with pytest.raises(NotAsExpected, match=r"answer: not within 0\.01 s"):
        asyncio.run(within(0.01, "answer", asyncio.Event().wait()))


def test_a_condition_is_asked_until_it_holds() -> None:
    """A condition that comes true ends the wait; one that never does ends it with its name."""
    answers = iter([False, False, True])

    async def holds() -> bool:
        return next(answers)

    async def never() -> bool:
        return False

    asyncio.run(until(30.0, "third time", holds))
    with pytest.raises(NotAsExpected, match="pigs fly: not within"):
        asyncio.run(until(0.05, "pigs fly", never))
