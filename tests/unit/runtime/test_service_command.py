"""The command line of a daemon, driven as a person drives it, with a real daemon process where signals matter."""

import json
import os
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import structlog
from click.testing import CliRunner, Result

from runtime.errors import StartError
from runtime.logs import logger
from runtime.service_command import service_command
from runtime.setting_kinds import INTEGER, NAMES, SWITCH, TEXT
from runtime.settings import Problem, Settings, setting

ROOT = Path(__file__).resolve().parents[3]
IN_FORCE = {"port": 7000, "loud": False, "bells": ["one"], "log_level": "info"}


@dataclass(frozen=True)
class ClockConfig(Settings):
    """Settings of a small daemon."""

    port: int = setting(7000, kind=INTEGER, minimum=1, maximum=65_535, help="Where it listens.")
    loud: bool = setting(False, kind=SWITCH, help="Whether it strikes.")
    bells: tuple[str, ...] = setting(("one",), kind=NAMES, aliases=("--bell",), help="Which of them strike.")
    log_level: str = setting("info", kind=TEXT, choices=("info", "error"), help="Least important lines.")

    def file_problems(self) -> Iterator[Problem]:
        """One port has no tower."""
        if self.port == 7006:
            yield Problem(("port",), "no such tower", "a tower")


class Clock:
    """A daemon that serves until it is asked to stop."""

    def __init__(self, config: ClockConfig) -> None:
        self._config = config
        self._stop = threading.Event()

    @property
    def endpoints(self) -> Mapping[str, str]:
        """Where it would listen."""
        return {"clock": f"tcp://127.0.0.1:{self._config.port}"}

    def start(self) -> None:
        """Refuse the port that somebody else has."""
        if self._config.port == 7001:
            raise StartError("listen on tcp://127.0.0.1:7001", "the address is in use", "stop the other daemon")

    def request_stop(self) -> None:
        """Let ``join`` return."""
        self._stop.set()

    def reload(self) -> None:
        """Say that it was asked to."""
        logger().info("settings_reloaded")

    def dump_flight(self) -> None:
        """Say that it was asked to."""
        logger().info("flight_dumped")

    def join(self) -> int:
        """Wait for ``request_stop``."""
        self._stop.wait()
        return 0


class StoppedClock(Clock):
    """A daemon that ends by itself, in an error."""

    def join(self) -> int:
        """End at once."""
        return 1


@pytest.fixture(autouse=True)
def restored_logs() -> Iterator[None]:
    """Leave the logging of the test process as it was."""
    yield
    structlog.reset_defaults()


def run(*arguments: str, make: type[Clock] = Clock, environ: Mapping[str, str] | None = None) -> Result:
    """Run the command with these arguments."""
    return CliRunner().invoke(service_command("clock", ClockConfig, make), arguments, env=environ)


def test_every_setting_is_a_flag_with_its_meaning() -> None:
    """``serve --help`` names each setting, its bounds and its default."""
    text = " ".join(run("serve", "--help").output.split())
    assert "--port INTEGER Where it listens. [1 to 65535; default: 7000]" in text
    assert "--loud / --no-loud Whether it strikes. [default: False]" in text


def test_print_config_shows_what_is_in_force() -> None:
    """The printed settings are TOML with the values of flags and environment."""
    result = run("serve", "--print-config", "--loud", environ={"PD_STAGING_PORT": "7002"})
    assert (result.exit_code, tomllib.loads(result.stdout)) == (0, {**IN_FORCE, "port": 7002, "loud": True})


def test_config_file_may_be_named_by_a_variable(tmp_path: Path) -> None:
    """``PD_STAGING_CONFIG`` names the file where there is no ``--config``."""
    file = tmp_path / "clock.toml"
    file.write_text("port = 7003\n", encoding="utf-8")
    result = run("serve", "--print-config", environ={"PD_STAGING_CONFIG": str(file)})
    assert tomllib.loads(result.stdout)["port"] == 7003


def test_check_says_yes_and_warns() -> None:
    """``--check`` starts nothing, exits with 0 and mentions variables that nobody reads."""
    result = run("serve", "--check", environ={"PD_STAGING_PROT": "1"})
    assert (result.exit_code, result.stdout) == (0, "the configuration is valid\n")
    assert "PD_STAGING_PROT" in result.stderr


@pytest.mark.parametrize(
    ("flags", "bells"),
    [
        ([], ["one"]),
        (["--bells", "two,three"], ["two", "three"]),
        (["--bell", "two", "--bell", "three"], ["two", "three"]),
        (["--bells", "two", "--bell", "three"], ["two", "three"]),
    ],
)
def test_a_list_may_be_given_name_by_name(flags: list[str], bells: list[str]) -> None:
    """A flag of names, and any other flag that means the same, may be repeated."""
    assert tomllib.loads(run("serve", *flags, "--print-config").stdout)["bells"] == bells


def test_problems_exit_with_two_and_are_all_told() -> None:
    """Every problem is one line on stderr, and the exit code is 2, with or without ``--check``."""
    for extra in ((), ("--check",), ("--print-config",)):
        result = run("serve", "--port", "0", "--log-level", "chatty", *extra)
        assert result.exit_code == 2
        assert [line.split(":")[1].strip() for line in result.stderr.splitlines()] == ["port", "log_level"]


def test_start_error_is_one_line_and_exit_code_one() -> None:
    """An address in use is told in one line that says what, why and what to do."""
    result = run("serve", "--port", "7001", "--log-level", "error")
    assert result.exit_code == 1
    assert result.stderr == "error: listen on tcp://127.0.0.1:7001: the address is in use; stop the other daemon\n"


def test_exit_code_of_the_daemon_is_passed_on() -> None:
    """A daemon that ends in an error makes the command fail."""
    assert run("serve", "--log-level", "error", make=StoppedClock).exit_code == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_a_real_process_in_order(number: signal.Signals) -> None:
    """A daemon process says when it is ready and where, and SIGTERM or SIGINT ends it with exit code 0."""
    command = [sys.executable, __file__, "serve", "--port", "7004"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environ, text=True) as process:
        assert process.stderr is not None
        ready = json.loads(process.stderr.readline())
        process.send_signal(number)
        stopped = json.loads(process.stderr.readline())
        assert process.wait() == 0
    assert (ready["event"], ready["endpoints"]) == ("daemon_ready", {"clock": "tcp://127.0.0.1:7004"})
    assert (stopped["event"], stopped["exit_code"]) == ("daemon_stopped", 0)


def test_hangup_reloads_and_nothing_else() -> None:
    """SIGHUP makes a daemon process read its files again; it goes on and still ends in order."""
    command = [sys.executable, __file__, "serve", "--port", "7005"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environ, text=True) as process:
        assert process.stderr is not None
        process.stderr.readline()
        process.send_signal(signal.SIGHUP)
        assert json.loads(process.stderr.readline())["event"] == "settings_reloaded"
        process.send_signal(signal.SIGTERM)
        assert json.loads(process.stderr.readline())["event"] == "daemon_stopped"
        assert process.wait() == 0


def test_a_file_that_a_setting_names_is_looked_at_before_the_start() -> None:
    """Problems of named files end ``serve`` and ``--check`` with status 2; the settings can still be printed."""
    for extra in ((), ("--check",)):
        result = run("serve", "--port", "7006", *extra)
        assert (result.exit_code, result.stderr) == (2, "error: port: found no such tower; expected a tower\n")
    assert run("serve", "--port", "7006", "--print-config").exit_code == 0


if __name__ == "__main__":
    service_command("clock", ClockConfig, Clock)()
