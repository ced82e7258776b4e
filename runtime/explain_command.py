"""``explain``: why a chunk does not move, asked of a running daemon. Exit codes: 0 with an answer, 1 without one."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from runtime.questions import Daemon, HttpDaemon, NoAnswer, SocketDaemon


def explain_command(service: str, http_port: int) -> click.Command:
    """The command for one kind of daemon, whose HTTP port is usually ``http_port``."""

    @click.command("explain")
    @click.option("--room", help="Room to explain; without it, whatever holds up the daemon.")
    @click.option("--chunk", type=click.IntRange(min=0), help="Chunk of the room; without it, every chunk on its way.")
    @click.option("--rank", type=click.IntRange(min=0), help="Rank of the daemon; without it, all of them.")
    @click.option("--http", default=f"127.0.0.1:{http_port}", show_default=True, help="HOST:PORT of the daemon's HTTP port.")
    @click.option("--engine-socket", type=click.Path(path_type=Path), help="Ask at the engine's unix socket instead.")
    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
    def explain(
        room: str | None,
        chunk: int | None,
        rank: int | None,
        http: str,
        engine_socket: Path | None,
        *,
        as_json: bool,
    ) -> None:
        if chunk is not None and room is None:
            raise click.UsageError("--chunk needs the --room that it belongs to")
        try:
            daemon: Daemon = HttpDaemon(http) if engine_socket is None else SocketDaemon(engine_socket)
            with closing(daemon):
                found = daemon.ask("explain", room=room, chunk=chunk, rank=rank)
        except NoAnswer as error:
            click.echo(f"error: {error}", err=True)
            sys.exit(1)
        click.echo(json.dumps(found, indent=2) if as_json else "\n".join(_words(found)))

    explain.help = f"Say in plain words why a chunk does not move, as a running {service} daemon sees it."
    return explain


def _words(found: Mapping[str, Any]) -> Iterator[str]:
    if not found["explanations"]:
        yield "Nothing is on its way: nothing is waited for."
    for number, explanation in enumerate(found["explanations"]):
        if number:
            yield ""
        yield _sentence(_place(explanation) + str(explanation["summary"]))
        for line in explanation["lines"]:
            yield f"  {_sentence(line)}"
        if explanation["next_words"]:
            yield "  What will happen:"
        for line in explanation["next_words"]:
            yield f"    {_sentence(line)}"


def _place(explanation: Mapping[str, Any]) -> str:
    if explanation["side"] == "decode":
        return f"Decode rank {explanation['rank']}: "
    return f"Prefill {explanation['prefill_id']}: "


def _sentence(text: str) -> str:
    return text if text.endswith((".", ":")) else f"{text}."
