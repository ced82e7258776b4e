"""Whose turn it is: equal shares of the ring's time, whatever a prefill does with its share."""

from collections import Counter

import pytest

from decode_service.outputs import Output
from decode_service.rooms import Chunk, Room
from decode_service.turns import Turns
from protocol.layout import PageRun
from protocol.messages import GrantStatus, StagingRsp
from tests.unit.decode_service.driver import Driver, messages, rank


def room_of(group: str, tokens: int = 400) -> Room:
    """A room of many chunks."""
    return Room(f"room of {group}", group, tokens, 4, PageRun(()), 300.0, 0.0)


def anybody(_group: str) -> bool:
    """Every group may hold more."""
    return True


def play(seconds_per_grant: dict[str, float], grants: int) -> Counter[str]:
    """Give turns one after the other, each charged with how long its group keeps the ring; count them by group."""
    turns, rooms = Turns(), {group: room_of(group, 4 * grants) for group in seconds_per_grant}
    for room in rooms.values():
        for index in range(grants):
            turns.add(room, Chunk(index, 4 * index, 4))
        assert room.waiting_turns == grants
    given: Counter[str] = Counter()
    for _ in range(grants):
        turn = turns.next(anybody)
        assert turn is not None
        given[turn[0].group] += 1
        turns.charge(turn[0].group, seconds_per_grant[turn[0].group])
    return given


def test_equal_prefills_take_turns() -> None:
    """Prefills that keep the ring equally long get equally many grants."""
    assert set(play({"a": 1.0, "b": 1.0, "c": 1.0}, 300).values()) == {100}


def test_slow_prefill_pays_with_its_own_turns() -> None:
    """A prefill ten times slower gets a tenth of the grants of each other one, and these stay equal among themselves."""
    given = play({"slow": 10.0, "a": 1.0, "b": 1.0, "c": 1.0}, 310)
    assert given == {"slow": 10, "a": 100, "b": 100, "c": 100}


def test_newcomer_starts_level() -> None:
    """Who was away is owed nothing: the others do not wait until a newcomer has used as much as they have."""
    turns, old, new = Turns(), room_of("old"), room_of("new")
    for index in range(6):
        turns.add(old, Chunk(index, 4 * index, 4))
    turns.charge("old", 1000.0)
    for index in range(6):
        turns.add(new, Chunk(index, 4 * index, 4))
    order = []
    for _ in range(6):
        turn = turns.next(anybody)
        assert turn is not None
        order.append(turn[0].group)
        turns.charge(turn[0].group, 1.0)
    assert order == ["old", "new"] * 3


def test_place_is_kept_and_given_up() -> None:
    """Asking again keeps the place; a chunk that waits no more is never handed out, and its room counts it no more."""
    turns, room = Turns(), room_of("g")
    first, second = Chunk(0, 0, 4), Chunk(1, 4, 4)
    for chunk in (first, second, first):
        turns.add(room, chunk)
    assert (len(turns), room.waiting_turns) == (2, 2)
    turns.discard(room, first)
    turns.discard(room, first)
    assert turns.next(anybody) == (room, second)
    assert (turns.next(anybody), len(turns), room.waiting_turns) == (None, 0, 0)


def test_only_those_who_may_hold_more_are_served() -> None:
    """A group at its limit is passed over, and keeps its chunks."""
    turns, full, other = Turns(), room_of("full"), room_of("other")
    turns.add(full, Chunk(0, 0, 4))
    turns.add(other, Chunk(0, 0, 4))
    turn = turns.next(lambda group: group != "full")
    assert turn is not None
    assert turn[0] is other
    assert turns.next(lambda group: group != "full") is None
    assert len(turns) == 1


def test_idle_groups_are_forgotten() -> None:
    """The account of a group that neither waits nor holds anything takes no memory."""
    turns, room = Turns(), room_of("waits")
    turns.add(room, Chunk(0, 0, 4))
    for number in range(1000):
        turns.charge(f"gone {number}", 1.0)
    turns.charge("holds", 1.0)
    turns.charge("waits", 1.0)
    turns.forget_idle({"holds"}.__contains__)
    assert set(turns._used_s) == {"holds", "waits"}


@pytest.mark.parametrize("others", [1, 3])
def test_one_prefill_cannot_fill_the_ring_before_others(others: int) -> None:
    """While others wait, a prefill with endless work holds one share; theirs are granted before the rest of its own."""
    driver = Driver(prefill_tp=1, decode=rank(1), ring=80, grant_horizon=4.0, group_share=0.25)
    greedy = driver.join(group="greedy")
    driver.register("long", 32, group="greedy")
    for chunk in range(8):
        driver.ask(greedy, "long", chunk)
    assert driver.handler.state.grants.live_bytes == 320, "alone, it may fill the horizon"
    modest = {f"modest-{number}": driver.join(group=f"modest-{number}") for number in range(others)}
    for group, session in modest.items():
        driver.register(group, group=group)
        answer = driver.ask(session, group)
        assert answer is not None
        assert answer.status is GrantStatus.PENDING
    outputs: list[Output] = []
    for _ in range(others):
        oldest = driver.handler.state.grants.oldest()
        assert oldest is not None
        grant = oldest.slice_of(next(iter(oldest.slots)))
        outputs += driver.scattered(driver.write({greedy: grant}, "long", oldest.chunk))
    granted = [answer.room for answer in messages(outputs, StagingRsp) if answer.status is GrantStatus.GRANTED]
    assert granted == list(modest)
