"""Heartbeats renew the lease from their sending, and probes make up for a lost watermark."""

from itertools import pairwise

from prefill_service.outputs import WriteChunk
from protocol.messages import Blocked, Heartbeat, HeartbeatAck, StagingReq, Subscribe
from protocol.watermark import START, Watermark
from tests.unit.prefill_service.bench import Bench, granted, of_type, sent


def test_heartbeats_come_every_second_with_what_was_seen() -> None:
    """Each has its own number and the watermark that is believed."""
    bench = Bench()
    session = bench.connect()
    bench.watermark("d0", 2, 30)
    beats = sent(bench.run(3.5), Heartbeat)
    assert beats == [Heartbeat(session, seq, Watermark(2, 30)) for seq in (1, 2, 3)]


def test_answered_heartbeats_keep_the_session() -> None:
    """As long as D answers, the lease never lapses."""
    bench = Bench()
    bench.connect()
    assert not sent(bench.run(120.0), Subscribe)


def test_late_answer_renews_from_the_sending() -> None:
    """An answer that was long on its way is worth only what is left since its heartbeat was sent."""
    bench = Bench()
    bench.answers_heartbeats = False
    session = bench.connect()
    started = bench.now
    bench.run(9.0)
    bench.hear("d0", HeartbeatAck(session, 1))
    assert bench.handler.state.peers["d0"].session is not None
    assert not sent(bench.run(started + 11.0 - bench.now - 0.01), Subscribe)
    assert sent(bench.run(0.02), Subscribe)


def test_repeated_unknown_and_foreign_answers_renew_nothing() -> None:
    """Only the first answer to a heartbeat of this session counts."""
    bench = Bench()
    bench.answers_heartbeats = False
    session = bench.connect()
    bench.run(1.5)
    bench.hear("d0", HeartbeatAck(session, 1))
    for ack in (HeartbeatAck(session, 1), HeartbeatAck(session, 9), HeartbeatAck("other", 1)):
        assert bench.hear("d0", ack) == ()
    assert bench.counters["heartbeat_acks_ignored"] == 3


def test_blocked_grant_is_probed_at_doubled_intervals() -> None:
    """The probe names the grant that waits, and comes less and less often down to one per heartbeat interval."""
    bench = Bench()
    session = bench.connect()
    bench.whole_room("r")
    bench.grant("d0", "r", 0, granted(1, round=1))
    started = bench.now
    times = []
    while bench.now < started + 0.9:
        at = bench.handler.next_deadline()
        assert at is not None
        bench.now = at
        for beat in sent(bench.handler.tick(at), Heartbeat):
            assert beat.blocked == Blocked("r", 0, 1, 60, at - started)
            assert (beat.session, beat.seen) == (session, START)
            times.append(at - started)
    assert 0.04 <= times[0] <= 0.05
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert all(0.8 * limit <= gap <= limit for gap, limit in zip(gaps, (0.1, 0.2, 0.4), strict=False))


def test_lost_watermark_heals_within_two_probe_intervals() -> None:
    """The frame of the last free is lost and no other follows: the answer to the probe brings the watermark."""
    bench = Bench()
    bench.connect()
    bench.whole_room("r")
    bench.grant("d0", "r", 0, granted(1, round=1))
    assert sent(bench.run(2 * 0.05), Heartbeat)
    assert of_type(bench.watermark("d0", 1, 0), WriteChunk)


def test_newly_blocked_grant_is_probed_soon_although_another_waits_long() -> None:
    """A second grant at the gate does not inherit the long interval of the first."""
    bench = Bench()
    bench.connect()
    for room in ("one", "two"):
        bench.whole_room(room)
    bench.grant("d0", "one", 0, granted(1, round=1))
    bench.run(20.0)
    bench.grant("d0", "two", 0, granted(2, round=2))
    assert sent(bench.run(0.05), Heartbeat)


def test_nothing_is_probed_when_nothing_waits() -> None:
    """With the gate empty the probe ends: what remains are heartbeats."""
    bench = Bench()
    bench.connect()
    bench.whole_room("r")
    bench.grant("d0", "r", 0, granted(1, round=1))
    bench.watermark("d0", 1, 0)
    bench.run(0.5)
    assert "probes" not in bench.counters


def test_waiting_at_the_gate_costs_a_bounded_number_of_steps() -> None:
    """A minute of waiting is a few heartbeats a second, not a spinning loop, and no request is repeated."""
    bench = Bench()
    bench.connect()
    bench.whole_room("r")
    bench.grant("d0", "r", 0, granted(1, round=1))
    out = bench.run(60.0)
    assert len(sent(out, Heartbeat)) < 150
    assert not sent(out, StagingReq)


def test_unanswered_heartbeats_are_bounded() -> None:
    """A silent D makes the machine remember a bounded number of sending times."""
    bench = Bench(probe_s=0.001)
    bench.answers_heartbeats = False
    bench.connect(heartbeat_s=0.01, lease_s=1000.0)
    bench.run(5.0)
    session = bench.handler.state.peers["d0"].session
    assert session is not None
    assert len(session.unanswered) <= 64
