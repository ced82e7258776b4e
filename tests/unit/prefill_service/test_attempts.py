"""Subscriptions are repeated under new numbers, with back-off, and say what this rank is and offers."""

from itertools import pairwise

from prefill_service.outputs import Connect
from protocol.messages import Subscribe
from tests.unit.prefill_service.bench import CHUNK_TOKENS, Bench, of_type, rank_layout, sent


def test_joining_connects_and_subscribes_at_once() -> None:
    """The first outputs for a new peer are its connection and one subscription that carries all of this rank."""
    bench = Bench()
    out = bench.handler.add_peer("d0", bench.now, decode_rank=3)
    (subscribe,) = sent(out, Subscribe)
    assert out[0] == Connect("d0")
    assert subscribe == Subscribe(
        attempt=subscribe.attempt,
        versions=(1, 1),
        features=("xxh3",),
        prefill_id="prefill-0",
        group="group-0",
        incarnation=1000,
        decode_rank=3,
        chunk_tokens=CHUNK_TOKENS,
        layout=rank_layout(),
        planes=("shm", "zmq"),
        host_id="host-a",
        stopped=None,
    )


def test_repeated_with_growing_intervals_and_new_numbers() -> None:
    """Without an answer it is asked again within 0.2 s, then at doubled intervals up to 2 s, each time as a new attempt."""
    bench = Bench()
    attempts = sent(bench.handler.add_peer("d0", bench.now), Subscribe)
    times = [bench.now]
    for _ in range(8):
        at = bench.handler.next_deadline()
        assert at is not None
        bench.now = at
        attempts += sent(bench.handler.tick(at), Subscribe)
        times.append(at)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    limits = [0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0, 2.0]
    assert all(0.8 * limit <= gap + 1e-9 and gap <= limit + 1e-9 for gap, limit in zip(gaps, limits, strict=True))
    numbers = [attempt.attempt for attempt in attempts]
    assert numbers == list(range(numbers[0], numbers[0] + 9))


def test_joining_twice_changes_nothing() -> None:
    """A peer that is known is neither connected nor asked again."""
    bench = Bench()
    bench.handler.add_peer("d0", bench.now)
    assert bench.handler.add_peer("d0", bench.now) == ()


def test_first_room_that_names_a_peer_joins_it() -> None:
    """An endpoint nobody configured is connected when a room goes there."""
    bench = Bench()
    out = bench.submit("r", 3, decode=("d7",))
    assert of_type(out, Connect) == [Connect("d7")]
    assert len(sent(out, Subscribe, "d7")) == 1


def test_attempt_numbers_stay_in_range() -> None:
    """After the highest number that fits the wire the count begins at one again."""
    bench = Bench()
    bench.handler.add_peer("d0", bench.now)
    bench.handler.state.peers["d0"].attempt = 1 << 31
    (subscribe,) = sent(bench.run(0.2), Subscribe)
    assert subscribe.attempt == 1
