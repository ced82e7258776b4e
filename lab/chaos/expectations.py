"""What a scenario demands of the world, always within a bound: what does not come in time is a finding, not a wait."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

POLL_S = 0.02


class NotAsExpected(Exception):
    """Something that must hold did not."""


class Unavailable(Exception):
    """This machine lacks what the scenario needs. The message says what, and what to do about it."""


def expect(holds: bool, otherwise: str) -> None:
    """Raise ``NotAsExpected`` with this text unless it holds."""
    if not holds:
        raise NotAsExpected(otherwise)


async def within(limit_s: float, what: str, awaited: Awaitable[T]) -> T:
    """The result of ``awaited``. Raises ``NotAsExpected`` if it takes longer than ``limit_s`` seconds."""
    try:
        async with asyncio.timeout(limit_s):
            return await awaited
    except TimeoutError as error:
        raise NotAsExpected(f"{what}: not within {limit_s:g} s") from error


async def until(limit_s: float, what: str, holds: Callable[[], Awaitable[bool]]) -> None:
    """Ask again and again until it holds. Raises ``NotAsExpected`` after ``limit_s`` seconds."""

    async def poll() -> None:
        while not await holds():  # noqa: ASYNC110 - what is asked lives in another process
            await asyncio.sleep(POLL_S)

    await within(limit_s, what, poll())
