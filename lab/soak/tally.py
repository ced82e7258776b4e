"""What became of every room of a soak: nothing is begun that does not end, and every byte of what is done was compared."""

from collections import Counter
from dataclasses import dataclass, field

from lab.chaos.carrying import Ending

LOST_CODES = frozenset({"disconnected", "closed"})
"""Endings that nobody told: the daemon that knew the room was gone."""


@dataclass(slots=True)
class Tally:
    """Counts since the start. A *part* is one room on one rank; its side is ``decode`` or ``prefill GROUP``."""

    rooms: int = 0
    rooms_done: int = 0
    """Done on every rank."""
    rooms_failed: int = 0
    rooms_hung: list[str] = field(default_factory=list)
    """Not over within the bound: must stay empty."""
    aborted: int = 0
    """Given up by one of the engines on purpose."""
    begun: Counter[str] = field(default_factory=Counter)
    """Parts by side."""
    done: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    """Parts that ended with the death of their daemon."""
    codes: Counter[str] = field(default_factory=Counter)
    """Why parts failed."""
    bytes_expected: int = 0
    bytes_checked: int = 0
    bytes_wrong: int = 0

    def count_part(self, side: str, ending: Ending) -> None:
        """One part has ended."""
        if ending.done:
            self.done[side] += 1
        elif ending.code in LOST_CODES:
            self.lost[side] += 1
        else:
            self.failed[side] += 1
            self.codes[ending.code] += 1

    def problems(self) -> list[str]:
        """What does not add up, once no room is under way."""
        found = [f"{room} was not over in time" for room in self.rooms_hung]
        if self.rooms != self.rooms_done + self.rooms_failed + len(self.rooms_hung):
            found.append(f"{self.rooms} rooms begun, {self.rooms_done} done and {self.rooms_failed} failed")
        for side, begun in sorted(self.begun.items()):
            ended = self.done[side] + self.failed[side] + self.lost[side]
            if begun != ended:
                found.append(f"{side}: {begun} parts begun, {ended} ended")
        if self.bytes_checked != self.bytes_expected:
            found.append(f"{self.bytes_checked} bytes compared, {self.bytes_expected} expected")
        if self.bytes_wrong:
            found.append(f"{self.bytes_wrong} bytes are wrong")
        return found

    def to_json(self) -> dict[str, object]:
        """The counts for the report."""
        return {
            "rooms": {
                "begun": self.rooms,
                "done": self.rooms_done,
                "failed": self.rooms_failed,
                "hung": len(self.rooms_hung),
                "aborted": self.aborted,
            },
            "parts": {
                side: {"begun": begun, "done": self.done[side], "failed": self.failed[side], "lost": self.lost[side]}
                for side, begun in sorted(self.begun.items())
            },
            "failures": dict(self.codes.most_common()),
            "bytes": {"expected": self.bytes_expected, "checked": self.bytes_checked, "wrong": self.bytes_wrong},
        }
