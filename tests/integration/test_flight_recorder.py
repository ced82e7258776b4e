"""Real daemons are dumped while they run, and what they decided is decided again in another process."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from decode_service.handler import DecodeStagingHandler
from decode_service.outputs import Output
from decode_service.server import DecodeStagingServer
from protocol.layout import PageRun
from runtime.flight_file import read_flight
from runtime.recorder import Raised
from tests.integration.daemons import CHUNK_TOKENS, DECODE_TP, PREFILL_TP, WAIT_S, Deployment
from tests.integration.test_moving_kv import carry, runs
from tests.unit.embedded import RUN, decode_config, private_pool

Report = dict[str, object]


def wait_for_dump(deployment: Deployment, service_id: str, reason: str) -> Path:
    """The dump of that daemon, once it is complete."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        found = list(deployment.runtime.glob(f"{service_id}.flight-*-{reason}.jsonl"))
        if found:
            return found[0]
        os.sched_yield()
    raise AssertionError(f"{service_id} wrote no dump because of a {reason}")


def replay(dump: Path) -> Report:
    """What the command says, with another order of hashes than the daemon had."""
    command = [sys.executable, "-m", "lab", "replay", str(dump), "--json"]
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report: Report = json.loads(done.stdout)
    return report


@pytest.mark.parametrize("plane", ["shm", "zmq"])
def test_both_sides_of_a_transfer_are_replayed(tmp_path: Path, plane: str) -> None:
    """On SIGUSR1 each daemon writes a dump and goes on; every decision of every rank is reproduced, and transfers go on."""
    with Deployment(tmp_path, plane, ["--recorder-entries", "400"]).start() as deployment:
        for number in range(6):
            carry(deployment, f"room-{number}", 5 * CHUNK_TOKENS + 7, number)
        deployment.decode.signal(signal.SIGUSR1)
        deployment.prefill.signal(signal.SIGUSR1)
        for service_id, machines in (("d", DECODE_TP), ("p", PREFILL_TP)):
            dump = wait_for_dump(deployment, service_id, "signal")
            assert dump.stat().st_mode & 0o777 == 0o600
            report = replay(dump)
            assert report["divergences"] == 0
            assert report["replayed"] == report["entries"]
            listed = report["machines"]
            assert isinstance(listed, list)
            assert len(listed) == machines
            assert all(machine["entries"] > 20 for machine in listed)
        carry(deployment, "room-after", CHUNK_TOKENS)
        assert deployment.prefill.end() == 0
        assert deployment.decode.end() == 0


def test_a_stall_is_dumped_and_explained(tmp_path: Path) -> None:
    """A chunk that no decode engine expects stands still: the prefill dumps by itself, and its replay names the room."""
    with Deployment(tmp_path, "shm", ["--recorder-stall-s", "0.2"]).start() as deployment:
        source, _ = runs(1, CHUNK_TOKENS)
        deployment.submit("nobody-expects-it", CHUNK_TOKENS, PageRun(source.pages, source.first_token))
        dump = wait_for_dump(deployment, "p", "stall")
        assert replay(dump)["succeeded"]
        command = [sys.executable, "-m", "lab", "replay", str(dump), "--lines", "0", "--explain"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=True)
        assert "nobody-expects-it" in done.stdout


class Fragile(DecodeStagingHandler):
    """Breaks at the first drain."""

    def drain(self, now: float) -> tuple[Output, ...]:  # noqa: ARG002 - the machine's verb
        """A fault of ours."""
        raise ZeroDivisionError("a fault of ours")


def test_a_crash_is_dumped_before_anything_is_cleaned_up(tmp_path: Path) -> None:
    """The last entry of the dump is the verb that broke the loop, with what it raised."""
    server = DecodeStagingServer(decode_config(tmp_path), make_handler=Fragile)
    server.start()
    server.engine.attach_pool(0, private_pool()).result(WAIT_S)
    server.engine.register_room("room", 0, "p", 8, RUN).result(WAIT_S)
    server.request_stop()
    assert server.join() == 1
    (dump,) = (tmp_path / "run").glob("decode.flight-*-crash.jsonl")
    (machine,) = read_flight(dump).machines
    assert [entry.verb for entry in machine.entries][-1] == "drain"
    assert machine.entries[-1].outcome == Raised("ZeroDivisionError", "a fault of ours")
    assert machine.entries[0].verb == "register_room"
