"""Settings of the prefill daemon, which listens on no port. Every duration is in seconds of one host's clock."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from protocol.limits import MAX_CHUNK_TOKENS, MAX_DURATION_S, MAX_RANKS
from runtime.addresses import MAX_PORT, http_problems, is_loopback_endpoint
from runtime.flight_recorder import FlightLimits
from runtime.key_files import read_key_pair
from runtime.known_servers import load_known_servers
from runtime.logs import LEVELS
from runtime.planes import AUTO, PLANE_CHOICES, plane_problems
from runtime.runtime_directory import MAX_UNIX_PATH_BYTES, default_runtime_dir, engine_socket
from runtime.security import key_file_problem
from runtime.setting_kinds import (
    ENDPOINTS,
    INTEGER,
    NAME,
    NAMES,
    NUMBER,
    OPTIONAL_NAME,
    OPTIONAL_PATH,
    PATH,
    RANKS,
    SIZE,
    SWITCH,
    TEXT,
)
from runtime.settings import Problem, Settings, duration, setting

_RETRIES = ("request_retry_s", "ready_retry_s", "abort_retry_s", "subscribe_retry_s")


@dataclass(frozen=True)
class PrefillServiceConfig(Settings):
    """Everything an operator may decide about a prefill daemon. Cannot be made with a value that is out of bounds."""

    prefill_id: str = setting("prefill", kind=NAME, help="Name of this instance; rank r is known to decodes as NAME-r.")
    ranks: tuple[int, ...] = setting((0,), kind=RANKS, help="Prefill ranks that this daemon hosts.")
    group: str = setting("", kind=OPTIONAL_NAME, help="Name of the prefill instance in rooms; empty: the prefill id.")
    attention_tp: int = setting(
        0,
        kind=INTEGER,
        minimum=0,
        maximum=MAX_RANKS,
        help="Under DP attention: ranks of one group, named GROUP-dpN. 0: one group.",
    )
    decode_peers: tuple[str, ...] = setting(
        (), kind=ENDPOINTS, help="Decode ranks to subscribe to at start; rooms may name more."
    )
    client_key: Path | None = setting(None, kind=OPTIONAL_PATH, help="This daemon's secret CURVE key (see keygen).")
    server_keys: Path | None = setting(
        None, kind=OPTIONAL_PATH, help="Public key of the decode daemons: one certificate for all, or a TOML file by endpoint."
    )
    insecure: bool = setting(False, kind=SWITCH, help="Allow decode ranks beyond loopback without keys.")

    chunk_tokens: int = setting(1024, kind=INTEGER, minimum=1, maximum=MAX_CHUNK_TOKENS, help="Chunk grid, as on the decodes.")
    planes: tuple[str, ...] = setting(
        (AUTO,), kind=NAMES, choices=PLANE_CHOICES, aliases=("--plane",), help="Data planes to offer; a named one must work."
    )
    nixl_devices: str = setting("", kind=TEXT, help="Network devices of the nixl plane (UCX_NET_DEVICES); empty: loopback.")
    checksums: bool = setting(True, kind=SWITCH, help="Send the xxh3 checksum of every slice.")
    send_buffer_bytes: int = setting(
        256 << 20, kind=SIZE, minimum=1, maximum=1 << 46, help="Memory for slices on their way, of every plane but shm."
    )
    shm_dir: Path = setting(Path("/dev/shm"), kind=PATH, help="Directory in memory where staging segments lie.")  # noqa: S108
    runtime_dir: Path = setting(kind=PATH, default_factory=default_runtime_dir, help="Directory for the engine's unix socket.")
    host_id: str = setting("", kind=OPTIONAL_NAME, help="Name shared by daemons that share memory; empty finds it out.")
    worker_threads: int = setting(2, kind=INTEGER, minimum=1, maximum=256, help="Threads that copy and sum.")
    compiled_copies: bool = setting(False, kind=SWITCH, help="Copy short rows in a compiled loop (needs the extra fast).")
    log_level: str = setting("info", kind=TEXT, choices=LEVELS, help="Least important log lines to write.")

    http_host: str = setting("127.0.0.1", kind=TEXT, help="Address of the HTTP port; see --http-public.")
    http_port: int = setting(7591, kind=INTEGER, minimum=0, maximum=MAX_PORT, help="Port for metrics and status; 0: none.")
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

    probe_s: float = duration(0.05, help="How long a chunk waits for its watermark before it asks; then doubled.")
    request_retry_s: float = duration(0.2, help="First wait before a STAGING_REQ is repeated.")
    ready_retry_s: float = duration(0.2, help="First wait before a CHUNK_READY is repeated.")
    abort_retry_s: float = duration(0.2, help="First wait before an ABORT is repeated.")
    subscribe_retry_s: float = duration(0.2, help="First wait before a SUBSCRIBE is repeated.")
    retry_limit_s: float = duration(2.0, help="Longest wait between repeats.")
    write_retry_s: float = duration(0.05, help="Wait before a failed write is tried again.")
    transfer_timeout_s: float = duration(12.0, help="A write that makes no progress for this long has failed.")
    stop_wait_s: float = duration(30.0, help="How long a new subscription waits for writes of the old session.")
    stall_warn_s: float = duration(1.0, help="How long a chunk may stand still before the log says why.")
    unready_after_s: float = duration(15.0, help="How long nothing may move while chunks wait before /readyz says no.")
    room_deadline_s: float = duration(300.0, help="How long a room may go without progress before it fails here.")
    room_deadline_cap: float = setting(4.0, kind=NUMBER, minimum=1, maximum=1000, help="Limit of a room's life, in deadlines.")
    room_tombstone_s: float = duration(300.0, help="How long a closed room answers and its id stays taken.")
    drain_s: float = setting(30.0, kind=NUMBER, unit="s", minimum=0, maximum=MAX_DURATION_S, help="Longest drain on SIGTERM.")

    max_peers: int = setting(1024, kind=INTEGER, minimum=1, maximum=MAX_RANKS, help="Decode ranks one rank may serve at once.")
    max_rooms: int = setting(4096, kind=INTEGER, minimum=1, maximum=1 << 24, help="Live rooms of one rank.")
    max_tombstones: int = setting(65_536, kind=INTEGER, minimum=1, maximum=1 << 26, help="Rooms, live and closed, of one rank.")
    max_chunks_per_room: int = setting(65_536, kind=INTEGER, minimum=1, maximum=1 << 24, help="Chunks of one room.")
    max_writes_in_flight: int = setting(4, kind=INTEGER, minimum=1, maximum=4096, help="Writes to one decode rank at a time.")
    max_write_failures: int = setting(
        3, kind=INTEGER, minimum=1, maximum=1000, help="Failed writes before a chunk's room fails."
    )
    max_engine_requests: int = setting(65_536, kind=INTEGER, minimum=1, maximum=1 << 24, help="Engine requests in flight.")

    @property
    def flight_limits(self) -> FlightLimits:
        """What the flight recorder may keep."""
        return FlightLimits(self.recorder_bytes, self.recorder_entries, self.recorder_dumps, self.recorder_stall_s)

    @property
    def engine_socket(self) -> Path:
        """The unix socket on which the engine commands this daemon."""
        return engine_socket(self.runtime_dir, self.prefill_id)

    def rank_id(self, rank: int) -> str:
        """The ``prefill_id`` by which decode ranks know this rank."""
        return f"{self.prefill_id}-{rank}"

    def group_of(self, rank: int) -> str:
        """The group of a rank, unless the engine names another one with the rank's pool."""
        group = self.group or self.prefill_id
        return f"{group}-dp{rank // self.attention_tp}" if self.attention_tp else group

    def rule_problems(self) -> Iterator[Problem]:
        """Problems between settings."""
        yield from http_problems(self.http_host, public=self.http_public)
        yield from plane_problems(self.planes)
        for name in _RETRIES:
            if (first := getattr(self, name)) > self.retry_limit_s:
                found = f"{first:g} s and {self.retry_limit_s:g} s"
                yield Problem((name, "retry_limit_s"), found, "a first wait not above the longest one")
        if (length := len(bytes(self.engine_socket))) > MAX_UNIX_PATH_BYTES:
            found = f"{self.engine_socket} ({length} bytes)"
            expected = f"a socket path of at most {MAX_UNIX_PATH_BYTES} bytes"
            yield Problem(("runtime_dir", "prefill_id"), found, expected, "shorten it")
        yield from self._key_problems()
        if self.max_tombstones < self.max_rooms:
            found = f"{self.max_tombstones} tombstones for {self.max_rooms} rooms"
            yield Problem(("max_tombstones", "max_rooms"), found, "a tombstone for every room")
        if len(self.decode_peers) > self.max_peers:
            found = f"{len(self.decode_peers)} peers and a limit of {self.max_peers}"
            yield Problem(("decode_peers", "max_peers"), found, "no more peers than the limit")

    def file_problems(self) -> Iterator[Problem]:
        """Keys that cannot be used or are missing."""
        key, servers = self.client_key, self.server_keys
        if key is None or servers is None:
            return
        yield from key_file_problem("client_key", lambda: read_key_pair(key))
        found = tuple(key_file_problem("server_keys", lambda: load_known_servers(servers)))
        yield from found
        known = None if found else load_known_servers(servers)
        for peer in self.decode_peers:
            if known is not None and not known.keys_of(peer):
                yield Problem(("decode_peers", "server_keys"), f"no public key of {peer}", f"one in {servers}")

    def _key_problems(self) -> Iterator[Problem]:
        if (self.client_key is None) != (self.server_keys is None):
            advice = "each side must know whom it speaks with"
            yield Problem(("client_key", "server_keys"), "only one of them", "both or neither", advice)
        beyond = [peer for peer in self.decode_peers if not is_loopback_endpoint(peer)]
        if beyond and self.client_key is None and not self.insecure:
            advice = "give the daemon keys (--client-key and --server-keys, see keygen), or accept it with --insecure"
            because = ("client_key", "server_keys", "insecure")
            yield Problem(("decode_peers",), f"{beyond[0]} without keys", "loopback addresses, or keys", advice, because)
