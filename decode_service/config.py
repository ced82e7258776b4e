"""Settings of the decode daemon. Timers are those of ``docs/protocol.md``; every duration is in seconds of one host's clock."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from protocol.limits import MAX_DATA_PIECE_BYTES
from runtime.addresses import MAX_PORT, bracket_problems, is_loopback, is_wildcard
from runtime.allow_list import load_allow_list
from runtime.key_files import read_key_pair
from runtime.planes import AUTO
from runtime.security import key_file_problem
from runtime.service_settings import ServiceSettings, http_port_setting
from runtime.setting_kinds import INTEGER, NAME, NUMBER, OPTIONAL_PATH, SIZE, SWITCH, TEXT
from runtime.settings import Problem, duration, setting


@dataclass(frozen=True)
class DecodeServiceConfig(ServiceSettings):
    """Everything an operator may decide about a decode daemon. Cannot be made with a value that is out of bounds."""

    id_setting: ClassVar[str] = "decode_id"

    decode_id: str = setting("decode", kind=NAME, help="Name of this daemon: in logs, in its socket and its segments.")
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
    piece_bytes: int = setting(
        4 << 20, kind=SIZE, minimum=4096, maximum=MAX_DATA_PIECE_BYTES, help="Largest piece of payload on the zmq plane."
    )
    http_port: int = http_port_setting(7590)

    heartbeat_s: float = duration(1.0, help="How often a prefill says that it lives.")
    lease_s: float = duration(10.0, help="How long an answered heartbeat lets a prefill write.")
    grace_s: float = duration(2.0, help="Added to the lease before a silent session is fenced.")
    park_s: float = duration(5.0, help="How long a request may wait for its room to be registered.")
    quarantine_s: float = duration(30.0, help="How long a grant may pin the ring without proof before the ring is replaced.")
    room_deadline_s: float = duration(300.0, help="How long a room may take once it can move.")

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
    max_parked_per_session: int = setting(1024, kind=INTEGER, minimum=1, maximum=1 << 20, help="Parked requests of a session.")

    @property
    def has_data_port(self) -> bool:
        """Whether payload may arrive on sockets: the ``zmq`` plane is offered."""
        return not {AUTO, "zmq"}.isdisjoint(self.planes)

    def control_port(self, rank: int) -> int:
        """TCP port of a rank's control socket."""
        return self.base_port + rank

    def data_port(self, rank: int) -> int:
        """TCP port of a rank's data socket on the ``zmq`` plane."""
        return self.data_base_port + rank

    def rule_problems(self) -> Iterator[Problem]:
        """Problems between settings."""
        yield from super().rule_problems()
        yield from self._address_problems()
        yield from self._port_problems()
        yield from self._mooncake_problems()
        if self.lease_s <= 2 * self.heartbeat_s:
            found = f"a lease of {self.lease_s:g} s with a heartbeat every {self.heartbeat_s:g} s"
            advice = "one lost heartbeat must not end a lease: raise lease_s or lower heartbeat_s"
            yield Problem(("lease_s", "heartbeat_s"), found, "a lease of more than two heartbeats", advice)

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
        data = {self.data_port(rank) for rank in self.ranks} if self.has_data_port else set[int]()
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
