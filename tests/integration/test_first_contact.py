"""The example that an operator runs before any engine is there, between two real daemons."""

import subprocess
import sys
from pathlib import Path

from lab.ports import free_port_base
from runtime.runtime_directory import engine_socket
from tests.integration.daemons import WAIT_S, Daemon

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "first_contact.py"


def play(side: str, runtime: Path, *options: str) -> "subprocess.Popen[str]":
    """One half of the example beside its daemon."""
    command = [
        sys.executable,
        str(EXAMPLE),
        side,
        str(engine_socket(runtime, side)),
        "--room",
        f"{runtime.parent.name}",
        *options,
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_both_halves_say_that_every_byte_arrived(tmp_path: Path) -> None:
    """Each half ends with 0 and says so, and leaves no pool behind."""
    runtime, port = tmp_path / "run", free_port_base(2)
    common = ["--planes", "zmq", "--http-port", "0", "--runtime-dir", str(runtime)]
    ports = ["--base-port", f"{port}", "--data-base-port", f"{port + 1}", "--ring-bytes", "1MiB"]
    daemons = Daemon("decode_service", tmp_path, [*common, *ports]), Daemon("prefill_service", tmp_path, common)
    halves = []
    try:
        for daemon in daemons:
            daemon.start()
        halves.append(play("decode", runtime, "--group", "prefill"))
        halves.append(play("prefill", runtime, "--endpoint", f"tcp://127.0.0.1:{port}"))
        said = [half.communicate(timeout=WAIT_S)[0] for half in halves]
        assert said == ["decode: every byte arrived\n", "prefill: every byte arrived\n"]
        assert [half.returncode for half in halves] == [0, 0]
        assert not list(Path("/dev/shm").glob(f"first-contact-*-{tmp_path.name}"))
    finally:
        for half in halves:
            half.kill()
            half.communicate()
        for daemon in daemons:
            daemon.kill()
