"""Calls to an embedded half, whose answers are heard wherever they come: at once, later on its thread, or as a refusal."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from runtime.engine_protocol import EngineError

Answer = Future[Any] | EngineError
"""A finished future, or the refusal of a half that did not take the call."""


def when_done(call: Callable[[], Future[Any]], then: Callable[[Any], None]) -> None:
    """Call the half, and ``then`` with its ``Answer``. Never raises ``EngineError``."""
    try:
        future = call()
    except EngineError as error:
        then(error)
        return
    future.add_done_callback(then)


def error_of(answer: Answer) -> EngineError | None:
    """What went wrong, or ``None``."""
    if isinstance(answer, EngineError):
        return answer
    if answer.cancelled():
        return EngineError("closed", "the call was given up")
    error = answer.exception()
    if error is None or isinstance(error, EngineError):
        return error
    return EngineError("failed", f"{type(error).__name__}: {error}")


def is_gone(error: EngineError) -> bool:
    """Whether the half itself has ended."""
    return error.code == "closed"
