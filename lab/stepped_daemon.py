"""A prefill daemon whose copies stop half-way (``lab/stepping.py``): ``python -m lab.stepped_daemon DIRECTORY serve ...``."""

from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import click

from lab.stepping import SteppedGather
from prefill_service import session_plane
from prefill_service.client import PrefillStagingClient
from prefill_service.config import PrefillServiceConfig
from runtime.service_command import service_command


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def main(directory: Path, command: Sequence[str]) -> None:
    """Run the prefill service with a stepped gather."""
    # Patched rather than injected: no daemon outside the laboratory has any reason to copy in another way.
    with patch.object(session_plane, "gather", SteppedGather(directory)):
        service_command("prefill-service", PrefillServiceConfig, PrefillStagingClient).main(args=list(command))


if __name__ == "__main__":
    main()
