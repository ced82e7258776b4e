"""Whose turn it is to get a region when many prefills want one: shares of the ring's time, not of its bytes.

The ring advances in the order of its grants, so whoever holds the oldest one holds up everybody. Rules, and why:

1. What may be granted ahead is bounded (``grant_horizon`` rings), or a burst of one prefill would stand before everybody
   else's next chunk.
2. While others wait, one prefill group holds at most ``group_share`` of that, so a stopped one cannot fill the ring before its
   lease ends.
3. Among those waiting, the group that has used the least *time* of the ring goes first. A grant costs as long as it could be
   written and was not yet given back: a prefill ten times slower gets a tenth of the grants, and the others do not notice.
4. A group that comes new or was idle starts level with the one that has used least: it is owed nothing for the time it was
   away.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Callable

from decode_service.rooms import Chunk, Room

Place = tuple[str, int]


class Turns:
    """Chunks that every writer has asked for and that wait for a region, by prefill group."""

    def __init__(self) -> None:
        self._waiting: dict[str, OrderedDict[Place, tuple[Room, Chunk]]] = {}
        self._used_s: defaultdict[str, float] = defaultdict(float)

    def add(self, room: Room, chunk: Chunk) -> None:
        """Let a chunk wait for its turn; one that waits already keeps its place."""
        waiting = self._waiting.get(room.group)
        if waiting is None:
            waiting = self._waiting[room.group] = OrderedDict()
            self._level(room.group)
        if (room.id, chunk.index) not in waiting:
            waiting[room.id, chunk.index] = (room, chunk)
            room.waiting_turns += 1

    def discard(self, room: Room, chunk: Chunk) -> None:
        """It waits no more; one that does not wait changes nothing."""
        waiting = self._waiting.get(room.group)
        if waiting is None or waiting.pop((room.id, chunk.index), None) is None:
            return
        room.waiting_turns -= 1
        if not waiting:
            del self._waiting[room.group]

    def next(self, eligible: Callable[[str], bool]) -> tuple[Room, Chunk] | None:
        """Remove and return the chunk whose turn it is, among groups that may hold more; ``None`` if no such group waits."""
        groups = [group for group in self._waiting if eligible(group)]
        if not groups:
            return None
        room, chunk = next(iter(self._waiting[min(groups, key=self._used_s.__getitem__)].values()))
        self.discard(room, chunk)
        return room, chunk

    def charge(self, group: str, seconds: float) -> None:
        """A grant of this group could be written for that long until it was given back."""
        self._used_s[group] += seconds

    def others_wait(self, group: str) -> bool:
        """Whether any other group waits for its turn."""
        return len(self._waiting) > (group in self._waiting)

    def forget_idle(self, holds: Callable[[str], bool]) -> None:
        """Keep no account of groups that neither wait nor hold anything."""
        for group in [group for group in self._used_s if group not in self._waiting and not holds(group)]:
            del self._used_s[group]

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def _level(self, group: str) -> None:
        others = [self._used_s[other] for other in self._waiting if other != group]
        if others:
            self._used_s[group] = max(self._used_s[group], min(others))
