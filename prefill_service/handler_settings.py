"""What one prefill machine is told at its birth: identity, layout, planes, timers and bounds.

Durations are seconds on the machine's own clock. Every retry interval doubles from its first value up to ``retry_limit_s`` and
is shortened at random by up to a fifth.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields

from protocol import PROTOCOL_VERSION
from protocol.identifiers import is_id
from protocol.layout import RankLayout
from protocol.limits import MAX_CHUNK_TOKENS, MAX_UINT63


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillHandlerSettings:
    """Identity, timers and limits of one prefill rank. Raises ``ValueError`` that lists every problem found."""

    prefill_id: str
    """Names this rank across its lives."""
    group: str
    """Names the prefill instance: all ranks of one attention-TP group share it."""
    incarnation: int
    """This life of the rank: higher than that of any former one."""
    layout: RankLayout
    page_size: int
    """Tokens of one page of this rank's KV pool."""
    chunk_tokens: int
    """The grid on which rooms are cut; compared with the decode side's at the handshake."""
    planes: tuple[str, ...]
    """Data planes this rank can use, best first. A single one is thereby forced."""
    host_id: str
    versions: tuple[int, int] = (PROTOCOL_VERSION, PROTOCOL_VERSION)
    """Lowest and highest protocol version spoken."""
    features: tuple[str, ...] = ("xxh3",)
    one_sided_planes: frozenset[str] = frozenset({"nixl", "mooncake"})
    """Planes on which the bytes of a failed write may still land: such a grant is tainted, never written again."""
    data_channel_planes: frozenset[str] = frozenset({"zmq"})
    """Planes whose ``CHUNK_READY`` follows the payload on the data socket."""

    subscribe_retry_s: float = 0.2
    request_retry_s: float = 0.2
    ready_retry_s: float = 0.2
    abort_retry_s: float = 0.2
    retry_limit_s: float = 2.0
    """Upper limit of all doubled retry intervals."""
    probe_s: float = 0.05
    """How long a grant may wait at the gate before D is asked for its watermark; doubles up to D's ``heartbeat_s``."""
    write_retry_s: float = 0.05
    """Wait before a failed write is tried again with the same grant."""
    stop_wait_s: float = 30.0
    """How long a new subscription waits for the writes of a dead session; then it goes out without ``stopped``."""
    room_deadline_s: float = 300.0
    """A room without any progress for this long fails. Progress is a submission, a grant, or a write that began or ended."""
    room_deadline_cap: float = 4.0
    """A room that is not over after this many ``room_deadline_s`` fails whatever its progress."""
    room_tombstone_s: float = 300.0
    """How long the id of a finished or failed room answers ``wait_room`` and cannot be used again."""

    max_peers: int = 1024
    max_rooms: int = 4096
    max_chunks_per_room: int = 65_536
    max_tombstones: int = 65_536
    """Rooms that are live or within their ``room_tombstone_s``."""
    max_writes_in_flight: int = 4
    """Writes that run at the same time to one decode rank."""
    max_busy_at_once: int = 64
    """Chunks of one session that were turned away as busy and repeat by themselves; a larger crowd takes turns."""
    max_write_failures: int = 3
    """Failed writes of one chunk after which its room fails."""
    max_aborted_rooms: int = 1024
    """Rooms unknown here that D has aborted, remembered per session."""

    def __post_init__(self) -> None:
        """Refuse what could not work, all of it at once."""
        problems = [*self._identity_problems(), *self._number_problems()]
        if problems:
            raise ValueError("; ".join(problems))

    def _identity_problems(self) -> Iterator[str]:
        for name in ("prefill_id", "group", "host_id"):
            if not is_id(getattr(self, name)):
                yield f"{name}: expected 1 to 128 printable ASCII characters"
        if not 0 <= self.incarnation <= MAX_UINT63:
            yield f"incarnation is {self.incarnation}, expected 0 to 2**63 - 1"
        if not 1 <= self.chunk_tokens <= MAX_CHUNK_TOKENS:
            yield f"chunk_tokens is {self.chunk_tokens}, expected 1 to {MAX_CHUNK_TOKENS}"
        if self.page_size < 1:
            yield f"page_size is {self.page_size}, expected at least 1"
        if not self.planes or len(set(self.planes)) != len(self.planes):
            yield f"planes are {self.planes}, expected at least one, each once"

    def _number_problems(self) -> Iterator[str]:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if entry.name.endswith(("_s", "_cap")) and not value > 0:
                yield f"{entry.name} is {value}, expected more than 0 seconds"
            if entry.name.startswith("max_") and value < 1:
                yield f"{entry.name} is {value}, expected at least 1"
