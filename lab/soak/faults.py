"""One fault after the other, drawn at random: deaths, stops long and short, bad weather, cut and silent paths."""

import asyncio
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random

from lab.chaos.cluster import Cluster, send, suspend
from lab.chaos.links import STORM
from lab.proxy import FAIR, MessageProxy

STOPS_S = (0.3, 2.0, 5.0)
"""Within the lease; beyond it; beyond the quarantine as well, so that regions are replaced."""
WEATHER_S = 2.0
SILENCES_S = (0.3, 2.0)
PAUSE_S = 2.0
"""Longest peace between two faults."""


class Faults:
    """Inflicts faults one at a time; ``counts`` says how often each was inflicted."""

    def __init__(self, cluster: Cluster, proxy: MessageProxy, random: Random) -> None:
        self.counts: Counter[str] = Counter()
        self._cluster = cluster
        self._proxy = proxy
        self._random = random
        self._lasting: dict[str, Callable[[], Awaitable[None]]] = {
            "decode_stopped": self._stop_decode,
            "prefill_stopped": self._stop_prefill,
            "storm": self._storm,
            "connections_cut": proxy.cut,
            "path_silent": self._silence,
        }
        self._deadly: dict[str, Callable[[], Awaitable[None]]] = {
            "decode_killed": self._kill_decode,
            "prefill_killed": self._kill_prefill,
        }

    async def inflict(self, seconds: float, *, deaths: bool) -> None:
        """Go on for that long; what has begun is ended before this returns. Without ``deaths`` every process lives on."""
        clock = asyncio.get_running_loop().time
        end = clock() + seconds
        choices = self._lasting | (self._deadly if deaths else {})
        while clock() < end:
            await asyncio.sleep(min(self._random.random() * PAUSE_S, max(0.0, end - clock())))
            name = self._random.choice(sorted(choices))
            await choices[name]()
            self.counts[name] += 1

    async def _kill_decode(self) -> None:
        await self._cluster.kill(self._cluster.decode)
        await self._cluster.start(self._cluster.decode)

    async def _kill_prefill(self) -> None:
        victim = self._random.choice(self._cluster.prefills)
        await self._cluster.kill(victim)
        await self._cluster.start(victim)

    async def _stop_decode(self) -> None:
        await suspend(self._cluster.decode)
        await asyncio.sleep(self._random.choice(STOPS_S))
        send(self._cluster.decode, signal.SIGCONT)

    async def _stop_prefill(self) -> None:
        victim = self._random.choice(self._cluster.prefills)
        await suspend(victim)
        await asyncio.sleep(self._random.choice(STOPS_S))
        send(victim, signal.SIGCONT)

    async def _storm(self) -> None:
        self._proxy.weather = STORM
        await asyncio.sleep(WEATHER_S)
        self._proxy.weather = FAIR

    async def _silence(self) -> None:
        self._proxy.hold()
        await asyncio.sleep(self._random.choice(SILENCES_S))
        self._proxy.release()
