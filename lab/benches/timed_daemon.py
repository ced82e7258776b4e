"""A daemon that notes when its machine asked, was answered, freed and wrote.

``python -m lab.benches.timed_daemon decode FILE serve ...``: after the side and the file comes the product's command line.

Notes are kept in memory and written to ``FILE`` at the end, one JSON list a line: what, room, chunk, and the time on the clock
that all processes of a host share. Everything else is the product.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path

import click

from decode_service.config import DecodeServiceConfig
from decode_service.handler import DecodeStagingHandler
from decode_service.outputs import Output as DecodeOutput
from decode_service.server import DecodeStagingServer
from prefill_service.client import PrefillStagingClient
from prefill_service.config import PrefillServiceConfig
from prefill_service.handler import PrefillStagingHandler
from prefill_service.outputs import Output as PrefillOutput
from prefill_service.outputs import Send, WriteChunk
from protocol.layout import WriterKey
from protocol.messages import StagingReq, StagingRsp, ToPrefill
from runtime.service_command import service_command

Note = tuple[str, str, int, float]
NOTES: list[Note] = []


class TimedDecodeHandler(DecodeStagingHandler):
    """Notes when a chunk's scatter has ended, which is when its grant is freed."""

    def scatter_finished(self, alloc_id: int, bad_writers: tuple[WriterKey, ...], now: float) -> tuple[DecodeOutput, ...]:
        """Note the beginning, then as always."""
        grant = self.state.running_grant(alloc_id)
        if grant is not None:
            NOTES.append(("freed", grant.room.id, grant.chunk, time.monotonic()))
        return super().scatter_finished(alloc_id, bad_writers, now)


class TimedPrefillHandler(PrefillStagingHandler):
    """Notes each request that leaves, each answer once it was understood, and each write that may begin."""

    def receive(self, peer: str, message: ToPrefill, now: float) -> tuple[PrefillOutput, ...]:
        """As always, then note an answer."""
        outputs = super().receive(peer, message, now)
        if isinstance(message, StagingRsp) and message.grant is not None:
            NOTES.append(("granted", message.room, message.chunk, time.monotonic()))
        return outputs

    def _collect(self) -> tuple[PrefillOutput, ...]:
        outputs = super()._collect()
        for output in outputs:
            if isinstance(output, Send) and isinstance(output.message, StagingReq):
                NOTES.append(("asked", output.message.room, output.message.chunk, time.monotonic()))
            elif isinstance(output, WriteChunk):
                NOTES.append(("opened", output.room, output.chunk, time.monotonic()))
        return outputs


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("side", type=click.Choice(["decode", "prefill"]))
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def main(side: str, file: Path, command: Sequence[str]) -> None:
    """Run one side and write its notes when it ends."""
    decode = service_command(
        "decode-service",
        DecodeServiceConfig,
        lambda config: DecodeStagingServer(config, make_handler=TimedDecodeHandler),
    )
    prefill = service_command(
        "prefill-service",
        PrefillServiceConfig,
        lambda config: PrefillStagingClient(config, make_handler=TimedPrefillHandler),
    )
    try:
        (decode if side == "decode" else prefill).main(args=list(command))
    finally:
        file.write_text("".join(f"{json.dumps(note)}\n" for note in NOTES), encoding="utf-8")


def read_notes(file: Path) -> dict[tuple[str, str, int], float]:
    """The first note of each kind about each chunk."""
    found: dict[tuple[str, str, int], float] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        what, room, chunk, at = json.loads(line)
        found.setdefault((what, room, chunk), at)
    return found


if __name__ == "__main__":
    main()
