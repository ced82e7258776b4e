"""The command line of a daemon: ``serve`` with one flag per setting, ``--config``, ``--print-config`` and ``--check``.

Exit codes: 0 after an orderly stop, 1 if the daemon could not start or ended in an error, 2 for a command line or a
configuration that cannot be used.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol, TypeVar

import click

from runtime.errors import StartError
from runtime.logs import configure_logs, logger
from runtime.setting_kinds import NAMES
from runtime.settings import (
    CONFIG_VARIABLE,
    ConfigurationError,
    Declaration,
    Loaded,
    Problem,
    Settings,
    declarations,
    load,
    render_toml,
)
from runtime.signals import SignalWatch

S = TypeVar("S", bound=Settings)


class Daemon(Protocol):
    """What ``serve`` needs of a daemon. An engine that embeds one uses the same."""

    def start(self) -> None:
        """Take every resource and begin to serve. Raises ``StartError``, with nothing left behind."""

    @property
    def endpoints(self) -> Mapping[str, str]:
        """Where it can be reached, by name, for the log. Known once ``start`` has returned."""

    def request_stop(self) -> None:
        """Begin to drain and then end. Any thread, any number of times, even during ``start``; returns at once."""

    def reload(self) -> None:
        """Read key files and lists again. Any thread, any number of times; returns at once."""

    def dump_flight(self) -> None:
        """Write down the latest of what entered its machines. Any thread, even while its loop hangs."""

    def join(self) -> int:
        """Wait for the end; the exit code."""


def service_command(name: str, settings: type[S], make: Callable[[S], Daemon]) -> click.Group:
    """The command group ``name`` whose ``serve`` runs the daemon that ``make`` builds from the settings."""

    @click.group(name=name, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
    @click.version_option(package_name="pd-staging", prog_name=name)
    def group() -> None:
        pass

    def serve(*, config: Path | None, print_config: bool, check: bool, **flags: object) -> None:
        loaded = _load_or_exit(settings, config, flags)
        if print_config:
            click.echo(render_toml(loaded), nl=False)
            return
        _exit_for(loaded.config.file_problems())
        if check:
            _report_check(loaded)
        else:
            sys.exit(_run(name, loaded, make))

    group.help = f"{name}: one side of the staging pair."
    group.add_command(click.Command("serve", params=_parameters(settings), callback=serve, help=f"Run {name} until SIGTERM."))
    return group


def _parameters(settings: type[Settings]) -> list[click.Parameter]:
    file = click.Path(path_type=Path)
    return [
        click.Option(["--config"], type=file, envvar=CONFIG_VARIABLE, metavar="FILE", help="Settings in TOML; flags win."),
        click.Option(["--print-config"], is_flag=True, help="Print the settings in force as TOML, and exit."),
        click.Option(["--check"], is_flag=True, help="Check the settings, and exit."),
        *(_option(declaration, settings) for declaration in declarations(settings)),
    ]


def _option(declaration: Declaration, settings: type[Settings]) -> click.Option:
    """A flag that hands its text on unread: the settings report all problems at once, click would stop at the first."""
    default = declaration.default_text(settings)
    notes = "; ".join(note for note in (declaration.bounds or declaration.unit, f"default: {default}") if note)
    text = f"{declaration.help}  [{notes}]"
    if not declaration.kind.metavar:
        names = [f"{declaration.flag}/--no-{declaration.flag[2:]}", declaration.name]
        return click.Option(names, default=None, help=text)
    names, metavar = [declaration.flag, *declaration.aliases, declaration.name], declaration.kind.metavar
    if declaration.kind is NAMES:
        return click.Option(names, multiple=True, callback=_joined, metavar=metavar, help=text)
    return click.Option(names, default=None, metavar=metavar, help=text)


def _joined(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> str | None:
    """Several flags of one list are one list."""
    return ",".join(given) if given else None


def _load_or_exit(settings: type[S], config: Path | None, flags: Mapping[str, object]) -> Loaded[S]:
    try:
        return load(settings, file=config, environ=os.environ, flags=flags)
    except ConfigurationError as error:
        _exit_for(error.problems)
        raise


def _exit_for(problems: Iterable[Problem]) -> None:
    """End with status 2 and one line for each problem, if there is one."""
    lines = [f"error: {problem}" for problem in problems]
    if lines:
        click.echo("\n".join(lines), err=True)
        sys.exit(2)


def _report_check(loaded: Loaded[S]) -> None:
    for variable in loaded.ignored_variables:
        click.echo(f"note: {variable} is set but is no setting of this service", err=True)
    click.echo("the configuration is valid")


def _run(name: str, loaded: Loaded[S], make: Callable[[S], Daemon]) -> int:
    configure_logs(str(getattr(loaded.config, "log_level", "info")))
    log = logger(service=name)
    if loaded.ignored_variables:
        log.warning("settings_ignored", variables=list(loaded.ignored_variables))
    try:
        daemon = make(loaded.config)
        stop, reload, dump = daemon.request_stop, daemon.reload, daemon.dump_flight
        actions = {signal.SIGTERM: stop, signal.SIGINT: stop, signal.SIGHUP: reload, signal.SIGUSR1: dump}
        with SignalWatch(actions):
            daemon.start()
            log.info("daemon_ready", pid=os.getpid(), endpoints=dict(daemon.endpoints))
            code = daemon.join()
    except StartError as error:
        click.echo(f"error: {error}", err=True)
        return 1
    log.info("daemon_stopped", exit_code=code)
    return code
