"""``control``: how long a request takes to become a grant, and a free to open a gate, through the loops of two real daemons."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

from lab.benches.effort import Effort
from lab.benches.played import Play, played
from lab.benches.raw import round_trips_s
from lab.benches.rows import Row, median, percentile, ratio_at_most
from lab.benches.timed_daemon import read_notes
from lab.engines import lend_pages
from lab.pair import Programs
from lab.presets import PRESETS
from lab.shape import PairShape
from lab.workload import Request

CHUNK_TOKENS = 16
GRANT_ROUND_TRIPS = 1.5
GATE_ROUND_TRIPS = 1.0
PAUSE_S = 0.005
"""Before each bare round trip: about what lies between two requests of the rooms, which come one after the other."""


def bench_control(effort: Effort) -> Iterator[Row]:
    """Rooms of one chunk for the grants, rooms of two chunks in a ring of one for the gates, one room at a time."""
    number = effort.pick(100, 1000)
    effort.view.phase("control: bare round trips", 3)
    back_to_back = round_trips_s(number)
    bare = round_trips_s(number, PAUSE_S)
    notes = take_notes(number, effort)
    bare += round_trips_s(number, PAUSE_S)
    grants = [
        notes["granted", room, 0] - at for (what, room, _), at in notes.items() if what == "asked" and room.startswith("one-")
    ]
    gates = [
        opened - notes["freed", room, 0]
        for (what, room, chunk), opened in notes.items()
        if what == "opened" and chunk == 1 and opened > notes["freed", room, 0]
    ]
    yield Row("control/bare round trip, back to back", median(back_to_back) * 1e6, "us")
    yield Row("control/bare round trip, one every few ms", median(bare) * 1e6, "us")
    for name, spans, bound in (("request to grant", grants, GRANT_ROUND_TRIPS), ("free to open gate", gates, GATE_ROUND_TRIPS)):
        yield Row(f"control/{name}", median(spans) * 1e6, "us", median(bare) * 1e6, (ratio_at_most(bound),))
        yield Row(f"control/{name}, p99", percentile(spans, 99) * 1e6, "us", percentile(bare, 99) * 1e6)


def take_notes(number: int, effort: Effort) -> dict[tuple[str, str, int], float]:
    """What both daemons noted while ``number`` rooms of each kind were carried."""
    shape = PairShape(PRESETS["tiny"].model, 1, 1, 1, "shm", CHUNK_TOKENS, 0).with_ring_chunks(1)
    requests = [
        Request(2 * index + kind, f"{name}-{index}", (kind + 1) * CHUNK_TOKENS, 0)
        for index in range(number)
        for kind, name in enumerate(("one", "two"))
    ]

    def programs(folder: Path) -> Programs:
        daemon = (sys.executable, "-m", "lab.benches.timed_daemon")
        return Programs(
            decode=(*daemon, "decode", str(folder / "decode"), "serve"),
            prefill=(*daemon, "prefill", str(folder / "prefill"), "serve"),
        )

    notes: dict[tuple[str, str, int], float] = {}

    async def work(play: Play) -> None:
        effort.view.phase("control: rooms", len(requests))
        for done, request in enumerate(requests, start=1):
            await carry_alone(play, request)
            effort.view.advance(done)

    with played(shape, requests[:2], 1, effort.view.say, programs=programs) as play:
        asyncio.run(play.run(work(play)))
        for side in ("decode", "prefill"):
            notes |= read_notes(play.folder / side)
    return notes


async def carry_alone(play: Play, request: Request) -> None:
    """One step after the other, so that neither loop has anything else to do while it is timed."""
    decode, prefill = (await play.pair.decode_life()).client, (await play.pair.prefill_life()).client
    source, destination = lend_pages(play.shape, play.pools, request)
    group = play.shape.group_name(request.group)
    await asyncio.wrap_future(decode.register_room(request.room, 0, group, request.num_tokens, destination))
    for start in range(0, request.num_tokens, CHUNK_TOKENS):
        call = prefill.submit_chunk(request.room, 0, play.pair.decode_endpoints, start, CHUNK_TOKENS, source)
        await asyncio.wrap_future(call)
    outcome = await asyncio.wrap_future(decode.wait_room(request.room, 0))
    await asyncio.wrap_future(prefill.finish_room(request.room, 0))
    await asyncio.wrap_future(prefill.wait_room(request.room, 0))
    if not outcome.done:
        raise RuntimeError(f"{request.room} failed: {outcome.message}")
    play.pools.prefill_pages[request.group].release(source.pages)
    play.pools.decode_pages.release(destination.pages)
