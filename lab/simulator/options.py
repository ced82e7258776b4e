"""Everything a seed decides: the shape of the deployment, what its engines do, and which faults strike how often."""

from dataclasses import dataclass, field, fields
from random import Random


@dataclass(frozen=True, slots=True)
class Faults:
    """Probabilities per message and counts per run. All of them end when the world heals."""

    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    send_full: float = 0.0
    corruption: float = 0.0
    """Per finished write: a byte of it changes in the ring before it is read."""
    no_memory: float = 0.0
    """Per attempt to replace a region."""
    prefill_crashes: int = 0
    decode_crashes: int = 0
    pauses: int = 0
    long_pauses: int = 0
    """Pauses longer than a lease."""
    partitions: int = 0
    engine_aborts: int = 0
    unregistered_rooms: int = 0


@dataclass(frozen=True, slots=True)
class Options:
    """One run. ``describe`` prints all of it, so that a seed can be understood without running it."""

    seed: int
    groups: int
    prefill_tp: int
    decode_tp: int
    heads: int
    width: int
    layers: int
    chunk_tokens: int
    ring_chunks: float
    """Size of the ring in full chunks; 1.0 is the smallest that works."""
    plane: str
    requests: int
    max_tokens: int
    concurrency: int
    delay_s: float
    """Typical one-way delay of a control message."""
    write_s: float
    """Typical duration of a write or a scatter."""
    clock_error: float
    """Largest relative error of a process's clock rate."""
    max_chunks_in_flight: int
    faults: Faults = field(default_factory=Faults)

    def describe(self) -> str:
        """Every option, one per line."""
        own = [f"{f.name} = {getattr(self, f.name)!r}" for f in fields(self) if f.name != "faults"]
        return "\n".join(own + [f"faults.{f.name} = {getattr(self.faults, f.name)!r}" for f in fields(self.faults)])


def draw_options(seed: int) -> Options:
    """Draw a run's options from its seed: about a fifth of the runs have no faults of a kind, the others mix them."""
    random = Random(f"options {seed}")
    heads = random.choice([1, 2, 4])
    return Options(
        seed=seed,
        groups=random.randint(1, 2),
        prefill_tp=random.choice([1, 2]) if heads > 1 else 1,
        decode_tp=random.choice([1, 2]) if heads > 1 else 1,
        heads=heads,
        width=random.randint(1, 3),
        layers=random.randint(1, 2),
        chunk_tokens=random.choice([1, 2, 4]),
        ring_chunks=random.choice([1.0, 1.3, 1.7, 2.0, 3.0, 5.0]),
        plane=random.choice(["shm", "shm", "zmq"]),
        requests=random.randint(3, 10),
        max_tokens=random.choice([4, 9, 17]),
        concurrency=random.randint(1, 5),
        delay_s=random.choice([0.0002, 0.002, 0.02]),
        write_s=random.choice([0.0005, 0.005, 0.05]),
        clock_error=random.choice([0.0, 0.001, 0.01]),
        max_chunks_in_flight=random.choice([1, 2, 4, 64]),
        faults=_draw_faults(random),
    )


def _draw_faults(random: Random) -> Faults:
    def sometimes(*values: float) -> float:
        return random.choice(values) if random.random() < 0.6 else 0.0

    def count(most: int, chance: float) -> int:
        return random.randint(1, most) if random.random() < chance else 0

    return Faults(
        loss=sometimes(0.02, 0.1, 0.3),
        duplication=sometimes(0.02, 0.2),
        reordering=sometimes(0.05, 0.3),
        send_full=sometimes(0.02, 0.2),
        corruption=0.05 if random.random() < 0.2 else 0.0,
        no_memory=sometimes(0.2, 0.8),
        prefill_crashes=count(3, 0.3),
        decode_crashes=count(2, 0.2),
        pauses=count(3, 0.3),
        long_pauses=count(2, 0.25),
        partitions=count(2, 0.3),
        engine_aborts=count(3, 0.3),
        unregistered_rooms=count(1, 0.1),
    )
