"""What the router between the model's engines does by itself; ``tests/integration/test_model.py`` has it at work."""

import asyncio

import pytest

from lab.model.engines import heed_cancellation
from runtime.engine_protocol import EngineError


def test_a_cancelled_request_ends_although_its_parts_failed() -> None:
    """Where an engine's death fails the parts of a request in the moment of its cancellation, the request goes no further."""
    reached: list[str] = []

    async def part() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise EngineError("disconnected", "the daemon went away")

    async def request() -> None:
        try:
            async with asyncio.TaskGroup() as parts:
                parts.create_task(part())
        except* EngineError:
            reached.append("failed")
        heed_cancellation()
        reached.append("went on")

    async def play() -> None:
        task = asyncio.create_task(request())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(play())
    assert reached == ["failed"]


def test_a_request_that_nobody_cancelled_goes_on() -> None:
    """Without a cancellation nothing happens."""

    async def play() -> str:
        heed_cancellation()
        return "went on"

    assert asyncio.run(play()) == "went on"
