"""The decode daemon's settings refuse what could not work, before anything is opened."""

import tomllib
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from decode_service.config import DecodeServiceConfig
from decode_service.handler_settings import DecodeHandlerSettings
from runtime.addresses import is_loopback
from runtime.settings import ConfigurationError, load, render_toml
from tests.unit.keys import KeyRing


def problem_fields(**values: object) -> list[tuple[str, ...]]:
    """The fields of each problem of a configuration given as flags."""
    with pytest.raises(ConfigurationError) as caught:
        load(DecodeServiceConfig, file=None, environ={}, flags=values)
    return [problem.fields for problem in caught.value.problems]


def test_defaults_are_the_documented_ones() -> None:
    """Without settings a daemon listens on loopback, on the ports and with the timers that the documents name."""
    config = DecodeServiceConfig()
    assert (config.host, config.control_port(3), config.data_port(3)) == ("127.0.0.1", 7603, 7703)
    assert (config.heartbeat_s, config.lease_s, config.grace_s) == (1.0, 10.0, 2.0)
    assert (config.park_s, config.room_deadline_s, config.room_deadline_cap) == (5.0, 300.0, 4.0)
    assert (config.quarantine_s, config.max_retired_regions) == (30.0, 2)
    assert (config.max_chunks_in_flight, config.max_rewrites, config.max_sessions) == (64, 3, 4096)
    assert config.checksums
    assert config.planes == ("auto",)


def test_engine_socket_carries_the_id() -> None:
    """The engine's socket lies in the runtime directory and is named after the daemon."""
    config = DecodeServiceConfig(decode_id="d1", runtime_dir=Path("/run/pd"))
    assert config.engine_socket == Path("/run/pd/d1.engine.sock")


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "[::]", "decode.example"])
def test_public_address_needs_consent(host: str) -> None:
    """An address that others can reach, or a name that may be one, is refused unless it is asked for with ``--insecure``."""
    assert problem_fields(host=host) == [("host",)]
    assert load(DecodeServiceConfig, file=None, environ={}, flags={"host": host, "insecure": True}).config.host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "[::1]", "localhost"])
def test_loopback_needs_none(host: str) -> None:
    """Every address of the loopback interface is allowed."""
    assert is_loopback(host)
    assert DecodeServiceConfig(host=host).host == host


@pytest.mark.parametrize("host", ["::", "::1", "fd00::1"])
def test_ipv6_needs_brackets(host: str) -> None:
    """Without them no port can follow: the problem shows how to write it, for both hosts."""
    with pytest.raises(ConfigurationError) as caught:
        DecodeServiceConfig(host=host, data_host=host, insecure=True)
    assert [str(problem) for problem in caught.value.problems] == [
        f"{field}: found '{host}'; expected an IPv6 address in brackets; write [{host}]" for field in ("host", "data_host")
    ]


def test_an_unreadable_key_setting_is_the_only_problem() -> None:
    """A relative path is not taken for no key: nobody is told to give the daemon keys that it was given."""
    assert problem_fields(host="0.0.0.0", server_key="k.key_secret", allow_list="/l") == [("server_key",)]


def test_control_and_data_ports_must_not_meet() -> None:
    """Ranges that overlap for the hosted ranks are refused, but only where the data ports are used and really meet."""
    assert problem_fields(ranks="0-7", data_base_port="7607") == [("base_port", "data_base_port", "ranks")]
    assert DecodeServiceConfig(ranks=tuple(range(8)), data_base_port=7608).data_port(0) == 7608
    assert DecodeServiceConfig(ranks=(0, 7), data_base_port=7606).data_port(0) == 7606
    assert DecodeServiceConfig(ranks=tuple(range(8)), data_base_port=7607, planes=("shm",)).planes == ("shm",)


def test_ports_end() -> None:
    """A rank whose port would lie beyond the last one is refused."""
    assert problem_fields(ranks="0-7", base_port="65530") == [("base_port", "data_base_port", "ranks")]


def test_lease_outlives_a_lost_heartbeat() -> None:
    """A lease of two heartbeats or less is refused, naming both."""
    assert problem_fields(lease_s="2", heartbeat_s="1") == [("lease_s", "heartbeat_s")]


def test_first_wait_is_not_above_the_longest() -> None:
    """A retry that would start above its limit is refused."""
    assert problem_fields(abort_retry_s="3") == [("abort_retry_s", "retry_limit_s")]


def test_every_room_needs_a_tombstone() -> None:
    """Fewer tombstones than rooms are refused: a closed room could be opened again under late messages."""
    assert problem_fields(max_rooms="10", max_tombstones="9") == [("max_tombstones", "max_rooms")]


def test_settings_are_the_machines() -> None:
    """Each setting that the machine knows as well has the machine's name and the machine's default."""
    config = DecodeServiceConfig()
    defaults = {field.name: field.default for field in fields(DecodeHandlerSettings) if field.default is not MISSING}
    shared = {name: value for name, value in defaults.items() if hasattr(config, name)}
    assert {name: getattr(config, name) for name in shared} == shared
    assert len(shared) >= 12


def test_socket_path_fits_the_kernel() -> None:
    """A path that the kernel would cut off is refused here, where it can be explained."""
    assert problem_fields(runtime_dir="/" + "x" * 100) == [("runtime_dir", "decode_id")]


def test_unusable_values_are_told_together() -> None:
    """Ring, ranks, planes and address are each wrong, and each is told."""
    found = problem_fields(ring_bytes="0", ranks="9-1", planes="rdma", host="0.0.0.0")
    assert sorted(found) == [("host",), ("planes",), ("ranks",), ("ring_bytes",)]


def test_keys_come_together_and_replace_consent(tmp_path: Path) -> None:
    """A server key without a list of clients, or the reverse, is refused; with both the address may be any."""
    assert problem_fields(server_key="/k") == [("server_key", "allow_list")]
    assert problem_fields(allow_list="/k") == [("server_key", "allow_list")]
    config = DecodeServiceConfig(host="0.0.0.0", server_key=tmp_path / "k", allow_list=tmp_path / "l")
    assert not config.is_exposed
    assert DecodeServiceConfig(host="0.0.0.0", insecure=True).is_exposed
    assert not DecodeServiceConfig().is_exposed


def test_files_that_cannot_be_used_are_problems_of_their_settings(tmp_path: Path) -> None:
    """``--check`` looks into the key and the list, tells both at once, and finds nothing in good ones."""
    wrong = DecodeServiceConfig(server_key=tmp_path / "k", allow_list=tmp_path / "l")
    assert [problem.fields for problem in wrong.file_problems()] == [("server_key",), ("allow_list",)]
    assert list(DecodeServiceConfig(**KeyRing(tmp_path, "a").decode).file_problems()) == []
    assert list(DecodeServiceConfig().file_problems()) == []


def test_an_empty_path_means_none(tmp_path: Path) -> None:
    """What ``--print-config`` writes for a setting that is not given is read back as not given."""
    file = tmp_path / "c.toml"
    file.write_text('server_key = ""\nallow_list = ""\n', encoding="utf-8")
    config = load(DecodeServiceConfig, file=file, environ={}, flags={}).config
    assert (config.server_key, config.allow_list) == (None, None)
    assert tomllib.loads(render_toml(load(DecodeServiceConfig, file=file, environ={}, flags={})))["server_key"] == ""
