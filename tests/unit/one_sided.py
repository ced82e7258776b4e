"""An engine of one-sided writes that does what a test tells it: both ends in this process, no thread, no socket."""

from dataclasses import dataclass, field

from runtime.one_sided import OneSidedError, RegionDescriptor, described_memory


@dataclass(eq=False)
class ScriptedTransfer:
    """A write that ends when and how the test says."""

    address: int
    offset: int
    num_bytes: int
    ended: bool = False
    failure: str = ""
    asked: int = 0
    abandoned: bool = False

    def is_done(self) -> bool:
        """What the test has said."""
        self.asked += 1
        if self.failure:
            raise OneSidedError(self.failure)
        return self.ended

    def abandon(self) -> None:
        """Note it."""
        self.abandoned = True


@dataclass(eq=False)
class ScriptedEngine:
    """Initiator, link and target in one; ``transfers`` is what was started."""

    refuses: str = ""
    registered: list[tuple[int, int]] = field(default_factory=list)
    transfers: list[ScriptedTransfer] = field(default_factory=list)
    closed: int = 0

    def register(self, address: int, num_bytes: int) -> None:
        """Note it, or refuse."""
        self._obey()
        self.registered.append((address, num_bytes))

    def connect(self, region: RegionDescriptor, num_bytes: int) -> "ScriptedEngine":
        """Read the description as every engine does."""
        self._obey()
        described_memory(region, num_bytes)
        return self

    def start(self, address: int, offset: int, num_bytes: int) -> ScriptedTransfer:
        """Start what the test will end."""
        self._obey()
        self.transfers.append(ScriptedTransfer(address, offset, num_bytes))
        return self.transfers[-1]

    def descriptor(self) -> RegionDescriptor:
        """The memory that was registered first."""
        address, num_bytes = self.registered[0]
        return {"address": address, "num_bytes": num_bytes}

    def close(self) -> None:
        """Count it."""
        self.closed += 1

    def _obey(self) -> None:
        if self.refuses:
            raise OneSidedError(self.refuses)
