"""A session's lease and numbering, and what a peer knows of its sessions."""

from prefill_service.sessions import Peer, PlaneState, Session
from prefill_service.shares import WriterShare
from protocol.messages import Subscribe
from protocol.timers import Backoff
from tests.unit.prefill_service.bench import LEASE_S, Bench, sent


def new_session() -> Session:
    """A session whose lease runs until 10."""
    bench = Bench()
    (subscribe,) = sent(bench.handler.add_peer("d0", bench.now), Subscribe)
    return Session("d0", bench.answer(subscribe), WriterShare(0, 6, 6), LEASE_S, Backoff(0.05, 1.0))


def test_lease_runs_from_the_sending_and_never_backwards() -> None:
    """Answers in any order leave the lease at the latest heartbeat that was answered."""
    session = new_session()
    first, second = session.next_seq(3.0), session.next_seq(4.0)
    assert session.answered(second)
    assert session.lease_until == 4.0 + LEASE_S
    assert session.answered(first)
    assert session.lease_until == 4.0 + LEASE_S
    assert not session.answered(first)


def test_over_means_quiet_and_the_plane_settled() -> None:
    """A session whose plane is still being opened, or in which a write runs, is not over."""
    session = new_session()
    seen = [session.is_over]
    session.plane = PlaneState.OPEN
    seen.append(session.is_over)
    session.running.add(1)
    seen.append(session.is_over)
    assert seen == [False, True, False]


def test_peer_knows_its_present_and_latest_sessions() -> None:
    """The memory of past sessions is bounded."""
    peer = Peer("d0", None, 1, Backoff(0.2, 2.0), session=new_session())
    assert peer.knows("session-1")
    for number in range(40):
        peer.past.append(f"old-{number}")
    assert peer.knows("old-39")
    assert not peer.knows("old-0")
