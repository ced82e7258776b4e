"""What one decode machine is told at its birth. Durations are seconds on its own clock."""

from collections.abc import Mapping
from dataclasses import dataclass

from protocol.layout import RankLayout
from protocol.messages import Descriptor


@dataclass(frozen=True, slots=True)
class PlaneOffer:
    """One plane this decode rank can serve, in order of preference."""

    name: str
    descriptor: Descriptor
    two_sided: bool
    """D performs every write itself: refusing a session proves it quiet."""
    same_host: bool
    """Only for a prefill whose ``host_id`` equals ours."""
    piece_bytes: int = 0
    """Size of a ``DATA`` piece on a two-sided plane; 0 where no pieces are sent."""
    reaches_retired: bool = False
    """A writer can still reach a region that was replaced (one-sided writes between hosts): such memory is never given back."""


@dataclass(frozen=True, slots=True)
class DecodeHandlerSettings:
    """Identity, layout, planes, timers and bounds of one decode rank."""

    decode_id: str
    decode_rank: int
    decode_incarnation: int
    epoch: int
    host_id: str
    layout: RankLayout
    chunk_tokens: int
    planes: tuple[PlaneOffer, ...]
    features: tuple[str, ...] = ("xxh3",)

    heartbeat_s: float = 1.0
    lease_s: float = 10.0
    grace_s: float = 2.0
    """Added to the lease before a silent session is fenced, for the time its last heartbeat travelled."""
    abort_retry_s: float = 0.2
    watermark_retry_s: float = 0.02
    """First wait before a watermark that could not be sent is tried again; doubles up to ``retry_limit_s``."""
    retry_limit_s: float = 2.0
    quiet_probe_s: float = 0.25
    """How often the kernel is asked whether a fenced session's processes are gone."""
    park_s: float = 5.0
    quarantine_s: float = 30.0
    """How long a grant may pin the ring without proof before the region is replaced."""
    room_deadline_s: float = 300.0
    room_deadline_cap: float = 4.0
    """Absolute limit of a room's life, in multiples of its deadline."""
    watch_s: float = 0.5
    """While rooms live the machine is ticked at least this often; a much longer gap means that it was not running."""

    max_chunks_in_flight: int = 64
    grant_horizon: float = 4.0
    """How many rings' worth of bytes may be granted ahead."""
    group_share: float = 0.25
    """The part of that which one prefill group may hold while others wait."""
    max_rewrites: int = 3
    max_retired_regions: int = 2
    """Former regions kept at the same time; beyond that, rooms that hang on missing proof fail instead."""
    max_sessions: int = 4096
    max_rooms: int = 65_536
    max_tombstones: int = 1_000_000
    max_parked_per_session: int = 1024
    max_early_aborts: int = 4096

    def offer(self, plane: str) -> PlaneOffer:
        """The offer of that name; ``KeyError`` if this rank does not serve it."""
        return self._by_name()[plane]

    def _by_name(self) -> Mapping[str, PlaneOffer]:
        return {offer.name: offer for offer in self.planes}
