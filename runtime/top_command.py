"""``top``: the rings, sessions and blocked chunks of running daemons in a terminal, looked at again and again."""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from runtime.questions import HttpDaemon, NoAnswer
from runtime.spacetime import size_text

BAR = 60
"""Characters of a ring's drawing."""
MAX_BLOCKED = 8


def top_command(http_port: int) -> click.Command:
    """The command; the usual HTTP port of its kind of daemon is ``http_port``."""

    @click.command("top")
    @click.option(
        "--http", "addresses", multiple=True, help=f"HOST:PORT of a daemon; again for more.  [default: 127.0.0.1:{http_port}]"
    )
    @click.option(
        "--interval", type=click.FloatRange(min=0.1), default=1.0, show_default=True, help="Seconds between two looks."
    )
    @click.option("--once", is_flag=True, help="Look once and print it.")
    def top(addresses: tuple[str, ...], interval: float, *, once: bool) -> None:
        """Show the rings, sessions and blocked chunks of running daemons, live."""
        daemons = [HttpDaemon(address) for address in addresses or (f"127.0.0.1:{http_port}",)]
        console = Console()
        if once:
            seen = [look(daemon) for daemon in daemons]
            console.print(Group(*(view for _, view in seen)))
            sys.exit(0 if all(answered for answered, _ in seen) else 1)
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(Group(*(look(daemon)[1] for daemon in daemons)), refresh=True)
                time.sleep(interval)

    return top


def look(daemon: HttpDaemon) -> tuple[bool, RenderableType]:
    """Whether a daemon answered, and what is to be seen of it."""
    try:
        status = daemon.ask("watch")
    except NoAnswer as error:
        return False, Text(str(error), style="bold red")
    return True, Group(*_daemon(daemon.name, status))


def ring_bar(ring: Mapping[str, Any], grants: Sequence[Mapping[str, Any]]) -> Text:
    """The ring from byte 0 to its end: ``#`` may be written, ``-`` waits for its turn, ``X`` is quarantined, ``.`` is free."""
    cells = ["."] * BAR
    for grant in grants:
        mark = "X" if grant["quarantined"] else "#" if grant["ready"] else "-"
        first = grant["offset"] * BAR // ring["total_bytes"]
        last = max(first + 1, -(-grant["end"] * BAR // ring["total_bytes"]))
        for place in range(first, min(last, BAR)):
            # Where rounds overlap the one that may be written is the one that is there.
            cells[place] = mark if cells[place] in ".-" else cells[place]
    styles = {"X": "bold red", "#": "green", "-": "yellow", ".": "dim"}
    return Text.assemble(*((cell, styles[cell]) for cell in cells))


def _daemon(name: str, status: Mapping[str, Any]) -> Iterator[RenderableType]:
    state = Text("ready", "green") if not status["reasons"] else Text("not ready: " + "; ".join(status["reasons"]), "bold red")
    yield Text.assemble((f"{name} ", "bold"), f"{status['service']} ", state)
    for rank in status["ranks"]:
        if not rank["pool_registered"]:
            yield Text(f"rank {rank['rank']}: no KV pool is registered", "dim")
        elif status["service"] == "decode":
            yield from _decode_rank(rank)
        else:
            yield from prefill_rank(rank)
        if rank["pool_registered"]:
            yield from _blocked(rank["blocked"])


def _decode_rank(rank: Mapping[str, Any]) -> Iterator[RenderableType]:
    ring = rank["ring"]
    oldest = "" if ring["oldest_grant"] is None else f", oldest {ring['oldest_grant']['age_s']:.1f} s"
    facts = f"round {ring['round']}, {size_text(ring['live_bytes'])} of {size_text(ring['total_bytes'])}"
    yield Text.assemble(
        f"rank {rank['rank']} ", ring_bar(ring, rank["grants"]), f" {facts} in {ring['live_grants']} grants{oldest}"
    )
    table = _table("prefill", "plane", "lease left", "watermark sent", "seen", "silent", "failed sends", "unwritten")
    for row in rank["sessions"]:
        lease = Text("fenced", "red") if row["fenced"] else f"{row['lease_left_s']:.1f} s"
        marks = (_pair(row["told_watermark"]), _pair(row["seen"]))
        counts = (f"{row['silent_s']:.1f} s", f"{row['sends_failed']}", f"{row['unwritten_grants']}")
        table.add_row(Text(row["prefill_id"]), row["plane"], lease, *marks, *counts)
    if table.row_count:
        yield table


def prefill_rank(rank: Mapping[str, Any]) -> Iterator[RenderableType]:
    """A prefill rank and its way to each decode rank."""
    writes = rank["writes"]
    yield Text(f"rank {rank['rank']} {rank['prefill_id']}: {rank['room_count']} rooms, {writes['running']} writes run")
    table = _table("decode rank", "state", "plane", "lease left", "watermark", "gated")
    for row in rank["peers"]:
        session = row["session"]
        refusal = "" if row["refusal"] is None else f" (refused: {row['refusal']['code']})"
        state = Text(row["state"] + refusal, "green" if row["state"] == "current" else "red")
        if session is None:
            table.add_row(Text(row["endpoint"]), state)
            continue
        marks = (f"{session['lease_left_s']:.1f} s", _pair(session["watermark"]), f"{session['gated']}")
        table.add_row(Text(row["endpoint"]), state, session["plane"], *marks)
    if table.row_count:
        yield table


def _blocked(blocked: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    for found in blocked[:MAX_BLOCKED]:
        yield Text(f"  blocked: {found['summary']}", "yellow")
        for step in found["next_words"][:1]:
            yield Text(f"    {step}", "dim")


def _table(*heads: str) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for head in heads:
        table.add_column(head)
    return table


def _pair(watermark: Sequence[int]) -> str:
    return f"({watermark[0]}, {watermark[1]})"
