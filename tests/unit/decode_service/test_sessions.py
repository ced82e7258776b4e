"""The session table: who is current, who is only remembered, and the newest life of each prefill."""

from decode_service.sessions import Session, SessionTable
from protocol.layout import WriterKey, WriterSlice
from tests.unit.decode_service.driver import Driver


def make_session(session_id: str, prefill_id: str, tp_rank: int = 0, life: int = 1) -> Session:
    """A session as the machine makes it, under another id and for another writer."""
    driver = Driver(1)
    model = driver.handler.state.sessions.current(driver.join(prefill_id=prefill_id, life=life))
    assert model is not None
    part = WriterSlice(WriterKey(tp_rank, 0), (), 0)
    return Session(session_id, model.request, model.answer, False, part, (), 0.0)


def test_found_by_id_prefill_and_writer() -> None:
    """A current session is found in every way; an unknown one in none."""
    table = SessionTable(10)
    session = make_session("s", "p")
    table.add(session)
    assert table.current("s") is table.get("s") is table.of_prefill("p") is session
    assert table.of_writer("g", WriterKey(0, 0)) is session
    assert table.of_writer("h", WriterKey(0, 0)) is None
    assert [list(table.all()), list(table.all_current()), list(table.of_group("g"))] == [[session]] * 3
    assert list(table.of_group("h")) == []
    assert table.current("t") is None
    assert (session.writer, session.group, session.incarnation, session.layout.tp_size) == (WriterKey(0, 0), "g", 1, 1)


def test_fenced_is_known_by_id_only() -> None:
    """A fenced session gives its place to the next one, and stays known until it is forgotten."""
    table = SessionTable(10)
    old, new = make_session("old", "p"), make_session("new", "p")
    table.add(old)
    table.fence(old, "silent")
    assert (old.fenced, old.fenced_reason) == (True, "silent")
    assert table.current("old") is None
    assert table.get("old") is old
    table.add(new)
    assert table.of_prefill("p") is new
    assert len(table) == 2
    table.forget(old)
    assert table.get("old") is None
    assert list(table.all()) == [new]


def test_newest_life_is_remembered_and_bounded() -> None:
    """The highest incarnation outlives its session; the longest unheard prefill is forgotten first."""
    table = SessionTable(2)
    for number, (prefill_id, life) in enumerate([("p", 5), ("q", 1), ("p", 3)]):
        session = make_session(str(number), prefill_id, life=life)
        table.add(session)
        table.fence(session, "x")
        table.forget(session)
    assert (table.newest_life("p"), table.newest_life("q"), table.newest_life("z")) == (5, 1, 0)
    table.add(make_session("3", "z", life=9))
    assert (table.newest_life("p"), table.newest_life("q"), table.newest_life("z")) == (5, 0, 9)
