"""A daemon that lacks or breaks something: ``python -m lab.altered_daemon decode --without restart serve ...``.

After the side and what is altered come the product's own command line and settings. What each alteration means is said in
``lab/defects.py``.
"""

from collections.abc import Sequence
from random import Random

import click

from decode_service.allocator import StagingAllocator
from decode_service.config import DecodeServiceConfig
from decode_service.handler import DecodeStagingHandler
from decode_service.handler_settings import DecodeHandlerSettings
from decode_service.scatter import scatter
from decode_service.scatter_job import Scatter
from decode_service.server import DecodeStagingServer
from lab.defects import AlteredDecodeHandler, CorruptingScatter, PrefillWithoutRepair
from prefill_service.client import PrefillStagingClient
from prefill_service.config import PrefillServiceConfig
from runtime.service_command import service_command

_PASS_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@click.group()
def main() -> None:
    """Run one side of the staging pair with something taken away or broken."""


@main.command(context_settings=_PASS_ON)
@click.option("--without", multiple=True, type=click.Choice(["restart", "snapshot", "repair"]), help="What is taken away.")
@click.option("--corrupt", is_flag=True, help="Rank 0 flips one byte past the checksum, once.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def decode(*, without: Sequence[str], corrupt: bool, command: Sequence[str]) -> None:
    """Run the decode service."""

    def handler(settings: DecodeHandlerSettings, allocator: StagingAllocator, random: Random) -> DecodeStagingHandler:
        has = {name: name not in without for name in ("restart", "snapshot", "repair")}
        return AlteredDecodeHandler(settings, allocator, random, **has)

    def scatter_of(rank: int) -> Scatter:
        return CorruptingScatter() if corrupt and rank == 0 else scatter

    def server(config: DecodeServiceConfig) -> DecodeStagingServer:
        return DecodeStagingServer(config, make_handler=handler, make_scatter=scatter_of)

    service_command("decode-service", DecodeServiceConfig, server).main(args=list(command))


@main.command(context_settings=_PASS_ON)
@click.option("--without", multiple=True, type=click.Choice(["repair"]), help="What is taken away.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def prefill(*, without: Sequence[str], command: Sequence[str]) -> None:
    """Run the prefill service."""

    def client(config: PrefillServiceConfig) -> PrefillStagingClient:
        return PrefillStagingClient(config, make_handler=PrefillWithoutRepair) if without else PrefillStagingClient(config)

    service_command("prefill-service", PrefillServiceConfig, client).main(args=list(command))


if __name__ == "__main__":
    main()
