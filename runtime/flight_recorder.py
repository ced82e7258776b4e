"""The flight recorder of one daemon: a bounded memory of what entered its machines, written to a file when something is wrong.

A dump is a file in the daemon's runtime directory, readable by its user alone, and holds ids, sizes, places and times; no byte
of KV cache and no key. It is written on SIGUSR1, when a chunk stands still for too long, and when the loop breaks. At most
``max_dumps`` of this daemon's dumps are kept, the latest ones. ``python -m lab replay FILE`` reads them.
"""

import os
import platform
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from runtime.flight_file import dump_lines
from runtime.logs import logger
from runtime.recorder import Recorder

WaitingSince = Callable[[], Iterable[float]]

SIGNAL, STALL, CRASH = "signal", "stall", "crash"
STALL_DUMPS_APART_S: Final = 60.0
"""Dumps because of stalls come at least this far apart, however many chunks stand still."""


@dataclass(frozen=True, slots=True)
class FlightLimits:
    """What a daemon's recorder may keep, all its machines together."""

    max_bytes: int
    """Estimated memory; 0 records nothing."""
    max_entries: int
    max_dumps: int
    stall_s: float
    """How long a chunk stands still before that is worth a dump."""


class FlightRecorder:
    """Owns a recorder for each machine of the daemon. Any thread may ``dump``."""

    def __init__(
        self,
        service_id: str,
        folder: Path,
        limits: FlightLimits,
        machines: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._service_id = service_id
        self._folder = folder
        self._limits = limits
        self._machines = max(1, machines)
        self._clock = clock
        self._log = logger(service_id=service_id)
        self._recorders: dict[str, Recorder] = {}
        self._guard = threading.Lock()
        self._writer: threading.Thread | None = None
        self._waiting: list[WaitingSince] = []
        self._stall_due_s = limits.stall_s
        self._stall_dumped_at: float | None = None
        self._look_at = 0.0
        self._seen: int | None = None
        """Calls of all machines when nothing was found to wait; until there are more, nothing can wait."""

    def watch(self, name: str, machine: object, settings: object, seed: int, waiting: WaitingSince) -> None:
        """Record a machine that was born with these settings and a random source of this seed.

        ``waiting`` yields for every chunk that has not arrived the moment since when it waits, on the loop's clock.
        """
        if self._limits.max_bytes == 0:
            return
        self._waiting.append(waiting)
        recorder = Recorder(name, self._limits.max_bytes // self._machines, self._limits.max_entries // self._machines)
        recorder.attach(machine, settings, seed)
        self._recorders = {**self._recorders, name: recorder}

    def next_deadline(self) -> float | None:
        """When to look for chunks that stand still; never while none can wait."""
        return None if self._calls() == self._seen else self._look_at

    def tick(self, now: float) -> None:
        """Look for the chunk that has waited longest."""
        if now < self._look_at:
            return
        self._look_at = now + self._limits.stall_s / 4
        calls = self._calls()
        since = min((moment for waiting in self._waiting for moment in waiting()), default=None)
        self._seen = calls if since is None else None
        self._stalled(0.0 if since is None else now - since, now)

    def flush(self, now: float) -> None:
        """Nothing is owed."""

    def _calls(self) -> int:
        return sum(recorder.total for recorder in self._recorders.values())

    def _stalled(self, waited_s: float, now: float) -> None:
        """Some chunk has stood still for so long: dump at ``stall_s``, and each time the longest wait has doubled."""
        if waited_s < self._limits.stall_s:
            self._stall_due_s = self._limits.stall_s
            return
        lately = self._stall_dumped_at is not None and now < self._stall_dumped_at + STALL_DUMPS_APART_S
        if waited_s < self._stall_due_s or lately:
            return
        self._stall_due_s, self._stall_dumped_at = 2 * waited_s, now
        self.dump_soon(STALL)

    def dump_soon(self, reason: str) -> None:
        """Dump in a thread of its own; if one is being written, that is enough."""
        if self._recorders and (self._writer is None or not self._writer.is_alive()):
            self._writer = threading.Thread(target=self.dump, args=(reason,), name="flight-writer")
            self._writer.start()

    def dump(self, reason: str) -> Path | None:
        """Write everything that is kept to a new file, and return it; ``None``, and a log line, if there is none."""
        recordings = [recorder.recording() for recorder in self._recorders.values()]
        if not recordings:
            self._log.warning("flight_not_recorded", reason=reason)
            return None
        started = self._clock()
        with self._guard:
            try:
                path = self._write(dump_lines(self._head(reason), recordings), reason)
                self._forget_old()
            except (OSError, TypeError) as error:
                self._log.error("flight_dump_failed", reason=reason, cause=str(error))
                return None
        entries, took_s = sum(recording.count for recording in recordings), round(self._clock() - started, 3)
        self._log.warning("flight_dumped", reason=reason, file=str(path), entries=entries, took_s=took_s)
        return path

    def close(self) -> None:
        """Wait until a dump that is being written is complete."""
        if self._writer is not None:
            self._writer.join()

    def _head(self, reason: str) -> dict[str, object]:
        return {
            "service_id": self._service_id,
            "reason": reason,
            "pid": os.getpid(),
            "product_version": _product_version(),
            "python_version": platform.python_version(),
            "time": datetime.now(UTC).isoformat(timespec="microseconds"),
            "clock": self._clock(),
        }

    def _write(self, lines: Iterator[str], reason: str) -> Path:
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        path = self._folder / f"{self._service_id}.flight-{stamp}-{reason}.jsonl"
        unfinished = path.with_suffix(".part")
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.writelines(lines)
            unfinished.rename(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        return path

    def _forget_old(self) -> None:
        dumps = sorted(self._folder.glob(f"{self._service_id}.flight-*.jsonl"))
        for path in dumps[: max(0, len(dumps) - self._limits.max_dumps)]:
            path.unlink(missing_ok=True)


def _product_version() -> str:
    try:
        return version("pd-staging")
    except PackageNotFoundError:  # run from a source tree
        return "unknown"
