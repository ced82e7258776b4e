"""Settings of the decode daemon. Timers are those of ``docs/protocol.md``; every duration is in seconds of one host's clock."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from protocol.limits import MAX_CHUNK_TOKENS, MAX_DATA_PIECE_BYTES, MAX_DURATION_S
from runtime.addresses import MAX_PORT, bracket_problems, http_problems, is_loopback, is_wildcard
from runtime.allow_list import load_allow_list
from runtime.flight_recorder import FlightLimits
from runtime.key_files import read_key_pair
from runtime.logs import LEVELS
from runtime.planes import AUTO, PLANE_CHOICES, plane_problems
from runtime.runtime_directory import MAX_UNIX_PATH_BYTES, default_runtime_dir, engine_socket
from runtime.security import key_file_problem
from runtime.setting_kinds import INTEGER, NAME, NAMES, NUMBER, OPTIONAL_NAME, OPTIONAL_PATH, PATH, RANKS, SIZE, SWITCH, TEXT
from runtime.settings import Problem, Settings, duration, setting


@dataclass(frozen=True)
class DecodeServiceConfig(Settings):
    """Everything an operator may decide about a decode daemon. Cannot be made with a value that is out of bounds."""

    decode_id: str = setting("decode", kind=NAME, help="Name of this daemon: in logs, in its socket and its segments.")
    ranks: tuple[int, ...] = setting((0,), kind=RANKS, help="Decode ranks that this daemon hosts.")
    host: str = setting("127.0.0.1", kind=TEXT, help="Address to listen on; beyond loopback only with keys.")
    base_port: int = setting(
        7600, kind=INTEGER, minimum=1, maximum=MAX_PORT, help="Control port of rank 0; rank r has base + r."
    )
    data_base_port: int = setting(7700, kind=INTEGER, minimum=1, maximum=MAX_PORT, help="Data port of rank 0 (zmq plane).")
    data_host: str = setting(
        "", kind=TEXT, help="Host that prefills use for data, where it is not the one they use for control."
    )
    server_key: Path | None = setting(None, kind=OPTIONAL_PATH, help="This daemon's secret CURVE key (see keygen).")
    allow_list: Path | None = setting(
        None, kind=OPTIONAL_PATH, help="Clients' public keys and what each may be: a TOML file or a directory of them."
    )
    insecure: bool = setting(False, kind=SWITCH, help="Allow listening beyond loopback without keys.")

    ring_bytes: int = setting(256 << 20, kind=SIZE, minimum=1, maximum=1 << 46, help="Staging ring of each rank.")
    chunk_tokens: int = setting(1024, kind=INTEGER, minimum=1, maximum=MAX_CHUNK_TOKENS, help="Chunk grid, as on the prefills.")
    planes: tuple[str, ...] = setting(
        (AUTO,), kind=NAMES, choices=PLANE_CHOICES, aliases=("--plane",), help="Data planes, best first; a named one must work."
    )
    nixl_devices: str = setting("", kind=TEXT, help="Network devices of the nixl plane (UCX_NET_DEVICES); empty: loopback.")
    piece_bytes: int = setting(
        4 << 20, kind=SIZE, minimum=4096, maximum=MAX_DATA_PIECE_BYTES, help="Largest piece of payload on the zmq plane."
    )
    checksums: bool = setting(True, kind=SWITCH, help="Verify the xxh3 checksum of every slice before it is scattered.")
    shm_dir: Path = setting(Path("/dev/shm"), kind=PATH, help="Directory in memory for staging segments.")  # noqa: S108
    runtime_dir: Path = setting(kind=PATH, default_factory=default_runtime_dir, help="Directory for the engine's unix socket.")
    host_id: str = setting("", kind=OPTIONAL_NAME, help="Name shared by daemons that share memory; empty finds it out.")
    worker_threads: int = setting(2, kind=INTEGER, minimum=1, maximum=256, help="Threads that copy and verify.")
    compiled_copies: bool = setting(False, kind=SWITCH, help="Copy short rows in a compiled loop (needs the extra fast).")
    log_level: str = setting("info", kind=TEXT, choices=LEVELS, help="Least important log lines to write.")

    http_host: str = setting("127.0.0.1", kind=TEXT, help="Address of the HTTP port; see --http-public.")
    http_port: int = setting(7590, kind=INTEGER, minimum=0, maximum=MAX_PORT, help="Port for metrics and status; 0: none.")
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

    heartbeat_s: float = duration(1.0, help="How often a prefill says that it lives.")
    lease_s: float = duration(10.0, help="How long an answered heartbeat lets a prefill write.")
    grace_s: float = duration(2.0, help="Added to the lease before a silent session is fenced.")
    abort_retry_s: float = duration(0.2, help="First wait before an ABORT is repeated.")
    retry_limit_s: float = duration(2.0, help="Longest wait between repeats.")
    park_s: float = duration(5.0, help="How long a request may wait for its room to be registered.")
    quarantine_s: float = duration(30.0, help="How long a grant may pin the ring without proof before the ring is replaced.")
    stall_warn_s: float = duration(1.0, help="How long a chunk may stand still before the log says why.")
    unready_after_s: float = duration(15.0, help="How long nothing may move while chunks wait before /readyz says no.")
    room_deadline_s: float = duration(300.0, help="How long a room may take once it can move.")
    room_deadline_cap: float = setting(4.0, kind=NUMBER, minimum=1, maximum=1000, help="Limit of a room's life, in deadlines.")
    drain_s: float = setting(30.0, kind=NUMBER, unit="s", minimum=0, maximum=MAX_DURATION_S, help="Longest drain on SIGTERM.")

    max_chunks_in_flight: int = setting(64, kind=INTEGER, minimum=1, maximum=65_536, help="Chunks in flight of one session.")
    grant_horizon: float = setting(4.0, kind=NUMBER, minimum=1, maximum=1024, help="Rings' worth of bytes granted ahead.")
    group_share: float = setting(
        0.25, kind=NUMBER, minimum=0.001, maximum=1, help="Part of that one prefill group may hold while others wait."
    )
    max_rewrites: int = setting(3, kind=INTEGER, minimum=0, maximum=1000, help="Rejections of a slice before its room fails.")
    max_retired_regions: int = setting(
        2, kind=INTEGER, minimum=0, maximum=1024, help="Replaced rings kept at once; beyond that rooms fail instead."
    )
    max_sessions: int = setting(4096, kind=INTEGER, minimum=1, maximum=1 << 20, help="Sessions of one rank.")
    max_rooms: int = setting(65_536, kind=INTEGER, minimum=1, maximum=1 << 24, help="Live rooms of one rank.")
    max_tombstones: int = setting(1_000_000, kind=INTEGER, minimum=1, maximum=1 << 26, help="Closed rooms one rank remembers.")
    max_parked_per_session: int = setting(1024, kind=INTEGER, minimum=1, maximum=1 << 20, help="Parked requests of a session.")
    max_engine_requests: int = setting(65_536, kind=INTEGER, minimum=1, maximum=1 << 24, help="Engine requests in flight.")

    @property
    def flight_limits(self) -> FlightLimits:
        """What the flight recorder may keep."""
        return FlightLimits(self.recorder_bytes, self.recorder_entries, self.recorder_dumps, self.recorder_stall_s)

    @property
    def engine_socket(self) -> Path:
        """The unix socket on which the engine commands this daemon."""
        return engine_socket(self.runtime_dir, self.decode_id)

    def control_port(self, rank: int) -> int:
        """TCP port of a rank's control socket."""
        return self.base_port + rank

    def data_port(self, rank: int) -> int:
        """TCP port of a rank's data socket on the ``zmq`` plane."""
        return self.data_base_port + rank

    def rule_problems(self) -> Iterator[Problem]:
        """Problems between settings."""
        yield from http_problems(self.http_host, public=self.http_public)
        yield from plane_problems(self.planes)
        yield from self._address_problems()
        yield from self._port_problems()
        yield from self._mooncake_problems()
        if self.lease_s <= 2 * self.heartbeat_s:
            found = f"a lease of {self.lease_s:g} s with a heartbeat every {self.heartbeat_s:g} s"
            advice = "one lost heartbeat must not end a lease: raise lease_s or lower heartbeat_s"
            yield Problem(("lease_s", "heartbeat_s"), found, "a lease of more than two heartbeats", advice)
        if self.abort_retry_s > self.retry_limit_s:
            found = f"{self.abort_retry_s:g} s and {self.retry_limit_s:g} s"
            yield Problem(("abort_retry_s", "retry_limit_s"), found, "a first wait not above the longest one")
        if self.max_tombstones < self.max_rooms:
            found = f"{self.max_tombstones} tombstones for {self.max_rooms} rooms"
            yield Problem(("max_tombstones", "max_rooms"), found, "a tombstone for every room")
        if (length := len(bytes(self.engine_socket))) > MAX_UNIX_PATH_BYTES:
            found = f"{self.engine_socket} ({length} bytes)"
            yield Problem(
                ("runtime_dir", "decode_id"), found, f"a socket path of at most {MAX_UNIX_PATH_BYTES} bytes", "shorten it"
            )

    def file_problems(self) -> Iterator[Problem]:
        """Keys and lists that cannot be used."""
        key, clients = self.server_key, self.allow_list
        if key is not None and clients is not None:
            yield from key_file_problem("server_key", lambda: read_key_pair(key))
            yield from key_file_problem("allow_list", lambda: load_allow_list(clients))

    @property
    def is_exposed(self) -> bool:
        """Whether others can reach the sockets and need no key for it."""
        return self.server_key is None and not is_loopback(self.host)

    def _address_problems(self) -> Iterator[Problem]:
        yield from bracket_problems("host", self.host)
        yield from bracket_problems("data_host", self.data_host)
        if self.is_exposed and not self.insecure:
            advice = (
                "give the daemon keys (--server-key and --allow-list, see keygen), bind loopback, or accept it with --insecure"
            )
            because = ("server_key", "allow_list", "insecure")
            yield Problem(("host",), f"{self.host!r} without keys", "a loopback address, or keys", advice, because)
        if (self.server_key is None) != (self.allow_list is None):
            found = "only one of them"
            yield Problem(("server_key", "allow_list"), found, "both or neither", "a key without clients lets nobody in")

    def _mooncake_problems(self) -> Iterator[Problem]:
        host = self.data_host or self.host
        if "mooncake" in self.planes and is_wildcard(host):
            advice = "name the address that prefills reach in data_host"
            yield Problem(("host", "data_host", "planes"), repr(host), "one address for the mooncake plane", advice)

    def _port_problems(self) -> Iterator[Problem]:
        control = {self.control_port(rank) for rank in self.ranks}
        has_data_port = not {AUTO, "zmq"}.isdisjoint(self.planes)
        data = {self.data_port(rank) for rank in self.ranks} if has_data_port else set[int]()
        if max(control | data) > MAX_PORT:
            found = f"port {max(control | data)} for rank {max(self.ranks)}"
            yield Problem(("base_port", "data_base_port", "ranks"), found, f"ports up to {MAX_PORT}", "lower the base port")
        if self.http_port in control | data:
            yield Problem(
                ("http_port", "base_port", "data_base_port", "ranks"), f"port {self.http_port} twice", "distinct ports"
            )
        if shared := sorted(control & data):
            port = shared[0]
            found = f"port {port} for control of rank {port - self.base_port} and data of rank {port - self.data_base_port}"
            advice = "move one base port away by at least the number of ranks"
            yield Problem(("base_port", "data_base_port", "ranks"), found, "distinct ports", advice)
