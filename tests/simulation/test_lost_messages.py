"""After one lost message of any kind the transfer goes on within twice the timer that guards it, in virtual time.

A small world without faults is played once undisturbed, and then once for each message of the kind with exactly that one lost.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import pytest

from lab.simulator.network import Envelope
from lab.simulator.options import Faults, Options
from lab.simulator.process import Process
from lab.simulator.rules import Rules
from lab.simulator.world import World

PROMPT_SEEDS = (3, 6, 7)
"""All engines speak at once, so every repetition is in its first interval."""
LATE_SEEDS = (0, 1)
"""Some engine is late: others have asked in vain for a while, and their intervals have doubled up to the limit."""
RETRY_LIMIT_S = 2.0
QUIET = Options(prefill_tp=2, heads=2, ring_chunks=1.0, requests=2, concurrency=2, faults=Faults(engine_aborts=1))
"""No fault is ever planned; that an engine may give a room up only explains why one fails."""
DOUBLED = frozenset({"STAGING_REQ", "STAGING_RSP"})
"""Asked again and again while the answer is ``pending``, at intervals that double."""
NOISE_S = 0.1
"""What other delays in the run may add, since every later message is drawn anew."""
LIMIT_S = 60.0


@dataclass(frozen=True)
class Guard:
    """A kind of message, who sends it, what repeats it, and in which story it matters."""

    kind: str
    sender: str
    timer_s: float
    story: str

    def __str__(self) -> str:
        return f"{self.kind} of {self.sender} in {self.story}"


GUARDS = [
    Guard("SUBSCRIBE", "p", 0.2, "transfer"),
    Guard("SUBSCRIBED", "d", 0.2, "transfer"),
    Guard("WATERMARK", "d", 0.05, "transfer"),
    Guard("STAGING_REQ", "p", 0.2, "transfer"),
    Guard("STAGING_RSP", "d", 0.2, "transfer"),
    Guard("CHUNK_READY", "p", 0.2, "transfer"),
    Guard("CHUNK_DONE", "d", 0.2, "transfer"),
    Guard("ABORT", "d", 0.2, "decode_aborts"),
    Guard("ABORT_ACK", "p", 0.2, "decode_aborts"),
    Guard("ABORT", "p", 0.2, "prefill_aborts"),
    Guard("ABORT_ACK", "d", 0.2, "prefill_aborts"),
]


class Loss:
    """Counts the messages of a kind that one side sends, and loses one of them."""

    def __init__(self, guard: Guard, victim: int | None) -> None:
        self._guard = guard
        self._victim = victim
        self.seen = 0

    def __call__(self, envelope: Envelope) -> bool:
        """Whether this message is the one."""
        if envelope.kind != self._guard.kind or not envelope.source.startswith(self._guard.sender):
            return False
        self.seen += 1
        return self.seen - 1 == self._victim


def play(seed: int, guard: Guard, victim: int | None) -> tuple[float, int]:
    """When everybody is done and owes nothing, and how many messages of the kind were sent."""
    world = World(replace(QUIET, seed=seed), Rules())
    world.network.drop = loss = Loss(guard, victim)
    world.start()
    if guard.story != "transfer":
        abort_what_is_being_written(world, by_decode=guard.story == "decode_aborts")
    while not is_settled(world):
        assert world.events.step(LIMIT_S), "it is never over"
    return world.events.now, loss.seen


def abort_what_is_being_written(world: World, *, by_decode: bool) -> None:
    """Play until a write runs, and let an engine give its room up at that moment."""
    prefill = world.prefills["p00"]
    while not prefill.writes.running:
        assert world.events.step(LIMIT_S), "nobody writes"
    write = next(iter(prefill.writes.running.values()))
    process: Process = world.decodes[write.peer] if by_decode else prefill
    process.deliver(partial(process.abort_room, write.room))


def is_settled(world: World) -> bool:
    """Whether all rooms have ended on both sides and no abort waits for its acknowledgement."""
    if not world.is_over():
        return False
    owed_by_decode = any(list(decode.handler._closing.aborting.pending) for decode in world.decodes.values())
    owed_by_prefill = any(peer.aborts for prefill in world.prefills.values() for peer in prefill.handler.state.peers.values())
    return not owed_by_decode and not owed_by_prefill


@pytest.mark.parametrize("seed", PROMPT_SEEDS + LATE_SEEDS)
@pytest.mark.parametrize("guard", GUARDS, ids=str)
def test_one_lost_message_costs_at_most_twice_its_timer(guard: Guard, seed: int) -> None:
    """Whichever message of the kind is lost, the end comes at most that much later."""
    undisturbed, count = play(seed, guard, None)
    assert count, f"nobody sends {guard} here"
    for victim in range(count):
        ended, _ = play(seed, guard, victim)
        timer_s = RETRY_LIMIT_S if guard.kind in DOUBLED and seed in LATE_SEEDS else guard.timer_s
        assert ended <= undisturbed + 2 * timer_s + NOISE_S, f"number {victim} of {count}"


@pytest.mark.parametrize(("kind", "sender"), [("HEARTBEAT", "p"), ("HEARTBEAT_ACK", "d")])
def test_one_lost_heartbeat_leaves_most_of_the_lease(kind: str, sender: str) -> None:
    """The next heartbeat renews it: at no moment is less left than the lease without two intervals."""
    for victim in range(4):
        world = World(replace(QUIET, seed=7), Rules())
        world.network.drop = Loss(Guard(kind, sender, 1.0, "transfer"), victim)
        world.start()
        world.play(1.0)
        while world.events.step(8.0):
            for prefill in world.prefills.values():
                for peer in prefill.handler.state.peers.values():
                    assert peer.session is not None
                    assert peer.session.lease_until - prefill.now > World.LEASE_S - 2 * peer.session.terms.heartbeat_s - NOISE_S


def caught_by_a_lost_message(apply: Callable[[pytest.MonkeyPatch], None], kinds: set[str]) -> bool:
    """Whether the machines without a rule take too long, or for ever, after one lost message of these kinds."""
    for seed, guard in product(PROMPT_SEEDS, (guard for guard in GUARDS if guard.kind in kinds)):
        undisturbed, count = play(seed, guard, None)
        for victim in range(count):
            with pytest.MonkeyPatch.context() as patch:
                apply(patch)
                try:
                    ended, _ = play(seed, guard, victim)
                except AssertionError:
                    return True
            if ended > undisturbed + 2 * guard.timer_s + NOISE_S:
                return True
    return False
