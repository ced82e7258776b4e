"""Order of watermarks and the one readiness rule: the only ring arithmetic outside the allocator.

    ring of one decode rank, ``total_size`` bytes
    0              tail                      head      total_size
    |--- free -----|== oldest .. live grants ==|--- free ---|

A watermark ``(round, tail)`` is the place of the oldest live grant; everything before it is free. It is absolute state, so a
repeated, reordered or late one can only be smaller or equal, and a smaller or equal one changes nothing.
"""

from typing import NamedTuple


class Watermark(NamedTuple):
    """Place of the oldest live grant. Compares lexicographically: round first, then tail (bytes)."""

    round: int
    tail: int


START = Watermark(0, 0)
"""What a session believes before it has heard anything: only round 0 may be written."""


def is_watermark_ready(watermark: tuple[int, int], round: int, end: int) -> bool:
    """Say whether a grant that ends at byte ``end`` of ``round`` holds nothing alive.

    Round 0 was never used before. A grant of round ``r`` overlaps only grants of round ``r - 1`` and those are all freed when
    the watermark has left that round, or freed up to ``tail`` while it is still in it.
    """
    previous = round - 1
    return round == 0 or previous < watermark[0] or (previous == watermark[0] and end <= watermark[1])
