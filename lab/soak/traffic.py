"""Rooms without end, from every prefill, as engines would play them: what fails on one side is given up on the other."""

import asyncio
import contextlib
import time
from random import Random

from lab.chaos.carrying import Carrying, Ending, expect_room
from lab.chaos.cluster import Cluster
from lab.chaos.expectations import within
from lab.soak.tally import Tally
from runtime.engine_protocol import EngineError

WORKERS = 3
"""Rooms under way per prefill."""
MAX_CHUNKS = 6
ABORTS = 0.06
"""Share of the rooms that an engine gives up on purpose."""
HUNG_S = 45.0
"""A room that is not over after this long counts as hung: longer than its absolute cap."""


class Traffic:
    """Plays rooms from ``start`` on, except while paused."""

    def __init__(self, cluster: Cluster, random: Random) -> None:
        self.tally = Tally()
        self._cluster = cluster
        self._random = random
        self._going = asyncio.Event()
        self._idle = asyncio.Event()
        self._under_way = 0
        self._workers: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin."""
        self._going.set()
        groups = range(self._cluster.shape.prefill_groups)
        self._workers = [asyncio.create_task(self._work(group)) for group in groups for _ in range(WORKERS)]

    async def pause(self) -> None:
        """Begin nothing new, and wait until what is under way has ended. Raises what a worker raised."""
        self._going.clear()
        if self._under_way:
            await within(2 * HUNG_S, "all rooms end", self._idle.wait())
        self.check()

    def resume(self) -> None:
        """Go on."""
        self._going.set()

    async def stop(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)

    def check(self) -> None:
        """Raise what ended a worker, if anything did."""
        for worker in self._workers:
            if worker.done():
                worker.result()

    async def _work(self, group: int) -> None:
        while True:
            await self._going.wait()
            self._under_way += 1
            self._idle.clear()
            try:
                await self._carry(group)
            finally:
                self._under_way -= 1
                if not self._under_way:
                    self._idle.set()

    async def _carry(self, group: int) -> None:
        room = await expect_room(self._cluster, group, self._random.randint(1, MAX_CHUNKS))
        self.tally.rooms += 1
        self.tally.begun["decode"] += len(room.decode_endings)
        try:
            await room.submit()
        except EngineError:
            await _give_up(room)
        self.tally.begun[f"prefill {group}"] += len(room.prefill_endings)
        if self._random.random() < ABORTS:
            await asyncio.sleep(self._random.random() * 0.05)
            self.tally.aborted += 1
            await _give_up(room, only=self._random.choice(("decode", "prefill")))
        if await self._ends(room):
            self._count(room)
        else:
            self.tally.rooms_hung.append(room.room)

    async def _ends(self, room: Carrying) -> bool:
        """Wait for every part; at the first failure give the others up. False if some part does not end."""
        pending: set[asyncio.Task[Ending]] = {*room.decode_endings, *room.prefill_endings}
        until, given_up = time.monotonic() + HUNG_S, False
        while pending and (left_s := until - time.monotonic()) > 0:
            done, pending = await asyncio.wait(pending, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if not given_up and not all(task.result().done for task in done):
                given_up = True
                await _give_up(room)
        return not pending

    def _count(self, room: Carrying) -> None:
        tally = self.tally
        decode, prefill = ([task.result() for task in tasks] for tasks in (room.decode_endings, room.prefill_endings))
        for side, endings in (("decode", decode), (f"prefill {room.group}", prefill)):
            for ending in endings:
                tally.count_part(side, ending)
        if decode and all(ending.done for ending in decode):
            found = room.compared()
            tally.bytes_expected += self._cluster.shape.request_bytes(room.num_tokens)
            tally.bytes_checked += found.bytes_checked
            tally.bytes_wrong += found.mismatched_bytes
        if all(ending.done for ending in (*decode, *prefill)):
            tally.rooms_done += 1
        else:
            tally.rooms_failed += 1
        room.release()


async def _give_up(room: Carrying, only: str | None = None) -> None:
    """Tell the ranks of both sides, or of one, that the room is not wanted; those that do not know it refuse."""
    cluster = room.cluster
    with contextlib.suppress(EngineError):
        if only != "prefill":
            for rank in range(cluster.shape.decode_ranks):
                room.decode.abort_room(room.room, rank, "given up by the engine")
    with contextlib.suppress(EngineError):
        if only != "decode":
            for rank in range(cluster.shape.group_size):
                room.prefill.abort_room(room.room, rank, "given up by the engine")
