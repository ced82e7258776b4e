"""``keygen``: the command of both daemons that makes a CURVE key pair and says what each half is for."""

from collections.abc import Callable
from pathlib import Path

import click

from runtime.allow_list import allow_list_entry
from runtime.key_files import PUBLIC_SUFFIX, SECRET_SUFFIX, KeyFileError, KeyPair, write_key_pair
from runtime.setting_kinds import NAME

NextSteps = Callable[[str, KeyPair, Path], str]
"""What to do with the pair of that name in that directory, in the words of one daemon."""


def decode_steps(name: str, pair: KeyPair, folder: Path) -> str:  # noqa: ARG001 - the secret file says it all
    """A decode daemon keeps the secret key; prefill daemons must know the public one."""
    return (
        f"On the decode daemon:    --server-key {folder / f'{name}{SECRET_SUFFIX}'} --allow-list FILE\n"
        f"On each prefill daemon:  --server-keys {name}{PUBLIC_SUFFIX} (a copy of {folder / f'{name}{PUBLIC_SUFFIX}'})\n"
    )


def prefill_steps(name: str, pair: KeyPair, folder: Path) -> str:
    """A prefill daemon keeps the secret key; the allow-lists of decode daemons must hold the public one."""
    return (
        f"On the prefill daemon:   --client-key {folder / f'{name}{SECRET_SUFFIX}'} --server-keys FILE\n"
        f"On each decode daemon, in the file of --allow-list:\n\n{allow_list_entry(name, pair.public)}"
    )


def keygen_command(name: str, steps: NextSteps) -> click.Command:
    """The command; ``name`` is the default name of a pair."""

    def keygen(*, name: str, out: Path) -> None:
        try:
            NAME.parse(name)
        except ValueError:
            raise click.UsageError(f"--name: expected {NAME.expected}") from None
        try:
            pair = write_key_pair(out, name)
        except KeyFileError as error:
            raise click.ClickException(str(error)) from error
        click.echo(f"{out / f'{name}{PUBLIC_SUFFIX}'}: public key {pair.public}")
        click.echo(f"{out / f'{name}{SECRET_SUFFIX}'}: secret key, mode 0600\n")
        click.echo(steps(name, pair, out.resolve()), nl=False)

    folder = click.Path(file_okay=False, path_type=Path)
    options: list[click.Parameter] = [
        click.Option(["--name"], default=name, show_default=True, help="Name of the files, and of the peer in logs."),
        click.Option(["--out"], type=folder, default=Path(), show_default=True, metavar="DIR", help="Where to put the files."),
    ]
    return click.Command("keygen", params=options, callback=keygen, help="Make a key pair; files are never overwritten.")
