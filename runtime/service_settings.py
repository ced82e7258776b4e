"""The settings that both services have, and the rules among them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from protocol.limits import MAX_CHUNK_TOKENS, MAX_DURATION_S
from runtime.addresses import MAX_PORT, http_problems
from runtime.flight_recorder import FlightLimits
from runtime.logs import LEVELS
from runtime.planes import AUTO, PLANE_CHOICES, plane_problems
from runtime.runtime_directory import MAX_UNIX_PATH_BYTES, default_runtime_dir, engine_socket
from runtime.setting_kinds import INTEGER, NAMES, NUMBER, OPTIONAL_NAME, PATH, RANKS, SIZE, SWITCH, TEXT
from runtime.settings import Problem, Settings, duration, setting


def http_port_setting(default: int) -> int:
    """Declare the port of a service's HTTP server; each service has a default of its own."""
    return setting(default, kind=INTEGER, minimum=0, maximum=MAX_PORT, help="Port for metrics and status; 0: none.")


@dataclass(frozen=True)
class ServiceSettings(Settings):
    """What an operator may decide about a daemon of either side."""

    id_setting: ClassVar[str]
    """The setting that names the daemon."""
    first_waits: ClassVar[tuple[str, ...]] = ("abort_retry_s",)
    """Settings of first waits, none of which may be longer than ``retry_limit_s``."""

    ranks: tuple[int, ...] = setting((0,), kind=RANKS, help="Ranks that this daemon hosts.")
    chunk_tokens: int = setting(
        1024, kind=INTEGER, minimum=1, maximum=MAX_CHUNK_TOKENS, help="Chunk grid, the same on both sides."
    )
    planes: tuple[str, ...] = setting(
        (AUTO,),
        kind=NAMES,
        choices=PLANE_CHOICES,
        aliases=("--plane",),
        help="Data planes; the decode side's order counts. A named one must work.",
    )
    nixl_devices: str = setting("", kind=TEXT, help="Network devices of the nixl plane (UCX_NET_DEVICES); empty: loopback.")
    checksums: bool = setting(True, kind=SWITCH, help="Send an xxh3 checksum of every slice and verify it before the scatter.")
    shm_dir: Path = setting(Path("/dev/shm"), kind=PATH, help="Directory in memory for staging segments.")  # noqa: S108
    runtime_dir: Path = setting(kind=PATH, default_factory=default_runtime_dir, help="Directory for the engine's unix socket.")
    host_id: str = setting("", kind=OPTIONAL_NAME, help="Name shared by daemons that share memory; empty finds it out.")
    worker_threads: int = setting(2, kind=INTEGER, minimum=1, maximum=256, help="Threads that copy and sum.")
    compiled_copies: bool = setting(False, kind=SWITCH, help="Copy in a compiled loop, past the caches (needs the extra fast).")
    log_level: str = setting("info", kind=TEXT, choices=LEVELS, help="Least important log lines to write.")

    http_host: str = setting("127.0.0.1", kind=TEXT, help="Address of the HTTP port; see --http-public.")
    http_port: int = http_port_setting(0)
    http_public: bool = setting(False, kind=SWITCH, help="Let other machines read metrics, room ids and status over HTTP.")
    otlp_endpoint: str = setting("", kind=TEXT, help="Where to send spans, as http://HOST:4318/v1/traces; empty: nowhere.")
    recorder_bytes: int = setting(
        16 << 20, kind=SIZE, minimum=0, maximum=1 << 40, help="Memory of the flight recorder, all ranks together; 0: none."
    )
    recorder_entries: int = setting(
        65_536, kind=INTEGER, minimum=2, maximum=1 << 30, help="Entries of the flight recorder, all ranks together."
    )
    recorder_dumps: int = setting(8, kind=INTEGER, minimum=1, maximum=10_000, help="Dumps of the flight recorder to keep.")
    recorder_stall_s: float = duration(10.0, help="How long a chunk stands still before the flight recorder is dumped.")

    abort_retry_s: float = duration(0.2, help="First wait before an ABORT is repeated.")
    retry_limit_s: float = duration(2.0, help="Longest wait between repeats.")
    stall_warn_s: float = duration(1.0, help="How long a chunk may stand still before the log says why.")
    unready_after_s: float = duration(15.0, help="How long nothing may move while chunks wait before /readyz says no.")
    room_deadline_cap: float = setting(4.0, kind=NUMBER, minimum=1, maximum=1000, help="Limit of a room's life, in deadlines.")
    drain_s: float = setting(30.0, kind=NUMBER, unit="s", minimum=0, maximum=MAX_DURATION_S, help="Longest drain on SIGTERM.")
    max_rooms: int = setting(65_536, kind=INTEGER, minimum=1, maximum=1 << 24, help="Live rooms of one rank.")
    max_tombstones: int = setting(1_000_000, kind=INTEGER, minimum=1, maximum=1 << 26, help="Rooms that one rank remembers.")
    max_engine_requests: int = setting(65_536, kind=INTEGER, minimum=1, maximum=1 << 24, help="Engine requests in flight.")

    @property
    def flight_limits(self) -> FlightLimits:
        """What the flight recorder may keep."""
        return FlightLimits(self.recorder_bytes, self.recorder_entries, self.recorder_dumps, self.recorder_stall_s)

    @property
    def engine_socket(self) -> Path:
        """The unix socket on which the engine commands this daemon."""
        return engine_socket(self.runtime_dir, getattr(self, self.id_setting))

    def rule_problems(self) -> Iterator[Problem]:
        """Problems between settings."""
        yield from http_problems(self.http_host, public=self.http_public)
        yield from plane_problems(self.planes)
        for name in self.first_waits:
            if (first := getattr(self, name)) > self.retry_limit_s:
                found = f"{first:g} s and {self.retry_limit_s:g} s"
                yield Problem((name, "retry_limit_s"), found, "a first wait not above the longest one")
        if self.max_tombstones < self.max_rooms:
            found = f"{self.max_tombstones} tombstones for {self.max_rooms} rooms"
            yield Problem(("max_tombstones", "max_rooms"), found, "a tombstone for every room")
        if (length := len(bytes(self.engine_socket))) > MAX_UNIX_PATH_BYTES:
            found = f"{self.engine_socket} ({length} bytes)"
            expected = f"a socket path of at most {MAX_UNIX_PATH_BYTES} bytes"
            yield Problem(("runtime_dir", self.id_setting), found, expected, "shorten it")
