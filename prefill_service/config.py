"""Settings of the prefill daemon, which listens on no port. Every duration is in seconds of one host's clock."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from protocol.limits import MAX_RANKS
from runtime.addresses import is_loopback_endpoint
from runtime.key_files import read_key_pair
from runtime.known_servers import load_known_servers
from runtime.security import key_file_problem
from runtime.service_settings import ServiceSettings, http_port_setting
from runtime.setting_kinds import ENDPOINTS, INTEGER, NAME, OPTIONAL_NAME, OPTIONAL_PATH, SIZE, SWITCH
from runtime.settings import Problem, duration, setting


@dataclass(frozen=True)
class PrefillServiceConfig(ServiceSettings):
    """Everything an operator may decide about a prefill daemon. Cannot be made with a value that is out of bounds."""

    id_setting: ClassVar[str] = "prefill_id"
    first_waits: ClassVar[tuple[str, ...]] = ("request_retry_s", "ready_retry_s", "abort_retry_s", "subscribe_retry_s")

    prefill_id: str = setting("prefill", kind=NAME, help="Name of this instance; rank r is known to decodes as NAME-r.")
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

    send_buffer_bytes: int = setting(
        256 << 20, kind=SIZE, minimum=1, maximum=1 << 46, help="Memory for slices on their way, of every plane but shm."
    )
    http_port: int = http_port_setting(7591)

    probe_s: float = duration(0.05, help="How long a chunk waits for its watermark before it asks; then doubled.")
    request_retry_s: float = duration(0.2, help="First wait before a STAGING_REQ is repeated.")
    ready_retry_s: float = duration(0.2, help="First wait before a CHUNK_READY is repeated.")
    subscribe_retry_s: float = duration(0.2, help="First wait before a SUBSCRIBE is repeated.")
    write_retry_s: float = duration(0.05, help="Wait before a failed write is tried again.")
    transfer_timeout_s: float = duration(12.0, help="A write that makes no progress for this long has failed.")
    stop_wait_s: float = duration(30.0, help="How long a new subscription waits for writes of the old session.")
    room_deadline_s: float = duration(300.0, help="How long a room may go without progress before it fails here.")
    room_tombstone_s: float = duration(300.0, help="How long a closed room answers and its id stays taken.")

    max_peers: int = setting(1024, kind=INTEGER, minimum=1, maximum=MAX_RANKS, help="Decode ranks one rank may serve at once.")
    max_rooms: int = setting(4096, kind=INTEGER, minimum=1, maximum=1 << 24, help="Live rooms of one rank.")
    max_tombstones: int = setting(65_536, kind=INTEGER, minimum=1, maximum=1 << 26, help="Rooms, live and closed, of one rank.")
    max_chunks_per_room: int = setting(65_536, kind=INTEGER, minimum=1, maximum=1 << 24, help="Chunks of one room.")
    max_writes_in_flight: int = setting(4, kind=INTEGER, minimum=1, maximum=4096, help="Writes to one decode rank at a time.")
    max_write_failures: int = setting(
        3, kind=INTEGER, minimum=1, maximum=1000, help="Failed writes before a chunk's room fails."
    )

    def rank_id(self, rank: int) -> str:
        """The ``prefill_id`` by which decode ranks know this rank."""
        return f"{self.prefill_id}-{rank}"

    def group_of(self, rank: int) -> str:
        """The group of a rank, unless the engine names another one with the rank's pool."""
        group = self.group or self.prefill_id
        return f"{group}-dp{rank // self.attention_tp}" if self.attention_tp else group

    def rule_problems(self) -> Iterator[Problem]:
        """Problems between settings."""
        yield from super().rule_problems()
        yield from self._key_problems()
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
