"""Futures of futures."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")


def then(future: "Future[A]", change: Callable[[A], B]) -> "Future[B]":
    """A future of ``change`` applied to what ``future`` will hold; errors pass through."""
    changed: Future[B] = Future()

    def finish(done: "Future[A]") -> None:
        if not changed.set_running_or_notify_cancel():
            return
        if done.cancelled():
            changed.set_exception(RuntimeError("the request was cancelled"))
            return
        error = done.exception()
        if error is not None:
            changed.set_exception(error)
        else:
            changed.set_result(change(done.result()))

    future.add_done_callback(finish)
    return changed
