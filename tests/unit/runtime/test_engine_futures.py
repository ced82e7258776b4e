"""Futures of futures."""

from concurrent.futures import Future

import pytest

from runtime.engine_futures import then


def test_results_are_changed_and_errors_pass() -> None:
    """The change is applied to a result; an error arrives as it was."""
    good: Future[int] = Future()
    changed = then(good, str)
    good.set_result(5)
    assert changed.result(0) == "5"
    bad: Future[int] = Future()
    passed = then(bad, str)
    bad.set_exception(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        passed.result(0)


def test_cancelling_either_end_is_harmless() -> None:
    """A caller that gave up is left alone; a request that was cancelled says so."""
    first: Future[int] = Future()
    given_up = then(first, str)
    assert given_up.cancel()
    first.set_result(1)
    second: Future[int] = Future()
    told = then(second, str)
    second.cancel()
    with pytest.raises(RuntimeError, match="cancelled"):
        told.result(0)
