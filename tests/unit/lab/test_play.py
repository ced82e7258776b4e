"""``lab play`` carries requests over daemons that somebody else runs, and says of them what they say themselves."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from structlog.testing import capture_logs

from decode_service.server import DecodeStagingServer
from lab.play import PlayOptions, play, play_shape, run_play
from lab.ports import free_port_base
from lab.process import DaemonDied
from lab.progress import open_progress
from prefill_service.client import PrefillStagingClient
from runtime.planes import AUTO
from tests.unit.embedded import decode_config, prefill_config

RING_BYTES = 1 << 20


def options(folder: Path, port: int, *prefill: str, deadline_s: float = 60.0) -> PlayOptions:
    """A few requests over one decode rank, with pools in the test's own folder."""
    (folder / "pools").mkdir()
    place = (folder / "run", "decode", prefill, (f"tcp://127.0.0.1:{port}",))
    return PlayOptions(*place, requests=4, concurrency=2, deadline_s=deadline_s, pools=folder / "pools")


def test_fewer_endpoints_than_the_daemon_has_ranks(tmp_path: Path) -> None:
    """Ranks that this run does not use are left alone, and the ring is as large as the daemon says."""
    port = free_port_base(4)
    wide = {"ranks": (0, 1), "base_port": port, "data_base_port": port + 2, "ring_bytes": RING_BYTES}
    decode = decode_config(tmp_path, chunk_tokens=64, planes=(AUTO,), **wide)
    prefill = prefill_config(tmp_path, chunk_tokens=64, planes=(AUTO,), group="prefill-dp0")
    chosen = options(tmp_path, port, "prefill")
    with capture_logs(), DecodeStagingServer(decode), PrefillStagingClient(prefill), open_progress() as view:
        report = run_play(chosen, play_shape(chosen), view)
    assert report.succeeded, report.failures
    assert (report.requests_completed, report.ring_bytes, report.restarts) == (4, RING_BYTES, 0)


def test_a_daemon_that_is_missing_is_named(tmp_path: Path) -> None:
    """Of two prefill daemons only the one that does not answer is blamed."""
    port = free_port_base(2)
    decode = decode_config(tmp_path, base_port=port, data_base_port=port + 1, ring_bytes=RING_BYTES)
    chosen = options(tmp_path, port, "prefill", "absent", deadline_s=3.0)
    there = (DecodeStagingServer(decode), PrefillStagingClient(prefill_config(tmp_path)))
    with capture_logs(), there[0], there[1], open_progress() as view, pytest.raises(DaemonDied) as caught:
        run_play(chosen, play_shape(chosen), view)
    missing = tmp_path / "run" / "absent.engine.sock"
    assert str(caught.value) == f"no answer from the prefill daemon at {missing} within 3 s"


def test_the_help_names_the_groups() -> None:
    """Whoever starts the daemons learns which groups the rooms will name."""
    words = " ".join(CliRunner().invoke(play, ["--help"]).stdout.split())
    assert "--group prefill-dp0, --group prefill-dp1" in words
