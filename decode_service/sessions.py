"""Who is subscribed: one session per pair of a prefill's life and an epoch of this ring.

A session is *current* from its subscription until it is closed or fenced. A fenced session may do nothing any more; it stays
known only while some grant it was told about still lacks proof that its process cannot write, because that proof may yet come
from it.

    current --(lapse, new life, plane change, goodbye)--> fenced --(quiet)--> forgotten
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from decode_service.grants import Grant
from protocol.layout import RankLayout, WriterKey, WriterSlice
from protocol.messages import Blocked, Subscribe, Subscribed
from protocol.watermark import START, Watermark


@dataclass(slots=True, eq=False)
class Session:
    """One session and everything that must die with it."""

    id: str
    request: Subscribe
    """The ``SUBSCRIBE`` that created it: identity, incarnation, layout and the planes it offered."""
    answer: Subscribed
    """Repeated when the answer may have been lost."""
    two_sided: bool
    slice: WriterSlice
    """What this writer sends of each token; zero bytes if this decode rank needs nothing from it."""
    writers: tuple[WriterSlice, ...]
    """All writers of its group for this decode rank, in staging order."""
    last_received: float
    fenced: bool = False
    fenced_reason: str = ""
    seen: Watermark = START
    blocked: Blocked | None = None
    unwritten: dict[int, Grant] = field(default_factory=dict)
    """Grants it was told about and has not been proven quiet in, by ``alloc_id``: these pin the ring."""
    open_chunks: set[tuple[str, int]] = field(default_factory=set)
    """Chunks it asked for that are not scattered yet: what ``max_chunks_in_flight`` bounds."""
    heard: dict[str, float] = field(default_factory=dict)
    """When a frame of each type last came from it."""
    told: dict[str, float] = field(default_factory=dict)
    """When a frame of each type last went to it."""
    told_watermark: Watermark = START
    """The last watermark that went to it."""
    sends_failed: int = 0
    send_failed: tuple[str, float] | None = None
    """Why the latest failed send to it failed, and when."""

    @property
    def writer(self) -> WriterKey:
        """Its place within its group."""
        return self.slice.writer

    @property
    def group(self) -> str:
        """The prefill instance it belongs to."""
        return self.request.group

    @property
    def incarnation(self) -> int:
        """Which life of that prefill this is."""
        return self.request.incarnation

    @property
    def layout(self) -> RankLayout:
        """What the prefill rank holds."""
        return self.request.layout


class SessionTable:
    """Finds a session by id, by prefill and by writer. Only current sessions are found by prefill or writer."""

    def __init__(self, max_remembered_lives: int) -> None:
        self._by_id: dict[str, Session] = {}
        self._by_prefill: dict[str, Session] = {}
        self._by_writer: dict[tuple[str, WriterKey], Session] = {}
        self._lives: OrderedDict[str, int] = OrderedDict()
        self._max_lives = max_remembered_lives

    def add(self, session: Session) -> None:
        """Make a new session current. Its prefill and writer must have none."""
        prefill_id, writer = session.request.prefill_id, (session.group, session.writer)
        assert prefill_id not in self._by_prefill
        assert writer not in self._by_writer
        self._by_id[session.id] = session
        self._by_prefill[prefill_id] = session
        self._by_writer[writer] = session
        self._remember_life(prefill_id, session.incarnation)

    def fence(self, session: Session, reason: str) -> None:
        """It is current no more; its id stays known until ``forget``."""
        session.fenced, session.fenced_reason = True, reason
        del self._by_prefill[session.request.prefill_id]
        del self._by_writer[session.group, session.writer]

    def forget(self, session: Session) -> None:
        """Nothing of it is left."""
        del self._by_id[session.id]

    def get(self, session_id: str) -> Session | None:
        """Any known session, fenced ones included."""
        return self._by_id.get(session_id)

    def current(self, session_id: str) -> Session | None:
        """The session of that id if it is current."""
        session = self._by_id.get(session_id)
        return session if session is not None and not session.fenced else None

    def of_prefill(self, prefill_id: str) -> Session | None:
        """The current session of that prefill."""
        return self._by_prefill.get(prefill_id)

    def of_writer(self, group: str, writer: WriterKey) -> Session | None:
        """The current session of that writer."""
        return self._by_writer.get((group, writer))

    def of_group(self, group: str) -> Iterator[Session]:
        """Every current session of that prefill instance."""
        return (session for session in self._by_prefill.values() if session.group == group)

    def all_current(self) -> Iterator[Session]:
        """Every current session."""
        return iter(tuple(self._by_prefill.values()))

    def all(self) -> Iterator[Session]:
        """Every known session, fenced ones included."""
        return iter(tuple(self._by_id.values()))

    def newest_life(self, prefill_id: str) -> int:
        """The highest incarnation ever accepted from that prefill (0 if none is remembered)."""
        return self._lives.get(prefill_id, 0)

    def __len__(self) -> int:
        return len(self._by_id)

    def _remember_life(self, prefill_id: str, incarnation: int) -> None:
        self._lives[prefill_id] = max(incarnation, self.newest_life(prefill_id))
        self._lives.move_to_end(prefill_id)
        while len(self._lives) > self._max_lives:
            self._lives.popitem(last=False)
