"""Everything a seed decides: the shape of the deployment, what its engines do, and which faults strike how often."""

from dataclasses import dataclass, field, fields
from random import Random

TARGETS = (
    "SUBSCRIBED",
    "SUBSCRIBE",
    "WATERMARK",
    "STAGING_RSP",
    "CHUNK_READY",
    "CHUNK_DONE",
    "ABORT",
    "ABORT_ACK",
    "HEARTBEAT_ACK",
)
"""Frame types that a run may pick on."""
STOP_WAIT_S = 1.0
"""Where writes get stuck, so that they outlast it within a run."""
PLANES = (("shm",), ("shm",), ("zmq",), ("shm", "zmq"), ("nixl",))
"""What a prefill may offer. ``nixl`` stands for every one-sided plane between hosts."""


@dataclass(frozen=True, slots=True)
class Faults:
    """Probabilities per message or deed, and counts per run. All of them end when the world heals."""

    loss: float = 0.0
    target: str = ""
    """A frame type that is lost more often than others."""
    target_loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    late: float = 0.0
    """A message arrives seconds later, as from a connection that was replaced."""
    late_s: float = 5.0
    """How much later at most. Ids that are used again must be remembered for longer."""
    garbled: float = 0.0
    """Something senseless arrives beside a message."""
    send_full: float = 0.0
    corruption: float = 0.0
    """Per finished write: a byte of it changes in the ring before it is read."""
    no_memory: float = 0.0
    """Per attempt to replace a region."""
    plane_failures: float = 0.0
    """Per attempt to open a data plane."""
    closed_plane: str = ""
    """A data plane that never opens."""
    write_failures: float = 0.0
    """Per write."""
    late_landings: bool = False
    """The bytes of a write that failed on a one-sided plane may land long afterwards."""
    slow_copies: float = 0.0
    stuck_writes: float = 0.0
    """Writes that outlast their session: longer than ``stop_wait_s``."""
    """Per scatter and per copied piece: it takes seconds."""
    prefill_crashes: int = 0
    decode_crashes: int = 0
    burials: int = 0
    """Prefills that die and never come back."""
    takeovers: int = 0
    """A new life of a prefill starts while the former one is only stopped and will go on."""
    pauses: int = 0
    long_pauses: int = 0
    """Pauses longer than a lease."""
    torn_writes: int = 0
    """Pauses of any length in the middle of a write."""
    partitions: int = 0
    departures: int = 0
    """Ranks that are asked to leave in order, and start again afterwards."""
    engine_aborts: int = 0
    unregistered_rooms: int = 0
    """Rooms that some decode engine never registers."""
    unsubmitted_rooms: int = 0
    """Rooms that some prefill rank never submits, or never finishes."""
    repeated_calls: float = 0.0
    """Engines that say the same thing twice."""
    reused_rooms: int = 0
    """Ids that engines use again as soon as they may."""

    @property
    def only_messages(self) -> bool:
        """Whether nothing is wrong but messages that are lost, repeated, late or out of order."""
        messages = {
            "late_s",
            "loss",
            "target",
            "target_loss",
            "duplication",
            "reordering",
            "garbled",
            "send_full",
            "repeated_calls",
        }
        return not any(getattr(self, entry.name) for entry in fields(self) if entry.name not in messages)


@dataclass(frozen=True, slots=True)
class Options:
    """One run. ``describe`` prints all of it, so that a seed can be understood without running it."""

    seed: int = 0
    groups: int = 1
    prefill_tp: int = 1
    prefill_pp: int = 1
    decode_tp: int = 1
    decode_pp: int = 1
    heads: int = 1
    width: int = 1
    layers: int = 1
    chunk_tokens: int = 2
    ring_chunks: float = 2.0
    """Size of the ring in full chunks; below 1.0 only rooms that are short enough go through."""
    planes: tuple[tuple[str, ...], ...] = (("shm",),)
    """What each prefill rank offers; they take turns."""
    requests: int = 3
    max_tokens: int = 6
    concurrency: int = 3
    think_s: float = 0.0
    """Longest wait of the engines between two requests."""
    delay_s: float = 0.002
    """Typical one-way delay of a control message."""
    write_s: float = 0.005
    """Typical duration of a write or a scatter."""
    clock_error: float = 0.0
    """Largest relative error of a process's clock rate."""
    max_chunks_in_flight: int = 64
    max_busy_at_once: int = 64
    room_deadline_s: float = 40.0
    """Of both sides; also how long ids of ended rooms are remembered."""
    prefill_patience: float = 1.0
    """How many deadlines the prefill side waits without any progress."""
    max_retired_regions: int = 2
    stop_wait_s: float = 30.0
    """How long a prefill rank waits for the writes of a lost session."""
    faults: Faults = field(default_factory=Faults)

    def describe(self) -> str:
        """Every option, one per line."""
        own = [f"{f.name} = {getattr(self, f.name)!r}" for f in fields(self) if f.name != "faults"]
        return "\n".join(own + [f"faults.{f.name} = {getattr(self.faults, f.name)!r}" for f in fields(self.faults)])


def draw_options(seed: int) -> Options:
    """Draw a run's options from its seed. Every fault is absent from many runs, so that each is also seen alone."""
    random = Random(f"options {seed}")
    layers = random.randint(1, 2)
    prefill_pp = random.choice([1, 1, layers])
    faults = _draw_faults(random, seed)
    return Options(
        seed=seed,
        groups=random.choice([1, 1, 2]),
        prefill_tp=random.choice([1, 1, 2, 2, 4]),
        prefill_pp=prefill_pp,
        decode_tp=random.choice([1, 1, 2, 2, 4]),
        decode_pp=random.choice([1, 1, prefill_pp]),
        heads=random.choice([1, 2, 4]),
        width=random.randint(1, 3),
        layers=layers,
        chunk_tokens=random.choice([1, 2, 4]),
        ring_chunks=random.choice([0.6, 1.0, 1.0, 1.3, 1.3, 1.7, 2.0, 2.0, 3.0, 5.0]),
        planes=_draw_planes(random),
        requests=random.randint(3, 9),
        max_tokens=random.choice([4, 9, 17]),
        concurrency=random.randint(1, 5),
        think_s=random.choice([0.0, 0.0, 1.0, 6.0]),
        delay_s=random.choice([0.0002, 0.002, 0.02]),
        write_s=random.choice([0.0005, 0.005, 0.05]),
        clock_error=random.choice([0.0, 0.001, 0.01]),
        max_chunks_in_flight=random.choice([2, 4, 64] if faults.only_messages else [1, 2, 4, 64]),
        max_busy_at_once=Random(f"busy {seed}").choice([1, 1, 4, 64]),
        room_deadline_s=40.0 if faults.only_messages else random.choice([7.0, 7.0, 20.0]),
        max_retired_regions=16 if faults.only_messages else random.choice([1, 2]),
        stop_wait_s=STOP_WAIT_S if faults.stuck_writes else 30.0,
        faults=faults,
    )


def _draw_planes(random: Random) -> tuple[tuple[str, ...], ...]:
    if random.random() < 0.4:
        return (random.choice(PLANES),)
    return tuple(random.choice(PLANES) for _ in range(2))


def _draw_faults(random: Random, seed: int) -> Faults:
    """Three temperaments: messages only, a few kinds of fault, or everything at once."""
    share = random.choice([0.0, 0.25, 0.25, 0.6])

    def sometimes(*values: float, of: float | None = None) -> float:
        return random.choice(values) if random.random() < (share if of is None else of) else 0.0

    def count(most: int) -> int:
        return random.randint(1, most) if random.random() < share else 0

    target_loss = sometimes(0.5, 0.9, of=0.25)
    stuck = Random(f"stuck {seed}")
    return Faults(
        loss=sometimes(0.02, 0.1, 0.3, of=0.5),
        target=random.choice(TARGETS) if target_loss else "",
        target_loss=target_loss,
        duplication=sometimes(0.02, 0.2, of=0.5),
        reordering=sometimes(0.05, 0.3, of=0.5),
        late=sometimes(0.005, 0.03),
        garbled=sometimes(0.02, 0.1, of=0.2),
        send_full=sometimes(0.02, 0.2, of=0.3),
        corruption=sometimes(0.05, 0.3),
        no_memory=sometimes(0.2, 0.8),
        plane_failures=sometimes(0.2, 0.7),
        write_failures=sometimes(0.05, 0.3),
        slow_copies=sometimes(0.02, 0.2),
        stuck_writes=stuck.choice([0.02, 0.2]) if stuck.random() < share / 2 else 0.0,
        prefill_crashes=count(3),
        decode_crashes=count(2),
        burials=count(1),
        takeovers=count(2),
        pauses=count(3),
        long_pauses=count(2),
        torn_writes=count(3),
        partitions=count(3),
        departures=count(2),
        engine_aborts=count(3),
        unregistered_rooms=count(2),
        unsubmitted_rooms=count(2),
        repeated_calls=sometimes(0.1, 0.5, of=0.3),
        reused_rooms=count(2),
    )
