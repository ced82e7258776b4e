"""The daemons are started with commands that an operator could type."""

import pytest

from decode_service.config import DecodeServiceConfig
from lab.pair import DaemonPair, Programs, clean_environment
from lab.pools import PoolSet, PoolSizes
from lab.presets import PRESETS
from lab.shape import PairShape
from lab.workspace import Workspace
from prefill_service.config import PrefillServiceConfig
from runtime.settings import Settings, load

SHAPE = PairShape(PRESETS["tiny"].model, 4, 2, 8, "zmq", 32, 20_000)


def flags(command: tuple[str, ...]) -> dict[str, object]:
    """``--ring-bytes 5`` as ``ring_bytes: "5"``, as the command line hands it to the settings."""
    words = command[command.index("serve") + 1 :]
    return {name.removeprefix("--").replace("-", "_"): value for name, value in zip(words[::2], words[1::2], strict=True)}


def settings_of(kind: type[Settings], command: tuple[str, ...]) -> Settings:
    """What the daemon makes of its command line."""
    return load(kind, file=None, environ={}, flags=flags(command)).config


def test_the_command_lines_are_valid_settings() -> None:
    """Both services accept them, agree on grid, plane and directories, and the group names are those of the shape."""
    with Workspace() as workspace, PoolSet.create(workspace.pools, SHAPE, PoolSizes(1, 1)) as pools:
        pair = DaemonPair(SHAPE, workspace, pools, print)
        decode = settings_of(DecodeServiceConfig, pair.decode.process.command)
        prefill = settings_of(PrefillServiceConfig, pair.prefill.process.command)
    assert isinstance(decode, DecodeServiceConfig)
    assert isinstance(prefill, PrefillServiceConfig)
    assert decode.ranks == tuple(range(8))
    assert prefill.ranks == tuple(range(4))
    assert (decode.ring_bytes, decode.chunk_tokens, decode.planes) == (20_000, 32, ("zmq",))
    assert (prefill.chunk_tokens, prefill.planes, prefill.shm_dir) == (32, ("zmq",), decode.shm_dir)
    assert pair.decode_endpoints == [f"tcp://127.0.0.1:{decode.control_port(rank)}" for rank in range(8)]
    assert [prefill.group_of(rank) for rank in range(4)] == [SHAPE.group_name(group) for group in (0, 0, 1, 1)]


def test_other_programs_get_the_same_settings() -> None:
    """An altered daemon differs by the start of its command line alone."""
    programs = Programs(decode=("altered", "serve"), prefill=("altered", "serve"))
    with Workspace() as workspace, PoolSet.create(workspace.pools, SHAPE, PoolSizes(1, 1)) as pools:
        pair = DaemonPair(SHAPE, workspace, pools, print, programs, settings=("--heartbeat-s", "2"))
    assert pair.decode.process.command[:2] == ("altered", "serve")
    assert flags(pair.decode.process.command)["heartbeat_s"] == "2"


def test_settings_of_another_deployment_do_not_leak_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator's environment variables for a real deployment leave a run of the laboratory alone."""
    monkeypatch.setenv("PD_STAGING_RING_BYTES", "1")
    monkeypatch.setenv("UNRELATED", "kept")
    environment = clean_environment()
    assert "PD_STAGING_RING_BYTES" not in environment
    assert environment["UNRELATED"] == "kept"
