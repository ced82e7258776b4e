"""Log lines that a misbehaving peer cannot multiply: one per key and interval, with the number left out in between."""

from collections import OrderedDict
from collections.abc import Hashable

MAX_KEYS = 1024


class RateLimit:
    """Which keys may speak now. Remembers the last ``MAX_KEYS`` of them, so memory does not follow the number of peers."""

    def __init__(self, interval_s: float = 1.0) -> None:
        self._interval_s = interval_s
        self._last: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()

    def admit(self, key: Hashable, now: float) -> int | None:
        """The number of calls suppressed since the last admitted one, or ``None`` if this one is suppressed too."""
        at, suppressed = self._last.get(key, (float("-inf"), 0))
        if now - at < self._interval_s:
            self._last[key] = (at, suppressed + 1)
            return None
        self._last[key] = (now, 0)
        self._last.move_to_end(key)
        if len(self._last) > MAX_KEYS:
            self._last.popitem(last=False)
        return suppressed
