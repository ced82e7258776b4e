"""``SUBSCRIBE``: who gets which session, over which plane, and every refusal with its diff."""

from dataclasses import replace

import pytest

from decode_service.outputs import SessionClosed
from protocol.layout import LayoutDifference, ModelLayout, TensorSpec
from protocol.messages import Error, GrantStatus, Refused, RefusedCode, Subscribe, Subscribed, WatermarkUpdate
from protocol.watermark import is_watermark_ready
from tests.unit.decode_service.driver import MODEL, Driver, ends, messages, only, rank


def refusal(driver: Driver, message: Subscribe) -> Refused:
    """The answer to a ``SUBSCRIBE`` that does not fit."""
    return only(driver.hear(message, b"route"), Refused)


def test_answer_and_snapshot_at_once() -> None:
    """A newcomer hears everything it needs, then the current watermark, in that order."""
    driver = Driver(1)
    first = driver.join()
    driver.register("r")
    driver.move([first], "r")
    message = driver.subscribe_message(0, group="h", features=("xxh3", "unknown"))
    outputs = driver.hear(message, b"h")
    subscribed = only(outputs, Subscribed)
    assert [output.message for output in outputs if hasattr(output, "message")] == [
        subscribed,
        WatermarkUpdate(1, 0, subscribed.session),
    ]
    assert (subscribed.attempt, subscribed.incarnation, subscribed.version) == (message.attempt, 1, 1)
    assert (subscribed.decode_id, subscribed.decode_rank, subscribed.decode_incarnation) == ("decode-0", 0, 7)
    assert (subscribed.epoch, subscribed.ring_size, subscribed.layout) == (0xE0, 100, rank(1))
    assert subscribed.features == ("xxh3",)
    assert (subscribed.heartbeat_s, subscribed.lease_s) == (1.0, 10.0)


def test_newcomer_may_write_at_once() -> None:
    """A session that starts at round 3 is told so, and its first grant is ready for it."""
    driver = Driver(1)
    a = driver.join()
    for room in ("r1", "r2", "r3"):
        driver.register(room, 2)
        driver.move([a], room)
    outputs = driver.hear(driver.subscribe_message(0, group="h"), b"h")
    snapshot = only(outputs, WatermarkUpdate)
    driver.routes[snapshot.session] = b"h"
    driver.register("r4", 2, group="h")
    grant = driver.grant([snapshot.session], "r4")[snapshot.session]
    assert grant.round == 3
    assert is_watermark_ready(snapshot.watermark, grant.round, grant.end)


class TestSameLife:
    """The same life asks again because the answer may have been lost."""

    def test_same_session_and_a_fresh_snapshot(self) -> None:
        """The answer is repeated for the new attempt, with the watermark of now; nothing else changes."""
        driver = Driver(1)
        session = driver.join()
        driver.register("r")
        driver.move([session], "r")
        again = driver.subscribe_message()
        outputs = driver.hear(again, b"elsewhere")
        assert (only(outputs, Subscribed).session, only(outputs, Subscribed).attempt) == (session, again.attempt)
        assert only(outputs, WatermarkUpdate).watermark == (1, 0)
        assert driver.count("sessions_opened") == 1

    def test_asking_again_renews_the_lease(self) -> None:
        """A prefill whose answers are lost one after the other is alive all the same."""
        driver = Driver(1)
        session = driver.join()
        for _ in range(20):
            driver.wait(1.0)
            assert only(driver.hear(driver.subscribe_message(), b"route"), Subscribed).session == session

    def test_requests_and_grants_survive(self) -> None:
        """A repeated ``SUBSCRIBE`` in the middle of a transfer costs nothing."""
        driver = Driver(2)
        a, b = driver.join(0), driver.join(1)
        driver.register("r")
        driver.ask(a, "r")
        assert driver.join(0) == a
        answer = driver.ask(b, "r")
        assert answer is not None
        assert answer.status is GrantStatus.GRANTED

    def test_after_a_fence_it_gets_another(self) -> None:
        """A fenced session never comes back; the same life goes on in a new one."""
        driver = Driver(1)
        old = driver.join()
        driver.wait(13)
        assert driver.join() != old

    def test_after_its_own_word_it_gets_another(self) -> None:
        """``stopped`` ends the named session, although it was current, and its rooms go on in the new one."""
        driver = Driver(1)
        old = driver.join()
        driver.register("r")
        driver.grant([old], "r")
        outputs = driver.hear(driver.subscribe_message(stopped=old), b"route")
        assert SessionClosed(old) in outputs
        new = only(outputs, Subscribed).session
        driver.routes[new] = b"route"
        assert new != old
        assert driver.live_grants() == []
        assert ends(driver.move([new], "r")) == [("r", "")]

    def test_a_lost_session_is_not_given_again(self) -> None:
        """``lost`` ends the named session without proof: its grant stays, and the prefill goes on in another session."""
        driver = Driver(1)
        old = driver.join()
        driver.register("r")
        driver.grant([old], "r")
        outputs = driver.hear(driver.subscribe_message(lost=old), b"route")
        assert only(outputs, Subscribed).session != old
        assert messages(outputs, Error) == []
        assert driver.live_grants() == [("r", "closed")]

    def test_a_lost_session_of_another_life_is_left_alone(self) -> None:
        """Only the prefill that held a session may give it up."""
        driver = Driver(2)
        other = driver.join(1)
        driver.hear(driver.subscribe_message(0, lost=other), b"route")
        assert driver.join(1) == other

    def test_changed_planes_negotiate_anew(self) -> None:
        """A prefill that could not open the first plane offers fewer and gets another session on the next one."""
        driver = Driver(1)
        first = driver.hear(driver.subscribe_message(planes=("shm", "zmq")), b"route")
        assert only(first, Subscribed).plane == "shm"
        again = driver.hear(driver.subscribe_message(planes=("zmq",)), b"route")
        assert only(again, Subscribed).plane == "zmq"
        assert only(again, Subscribed).session != only(first, Subscribed).session
        assert driver.count("sessions_fenced") == 1

    def test_changed_planes_are_no_proof(self) -> None:
        """Only ``stopped`` says that no write runs: without it the old session's grant stays pinned."""
        driver = Driver(1)
        old = driver.join(planes=("shm", "zmq"))
        driver.register("r")
        driver.grant([old], "r")
        driver.join(planes=("zmq",))
        assert driver.live_grants() == [("r", "closed")]
        driver.join(planes=("zmq",), stopped=old)
        assert driver.live_grants() == []

    def test_overtaken_offer_is_dropped(self) -> None:
        """A late ``SUBSCRIBE`` with the former offer does not end the session that the later one got."""
        driver = Driver(1)
        late = driver.subscribe_message(planes=("shm", "zmq"))
        session = driver.join(planes=("zmq",))
        assert driver.hear(late, b"route") == ()
        assert driver.handler.state.sessions.current(session) is not None
        assert driver.count("subscribes_overtaken") == 1


class TestNewLife:
    """A prefill process that restarted."""

    def test_fences_the_old_and_fails_its_rooms(self) -> None:
        """The old life's rooms fail at once, their other writers hear ``ABORT``, its grants wait for proof."""
        driver = Driver(2, ring=1000)
        old, b = driver.join(0), driver.join(1)
        driver.register("begun")
        driver.register("fresh")
        granted = driver.grant([old, b], "begun")
        outputs = driver.hear(driver.subscribe_message(0, life=2), b"new")
        assert ends(outputs) == [("begun", "prefill_gone")]
        new = only(outputs, Subscribed).session
        driver.routes[new] = b"new"
        driver.ready(b, "begun", granted[b])
        assert driver.live_grants() == [("begun", "closed")]
        assert ends(driver.move([new, b], "fresh")) == [("fresh", "")]
        driver.quiet(old)
        assert driver.live_grants() == []

    def test_fails_rooms_of_a_life_that_was_fenced_before(self) -> None:
        """The old session may have been fenced for its silence long ago: its source pages are gone only now."""
        driver = Driver(2)
        old, b = driver.join(0), driver.join(1)
        driver.register("r")
        driver.ask(old, "r")
        assert ends(driver.wait(13, alive=[b])) == []
        outputs = driver.hear(driver.subscribe_message(0, life=2), b"new")
        assert ends(outputs) == [("r", "prefill_gone")]

    def test_old_life_is_superseded(self) -> None:
        """What the old life sends late is refused, also when the new one has been fenced meanwhile; it ends that life."""
        driver = Driver(1)
        late = driver.subscribe_message(0, life=1)
        new = driver.join(0, life=2)
        assert refusal(driver, late).code is RefusedCode.SUPERSEDED
        assert driver.handler.state.sessions.current(new) is not None
        driver.wait(13)
        assert refusal(driver, replace(late, attempt=9)).code is RefusedCode.SUPERSEDED

    def test_others_are_untouched(self) -> None:
        """A restart of one prefill touches neither the sessions nor the rooms of another group."""
        driver = Driver(1)
        driver.join(0)
        other = driver.join(0, group="h")
        driver.register("r", group="h")
        granted = driver.grant([other], "r")
        driver.join(0, life=2)
        assert ends(driver.scattered(driver.write(granted, "r"))) == [("r", "")]

    def test_messages_of_the_old_life_are_a_strangers(self) -> None:
        """They name the old session, which is current no more."""
        driver = Driver(1)
        old = driver.join(0)
        driver.join(0, life=2)
        assert only(driver.ask_all(old, "r"), Error).session == old

    def test_another_name_in_the_same_place_is_another_life(self) -> None:
        """A prefill that changes its id on every start takes the place of its writer once that is free; the old rooms fail."""
        driver = Driver(2)
        old, b = driver.join(0, prefill_id="host-pid-1"), driver.join(1)
        driver.register("r")
        driver.ask(old, "r")
        driver.wait(13, alive=[b])
        outputs = driver.hear(driver.subscribe_message(0, prefill_id="host-pid-2", life=5), b"new")
        assert ends(outputs) == [("r", "prefill_gone")]


class TestRefused:
    """Whatever does not fit is refused at once, with the field and both values."""

    @pytest.mark.parametrize(
        ("change", "code", "row"),
        [
            pytest.param({"versions": (2, 3)}, "version", LayoutDifference("versions", "2 to 3", "1"), id="version"),
            pytest.param({"decode_rank": 4}, "wrong_rank", LayoutDifference("decode_rank", "4", "0"), id="rank"),
            pytest.param({"chunk_tokens": 8}, "layout", LayoutDifference("chunk_tokens", "8", "4"), id="grid"),
            pytest.param(
                {"planes": ("mooncake",)}, "no_plane", LayoutDifference("planes", "mooncake", "shm, zmq"), id="no common plane"
            ),
            pytest.param(
                {"planes": ("shm",), "host_id": "host-b"},
                "no_plane",
                LayoutDifference("host_id", "host-b", "host-a"),
                id="shared memory between hosts",
            ),
            pytest.param(
                {"layout": rank(1, model=ModelLayout(((TensorSpec("k", 2, 5, "int8"), TensorSpec("v", 2, 6, "int8")),)))},
                "layout",
                LayoutDifference("layers[0].v.width", "6", "5"),
                id="model",
            ),
        ],
    )
    def test_with_its_reason(self, change: dict[str, object], code: str, row: LayoutDifference) -> None:
        """The refusal names the attempt, a static code and the row that matters, and opens nothing."""
        driver = Driver(1)
        message = driver.subscribe_message(**change)  # type: ignore[arg-type]
        refused = refusal(driver, message)
        assert (refused.attempt, refused.code.value) == (message.attempt, code)
        assert row in refused.diff
        assert len(driver.handler.state.sessions) == 0

    def test_sizes_that_do_not_divide(self) -> None:
        """Prefill TP 6 to decode TP 4 is refused at the handshake."""
        model = ModelLayout(((TensorSpec("k", 12, 5, "int8"),),))
        driver = Driver(6, rank(4, 0, model))
        refused = refusal(driver, driver.subscribe_message(layout=rank(6, 0, model)))
        assert refused.diff[0].field == "tp_size"

    @pytest.mark.parametrize(
        "broken",
        [
            replace(rank(1), stage_bounds=(0,)),
            replace(rank(1), stage_bounds=(0, 5)),
            replace(rank(1), pp_rank=3),
            replace(rank(2), tp_rank=2),
            replace(rank(1), model=ModelLayout(((),)), stage_bounds=(0, 1)),
            replace(rank(1), pp_size=4096),
        ],
        ids=["no bounds", "bounds past the layers", "stage past the last", "rank past the last", "nothing", "stages"],
    )
    def test_layout_that_cannot_exist(self, broken: object) -> None:
        """A layout that contradicts itself is a refusal with the contradiction, never an error of ours."""
        driver = Driver(1)
        refused = refusal(driver, driver.subscribe_message(layout=broken))
        assert refused.code is RefusedCode.LAYOUT
        assert "no rank can have" in refused.message
        assert refused.diff

    def test_very_many_contradictions_fit_one_message(self) -> None:
        """The list of reasons is cut, so that a refusal always goes out."""
        layers = tuple((TensorSpec(f"t{n}", 7, 5, "int8"),) for n in range(100))
        driver = Driver(1)
        refused = refusal(driver, driver.subscribe_message(layout=rank(2, 0, ModelLayout(layers))))
        assert len(refused.diff) == 32

    def test_too_many_sessions(self) -> None:
        """The table is bounded; a place is free again when a session is over."""
        driver = Driver(1, max_sessions=2)
        first = driver.join(0, group="g1")
        driver.join(0, group="g2")
        assert refusal(driver, driver.subscribe_message(0, group="g3")).code is RefusedCode.TOO_MANY_SESSIONS
        driver.leave(first)
        driver.join(0, group="g3")

    def test_dying_prefills_do_not_fill_the_table_unseen(self) -> None:
        """Sessions that cannot be proven quiet count against the bound: memory is bounded however often a peer dies."""
        driver = Driver(1, max_sessions=3, ring=1000)
        for life in (1, 2, 3):
            session_id = driver.join(0, life=life)
            driver.register(f"r{life}")
            driver.grant([session_id], f"r{life}")
        assert refusal(driver, driver.subscribe_message(0, life=4)).code is RefusedCode.TOO_MANY_SESSIONS
        for session in driver.handler.state.sessions.all():
            driver.quiet(session.id)
        driver.join(0, life=4)

    def test_writer_is_taken(self) -> None:
        """Two prefills cannot both be TP rank 0 of one group; the second is told who is."""
        driver = Driver(2)
        driver.join(0)
        refused = refusal(driver, driver.subscribe_message(0, prefill_id="impostor"))
        assert refused.code is RefusedCode.WRITER_TAKEN
        assert "'g-p0'" in refused.message

    def test_group_that_disagrees(self) -> None:
        """Ranks of one group must tell the same parallel sizes."""
        driver = Driver(2)
        driver.join(0)
        refused = refusal(driver, driver.subscribe_message(1, layout=rank(4, 1, MODEL)))
        assert refused.code is RefusedCode.LAYOUT
        assert LayoutDifference("group.tp_size", "4", "2") in refused.diff

    def test_draining(self) -> None:
        """A draining rank opens no session, and still answers those it has."""
        driver = Driver(1)
        session = driver.join()
        driver.do(driver.handler.drain(driver.now))
        assert refusal(driver, driver.subscribe_message(0, group="h")).code is RefusedCode.DRAINING
        assert only(driver.hear(driver.subscribe_message(), b"route"), Subscribed).session == session

    def test_refused_new_life_has_fenced_nothing_by_mistake(self) -> None:
        """A new life whose layout does not fit leaves the old one alone."""
        driver = Driver(1)
        session = driver.join()
        refusal(driver, driver.subscribe_message(0, life=2, chunk_tokens=8))
        assert driver.handler.state.sessions.current(session) is not None


def test_plane_is_this_sides_first_choice() -> None:
    """Shared memory where the host is the same, the network plane where it is not."""
    driver = Driver(1)
    both = ("zmq", "shm")
    same = only(driver.hear(driver.subscribe_message(0, group="a", planes=both), b"a"), Subscribed)
    far = only(driver.hear(driver.subscribe_message(0, group="b", planes=both, host_id="host-b"), b"b"), Subscribed)
    assert (same.plane, same.region) == ("shm", {"segment": "ring"})
    assert (far.plane, far.region) == ("zmq", {"port": 7700})


def test_ids_are_never_used_again() -> None:
    """Sessions of one epoch have different ids, and the epoch is part of them."""
    driver = Driver(1)
    ids = {driver.join(0, life=life) for life in range(1, 6)}
    assert len(ids) == 5
    assert {session.split("-")[0] for session in ids} == {"00000000000000e0"}
    assert messages(driver.tick(), Refused) == []
