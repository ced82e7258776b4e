"""Progress of a run on stderr: a live bar on a terminal, now and then a plain line elsewhere. Stdout stays for results."""

import sys
import time
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

PLAIN_INTERVAL_S = 2.0


class ProgressView(Protocol):
    """Shows one phase at a time. A context manager: what it drew is finished on exit."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def phase(self, title: str, total: int) -> None:
        """Begin a phase of ``total`` steps."""

    def advance(self, done: int, note: str = "") -> None:
        """``done`` steps of the current phase are over."""

    def say(self, text: str) -> None:
        """Show one line that stays."""


class LiveProgress:
    """One bar per phase, redrawn in place."""

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bars = Progress(*columns, TextColumn("{task.fields[note]}"), console=console)
        self._current: TaskID | None = None

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._bars.stop()

    def phase(self, title: str, total: int) -> None:
        """Begin a bar of ``total`` steps below the earlier ones."""
        if self._current is not None:
            self._bars.stop_task(self._current)
        self._current = self._bars.add_task(title, total=total, note="")

    def advance(self, done: int, note: str = "") -> None:
        """Move the bar to ``done``."""
        if self._current is not None:
            self._bars.update(self._current, completed=done, note=note)

    def say(self, text: str) -> None:
        """Print a line above the bars."""
        self._bars.console.print(text, markup=False, highlight=False)


class PlainProgress:
    """A line at each phase's start and end, and in between at most one per ``interval_s``: for logs and pipes."""

    def __init__(self, console: Console, interval_s: float = PLAIN_INTERVAL_S) -> None:
        self._console = console
        self._interval_s = interval_s
        self._title = ""
        self._total = 0
        self._next_line_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        return None

    def phase(self, title: str, total: int) -> None:
        """Say what begins."""
        self._title, self._total = title, total
        self._next_line_at = time.monotonic() + self._interval_s
        self.say(f"{title}: {total} to go")

    def advance(self, done: int, note: str = "") -> None:
        """Say how far it is, if the last line is old enough or this is the end."""
        if done < self._total and time.monotonic() < self._next_line_at:
            return
        self._next_line_at = time.monotonic() + self._interval_s
        self.say(f"{self._title}: {done}/{self._total}" + (f" ({note})" if note else ""))

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def open_progress() -> LiveProgress | PlainProgress:
    """The view that suits stderr."""
    console = Console(stderr=True)
    return LiveProgress(console) if sys.stderr.isatty() else PlainProgress(console)
