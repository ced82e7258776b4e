"""What a run's model said: its tokens beside those of the single process, and how long they took."""

from dataclasses import dataclass, field

from lab.model.latency import RequestTimes, latency_json
from lab.model.overlap import Interval

MAX_LISTED = 20
"""How many unequal answers are listed."""


@dataclass(frozen=True, slots=True)
class Unequal:
    """An answer that is not the single process's."""

    room: str
    expected: tuple[int, ...]
    found: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.room}: expected {list(self.expected)}, got {list(self.found)}"


@dataclass(slots=True)
class SpeechReport:
    """Answers of one run."""

    compared: int = 0
    equal: int = 0
    tokens: int = 0
    """Tokens of all compared answers."""
    unequal: list[Unequal] = field(default_factory=list)
    times: list[RequestTimes] = field(default_factory=list)
    computed: dict[str, list[Interval]] = field(default_factory=dict)
    """When each chunk of each prompt was computed."""

    def judge(self, room: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
        """Compare one answer, token by token."""
        self.compared += 1
        self.tokens += len(expected)
        if found == expected:
            self.equal += 1
        else:
            self.unequal.append(Unequal(room, expected, found))

    def all_equal(self, requests: int) -> bool:
        """Whether so many requests were compared and every one was equal."""
        return self.compared == self.equal == requests

    def tokens_json(self) -> dict[str, object]:
        """The comparison."""
        return {
            "requests_compared": self.compared,
            "requests_equal": self.equal,
            "tokens_compared": self.tokens,
            "unequal": [str(answer) for answer in self.unequal[:MAX_LISTED]],
        }

    def to_json(self, requests: int) -> dict[str, object]:
        """Comparison and latencies over that many requests."""
        return {"tokens": self.tokens_json(), **latency_json(self.times, requests)}
