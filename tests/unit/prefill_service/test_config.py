"""The prefill daemon's settings name its ranks, groups and peers, and refuse what could not work."""

from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from prefill_service.config import PrefillServiceConfig
from prefill_service.handler_settings import PrefillHandlerSettings
from runtime.settings import ConfigurationError, load
from tests.unit.keys import KeyRing


def problem_fields(**values: object) -> list[tuple[str, ...]]:
    """The fields of each problem of a configuration given as flags."""
    with pytest.raises(ConfigurationError) as caught:
        load(PrefillServiceConfig, file=None, environ={}, flags=values)
    return [problem.fields for problem in caught.value.problems]


def test_defaults_are_the_documented_ones() -> None:
    """Without settings the timers are those that the documents name, and no peer is known."""
    config = PrefillServiceConfig()
    assert config.probe_s == 0.05
    assert {config.request_retry_s, config.ready_retry_s, config.abort_retry_s, config.subscribe_retry_s} == {0.2}
    assert (config.retry_limit_s, config.stall_warn_s, config.decode_peers) == (2.0, 1.0, ())


def test_each_rank_has_an_id_of_its_own() -> None:
    """Decode ranks tell the ranks of one daemon apart."""
    assert PrefillServiceConfig(prefill_id="p").rank_id(3) == "p-3"


def test_all_ranks_are_one_group_unless_told_otherwise() -> None:
    """Without DP attention every rank belongs to the group of that name, which is the prefill id by default."""
    assert PrefillServiceConfig(prefill_id="p").group_of(3) == "p"
    assert PrefillServiceConfig(prefill_id="p", group="g").group_of(3) == "g"


def test_dp_attention_splits_ranks_into_groups() -> None:
    """With attention TP 2, ranks 0 and 1 are one instance and ranks 2 and 3 another, on whichever daemon they live."""
    config = PrefillServiceConfig(group="g", attention_tp=2, ranks=(0, 1, 2, 3))
    assert [config.group_of(rank) for rank in config.ranks] == ["g-dp0", "g-dp0", "g-dp1", "g-dp1"]


def test_engine_socket_carries_the_id() -> None:
    """The engine's socket lies in the runtime directory and is named after the daemon."""
    config = PrefillServiceConfig(prefill_id="p1", runtime_dir=Path("/run/pd"))
    assert config.engine_socket == Path("/run/pd/p1.engine.sock")


def test_peers_may_be_written_as_a_range() -> None:
    """Eight decode ranks of one daemon are one word."""
    loaded = load(PrefillServiceConfig, file=None, environ={}, flags={"decode_peers": "tcp://127.0.0.1:7600-7607"})
    assert loaded.config.decode_peers[0] == "tcp://127.0.0.1:7600"
    assert len(loaded.config.decode_peers) == 8


def test_more_peers_than_the_limit_are_refused() -> None:
    """Configured peers must fit the limit."""
    peers = "tcp://127.0.0.1:7600-7607"
    assert problem_fields(decode_peers=peers, max_peers="7") == [("decode_peers", "max_peers")]


@pytest.mark.parametrize("timer", ["request_retry_s", "ready_retry_s", "abort_retry_s", "subscribe_retry_s"])
def test_first_wait_is_not_above_the_longest(timer: str) -> None:
    """A retry that would start above its limit is refused."""
    assert problem_fields(**{timer: "3"}) == [(timer, "retry_limit_s")]


def test_every_room_needs_a_tombstone() -> None:
    """Fewer tombstones than rooms are refused: a closed room could be opened again under late messages."""
    assert problem_fields(max_rooms="10", max_tombstones="9") == [("max_tombstones", "max_rooms")]


def test_settings_are_the_machines() -> None:
    """Each setting that the machine knows as well has the machine's name and the machine's default."""
    config = PrefillServiceConfig()
    defaults = {field.name: field.default for field in fields(PrefillHandlerSettings) if field.default is not MISSING}
    shared = {name: value for name, value in defaults.items() if hasattr(config, name)}
    assert {name: getattr(config, name) for name in shared} == shared
    assert len(shared) >= 15


def test_socket_path_fits_the_kernel() -> None:
    """A path that the kernel would cut off is refused here, where it can be explained."""
    assert problem_fields(runtime_dir="/" + "x" * 100) == [("runtime_dir", "prefill_id")]


def test_settings_of_the_decode_side_are_not_ours() -> None:
    """A ring belongs to the decode side: the prefill has no such setting."""
    assert not hasattr(PrefillServiceConfig(), "ring_bytes")


def test_remote_decodes_need_keys_or_consent(tmp_path: Path) -> None:
    """A decode rank beyond loopback is refused unless there are keys or ``--insecure``; one key alone is refused anyway."""
    remote = "tcp://decode:7600"
    assert problem_fields(decode_peers=f"tcp://127.0.0.1:7600,{remote}") == [("decode_peers",)]
    assert problem_fields(client_key="/k") == [("client_key", "server_keys")]
    assert problem_fields(decode_peers=remote, client_key="relative", server_keys="/s") == [("client_key",)]
    assert PrefillServiceConfig(decode_peers=(remote,), insecure=True).decode_peers == (remote,)
    keys = KeyRing(tmp_path, "p").prefill("p")
    config = PrefillServiceConfig(decode_peers=(remote,), **keys)
    assert list(config.file_problems()) == []


def test_files_that_cannot_be_used_are_problems_of_their_settings(tmp_path: Path) -> None:
    """Both files are looked into, and every configured decode rank must have a key among the known ones."""
    wrong = PrefillServiceConfig(client_key=tmp_path / "k", server_keys=tmp_path / "l")
    assert [problem.fields for problem in wrong.file_problems()] == [("client_key",), ("server_keys",)]
    ring = KeyRing(tmp_path, "p")
    servers = tmp_path / "servers.toml"
    servers.write_text(f'[endpoints]\n"tcp://d" = "{ring.server.public}"\n', encoding="utf-8")
    peers = ("tcp://d:7600", "tcp://e:7600")
    partly = PrefillServiceConfig(decode_peers=peers, client_key=ring.prefill("p")["client_key"], server_keys=servers)
    assert [problem.fields for problem in partly.file_problems()] == [("decode_peers", "server_keys")]
    assert list(PrefillServiceConfig().file_problems()) == []
