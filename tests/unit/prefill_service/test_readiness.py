"""Ready means: subscribed somewhere, and something moved lately or nothing was waiting."""

from prefill_service.readiness import unready_reasons
from protocol.messages import DoneStatus, Refused, RefusedCode, Subscribe
from tests.unit.prefill_service.bench import Bench, granted, sent

STALL_S = 15.0


def reasons(bench: Bench) -> list[str]:
    """As of now."""
    return unready_reasons(bench.handler.as_of(bench.now), STALL_S)


def test_a_rank_without_peers_is_ready_and_one_without_sessions_is_not() -> None:
    """It seeks nobody until a room or the operator names someone."""
    bench = Bench()
    assert reasons(bench) == []
    bench.handler.add_peer("d0", bench.now)
    assert reasons(bench) == ["it is subscribed to none of 1 decode ranks"]
    bench.connect("d1")
    assert reasons(bench) == []


def test_the_end_of_its_life_is_told() -> None:
    """Draining, and then over."""
    bench = Bench()
    bench.handler.drain(bench.now)
    assert reasons(bench) == ["it is draining"]
    bench.handler.stop(bench.now)
    assert reasons(bench)[0].startswith("its life is over (stopped")


def test_nothing_moves_while_work_waits() -> None:
    """A request that nobody grants makes it unready after a while; a chunk that arrives starts the time anew."""
    bench = Bench()
    bench.connect()
    bench.whole_room("stuck")
    bench.run(STALL_S - 1)
    assert reasons(bench) == []
    write = bench.written("moves")
    bench.judge("d0", "moves", 0, write.alloc_id, DoneStatus.SCATTERED)
    bench.run(STALL_S - 1)
    assert reasons(bench) == []
    bench.run(1)
    assert reasons(bench) == ["nothing has moved for 15.0 s while 1 chunks wait"]


def test_a_failed_room_waits_for_nothing() -> None:
    """Its chunks are no work."""
    bench = Bench()
    bench.connect()
    bench.whole_room("r")
    bench.grant("d0", "r", 0, granted(1, 0, 3))
    bench.handler.abort_room("r", bench.now)
    bench.run(2 * STALL_S)
    assert reasons(bench) == []


def test_refusals_are_named_by_their_codes() -> None:
    """How many decode ranks turned it away, and with which code."""
    bench = Bench()
    for peer in ("d0", "d1"):
        (subscribe,) = sent(bench.handler.add_peer(peer, bench.now), Subscribe)
        bench.hear(peer, Refused(subscribe.attempt, RefusedCode.LAYOUT, "layouts differ"))
    bench.handler.add_peer("d2", bench.now)
    assert reasons(bench) == ["it is subscribed to none of 3 decode ranks (refused: 2 of them with layout)"]
