"""Planes that take their time to open: each opens in a thread of its own, and is given up when it takes too long."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from prefill_service.outputs import OpenPlane
from prefill_service.writers.base import PlaneOpenError, RegionWriter
from runtime.loop import EventLoop

OPEN_LIMIT_S = 10.0
"""How long a plane may take to open. An engine's own limit may be a minute; its thread then ends alone."""

Opened = RegionWriter | PlaneOpenError


@dataclass(frozen=True, slots=True)
class _Opening:
    order: OpenPlane
    give_up_at: float


class Openings:
    """Orders that are being carried out. Loop thread only; ``done`` is called there, once per order."""

    def __init__(self, loop: EventLoop, done: Callable[[OpenPlane, Opened], None]) -> None:
        self._loop = loop
        self._done = done
        self._running: dict[int, _Opening] = {}
        self._started = 0

    def start(self, order: OpenPlane, open_writer: Callable[[], RegionWriter]) -> None:
        """Begin; ``done`` hears the writer, or why there is none."""
        self._started += 1
        self._running[self._started] = _Opening(order, self._loop.clock() + OPEN_LIMIT_S)
        # Not one of the daemon's workers: an engine that hangs here must hold up nobody's copies.
        job = partial(self._open, self._started, open_writer)
        threading.Thread(target=job, name=f"open-{order.plane}", daemon=True).start()

    def next_deadline(self) -> float | None:
        """When the first of them is given up."""
        return min((opening.give_up_at for opening in self._running.values()), default=None)

    def tick(self, now: float) -> None:
        """Give up what takes too long."""
        for number, opening in tuple(self._running.items()):
            if opening.give_up_at <= now:
                del self._running[number]
                self._done(opening.order, PlaneOpenError(f"it did not open within {OPEN_LIMIT_S:g} s"))

    def close(self) -> None:
        """Forget them all: what still opens is closed at once."""
        self._running.clear()

    def _open(self, number: int, open_writer: Callable[[], RegionWriter]) -> None:
        result: Opened
        try:
            result = open_writer()
        except PlaneOpenError as error:
            result = error
        self._loop.call_soon_threadsafe(partial(self._opened, number, result))

    def _opened(self, number: int, result: Opened) -> None:
        opening = self._running.pop(number, None)
        if opening is not None:
            self._done(opening.order, result)
        elif not isinstance(result, PlaneOpenError):
            result.close()
