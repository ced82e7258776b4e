"""Calls whose answers may come at once, later, or not at all."""

from concurrent.futures import Future
from typing import Any

import pytest

from integrations.vllm.calls import Answer, error_of, is_gone, when_done
from runtime.engine_protocol import EngineError


def refuse() -> "Future[Any]":
    """A half that has no place."""
    raise EngineError("busy", "full")


def test_answer_is_heard_once_it_comes() -> None:
    """The continuation gets the finished future, from whoever finishes it."""
    future: Future[Any] = Future()
    heard: list[Answer] = []
    when_done(lambda: future, heard.append)
    assert heard == []
    future.set_result({})
    assert heard == [future]
    assert error_of(future) is None


def test_refusal_is_heard_at_once() -> None:
    """A call that is not taken at all is an answer like another."""
    heard: list[Answer] = []
    when_done(refuse, heard.append)
    error = error_of(heard[0])
    assert error is not None
    assert error.code == "busy"
    assert not is_gone(error)


@pytest.mark.parametrize(
    ("error", "code"), [(EngineError("closed", "gone"), "closed"), (RuntimeError("boom"), "failed"), (None, "closed")]
)
def test_every_failure_has_a_code(error: Exception | None, code: str) -> None:
    """An error of another kind, and a call that was given up, are told apart by a code too."""
    future: Future[Any] = Future()
    if error is None:
        future.cancel()
        future.set_running_or_notify_cancel()
    else:
        future.set_exception(error)
    found = error_of(future)
    assert found is not None
    assert found.code == code
    assert is_gone(found) == (code == "closed")
