"""What every simulated process has: an address, lives, a clock of its own, and an inbox that fills while it is stopped."""

from collections.abc import Callable

from lab.simulator.events import EventQueue


class Process:
    """A process at an address. Everything that reaches it goes through ``deliver``, so a stopped one hears it later."""

    def __init__(self, name: str, events: EventQueue, clock_rate: float) -> None:
        self.name = name
        self.events = events
        self.life = 0
        self.alive = False
        self.paused_until = 0.0
        self._clock_rate = clock_rate
        self._inbox: list[tuple[int, Callable[[], None]]] = []
        self._wake_at: float | None = None

    @property
    def now(self) -> float:
        """This process's own monotonic clock."""
        return self.events.now * self._clock_rate

    @property
    def is_paused(self) -> bool:
        """Whether it is stopped by a signal."""
        return self.events.now < self.paused_until

    def pause(self, duration: float) -> None:
        """Stop it; whatever arrives meanwhile is read when it continues, before it looks at its clock."""
        if not self.alive:
            return
        self.paused_until = max(self.paused_until, self.events.now + duration)
        self.events.at(self.paused_until, self._resume)

    def deliver(self, action: Callable[[], None], life: int | None = None) -> None:
        """Let something happen in this process: at once, when it continues, or never if that life is over."""
        life = self.life if life is None else life
        if not self.alive or life != self.life:
            return
        if self.is_paused:
            self._inbox.append((life, action))
            return
        action()
        self.arm()

    def after(self, delay: float, action: Callable[[], None]) -> None:
        """Let something happen in this life in ``delay`` seconds (later if it is stopped then)."""
        life = self.life
        self.events.after(delay, lambda: self.deliver(action, life))

    def arm(self) -> None:
        """Make sure that the machine is ticked at its next deadline."""
        deadline = self.machine_deadline()
        if deadline is None:
            return
        at = max(deadline / self._clock_rate, self.events.now + 1e-9)
        if self._wake_at is None or at < self._wake_at or self._wake_at <= self.events.now:
            self._wake_at = at
            life = self.life
            self.events.at(at, lambda: self._wake(at, life))

    def machine_deadline(self) -> float | None:
        """The machine's next deadline on this process's clock."""
        raise NotImplementedError

    def tick(self) -> None:
        """Give the machine the time."""
        raise NotImplementedError

    def leave(self) -> None:
        """The operator asks it to end in order."""
        raise NotImplementedError

    def has_left(self) -> bool:
        """Whether it may be ended."""
        raise NotImplementedError

    def abort_room(self, room: str) -> None:
        """The engine beside this process gives a room up."""
        raise NotImplementedError

    def begin_life(self) -> None:
        """A new process at the same address."""
        self.life += 1
        self.alive = True
        self.paused_until = 0.0
        self._inbox.clear()
        self._wake_at = None

    def end_life(self) -> None:
        """SIGKILL."""
        self.alive = False
        self._inbox.clear()

    def _wake(self, at: float, life: int) -> None:
        if self._wake_at == at:
            self._wake_at = None
        self.deliver(self.tick, life)

    def _resume(self) -> None:
        if not self.alive or self.is_paused:
            return
        inbox, self._inbox = self._inbox, []
        for life, action in inbox:
            self.deliver(action, life)
        self.deliver(self.tick)
