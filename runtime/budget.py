"""What one peer may cost: a token bucket per peer, in a table that no number of peers can make grow."""

from collections import OrderedDict
from collections.abc import Hashable

MAX_PEERS = 8192


class PeerBudget:
    """At most ``burst`` tokens per peer, refilled at ``rate`` per second. A peer not seen for long has a full bucket."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def has_tokens(self, peer: Hashable, now: float) -> bool:
        """Whether ``spend`` would succeed."""
        return self._level(peer, now) >= 1.0

    def spend(self, peer: Hashable, now: float) -> bool:
        """Take one token; false if there is none."""
        level = self._level(peer, now)
        left = level - 1.0 if level >= 1.0 else level
        self._tokens[peer] = (left, now)
        self._tokens.move_to_end(peer)
        if len(self._tokens) > MAX_PEERS:
            self._tokens.popitem(last=False)
        return level >= 1.0

    def _level(self, peer: Hashable, now: float) -> float:
        if peer not in self._tokens:
            return self._burst
        level, at = self._tokens[peer]
        return min(self._burst, level + (now - at) * self._rate)
