"""The decode engine's scheduler side: what is loaded where, and what is let go unread."""

from typing import Any

import pytest

from integrations.vllm.consumer_schedule import ConsumerSchedule
from integrations.vllm.orders import DISCARD, Load, Release
from runtime.logs import logger
from tests.unit.integrations.vllm.fakes import FakeBlocks, FakeRequest, FakeStep

WANTED = {"do_remote_prefill": True, "staging_room": "room", "staging_group": "group", "remote_num_tokens": 10}


def schedule() -> ConsumerSchedule:
    """Blocks of four tokens."""
    return ConsumerSchedule(group="default", block_size=4, log=logger())


def arrived(machine: ConsumerSchedule, **params: Any) -> FakeRequest:
    """A request of ten tokens that the schedule knows; ``None`` removes a parameter."""
    given = {key: value for key, value in {**WANTED, **params}.items() if value is not None}
    request = FakeRequest("r", given)
    machine.new_request(request)
    return request


def test_whole_prompt_is_loaded() -> None:
    """All tokens come in the background, into the blocks that vLLM has allocated; then nothing comes a second time."""
    machine = schedule()
    request = arrived(machine)
    assert machine.matched_tokens(request, 0) == (10, True)
    assert machine.matched_tokens(request, 0) == (10, True)
    machine.allocated(request, FakeBlocks([7, 3, 9]), 10)
    assert machine.has_orders()
    assert machine.orders_of(FakeStep(num_scheduled_tokens={"other": 1})).loads == [Load("r", "room", "group", 10, (7, 3, 9))]
    assert machine.matched_tokens(request, 0) == (0, False)
    machine.allocated(request, FakeBlocks([7, 3, 9]), 0)
    orders = machine.orders_of(FakeStep())
    assert (orders.loads, orders.releases, orders.is_idle) == ([], [], True)
    assert request.kv_transfer_params["do_remote_prefill"] is False
    assert machine.finished(request, [7, 3, 9]) == (False, None)
    assert not machine.has_orders()


def test_room_is_for_one_request() -> None:
    """Another sample of the same prompt, or a request that was sent twice, is computed here and disturbs nothing."""
    machine = schedule()
    request = arrived(machine)
    machine.new_request(request)
    again = FakeRequest("again", dict(WANTED))
    machine.new_request(again)
    assert machine.matched_tokens(again, 0) == (0, False)
    assert again.kv_transfer_params["do_remote_prefill"] is False
    assert machine.finished(again, []) == (False, None)
    assert not machine.has_orders()
    assert machine.matched_tokens(request, 0) == (10, True)


def test_rooms_are_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of rooms is bounded, oldest first."""
    monkeypatch.setattr("integrations.vllm.consumer_schedule.REMEMBERED", 2)
    machine = schedule()
    for name in "abc":
        machine.new_request(FakeRequest(name, {**WANTED, "staging_room": name}))
    assert list(machine._takers) == ["b", "c"]


def test_local_prefix_is_not_written() -> None:
    """Blocks that the local cache holds are discarded from the room, and counted as computed."""
    machine = schedule()
    request = arrived(machine)
    assert machine.matched_tokens(request, 4) == (6, True)
    machine.allocated(request, FakeBlocks([7, 3, 9]), 6)
    assert machine.orders_of(FakeStep()).loads == [Load("r", "room", "group", 10, (DISCARD, 3, 9))]


def test_null_block_is_not_written() -> None:
    """Where vLLM has put its null block, the room's tokens are dropped."""
    machine = schedule()
    request = arrived(machine)
    machine.allocated(request, FakeBlocks([0, 3, 9]), 10)
    assert machine.orders_of(FakeStep()).loads == [Load("r", "room", "group", 10, (DISCARD, 3, 9))]


def test_longer_room_than_prompt() -> None:
    """What the room holds beyond this prompt is discarded."""
    machine = schedule()
    request = arrived(machine, remote_num_tokens=19)
    assert machine.matched_tokens(request, 0) == (10, True)
    machine.allocated(request, FakeBlocks([7, 3, 9, 11]), 10)
    assert machine.orders_of(FakeStep()).loads == [Load("r", "room", "group", 19, (7, 3, 9, DISCARD, DISCARD))]


def test_shorter_room_than_prompt() -> None:
    """What the room does not hold is computed here."""
    machine = schedule()
    request = arrived(machine, remote_num_tokens=6)
    assert machine.matched_tokens(request, 0) == (6, True)
    machine.allocated(request, FakeBlocks([7, 3]), 6)
    assert machine.orders_of(FakeStep()).loads == [Load("r", "room", "group", 6, (7, 3))]


def test_room_that_the_client_named() -> None:
    """Without a length the room holds the prompt, without a group it is the setting's."""
    machine = schedule()
    request = arrived(machine, remote_num_tokens=None, staging_group=None)
    machine.allocated(request, FakeBlocks([7, 3, 9]), 10)
    assert machine.orders_of(FakeStep()).loads == [Load("r", "room", "default", 10, (7, 3, 9))]


def test_everything_is_cached_already() -> None:
    """A full local hit loads nothing and lets the prefill engine have its blocks back."""
    machine = schedule()
    request = arrived(machine, remote_num_tokens=8)
    assert machine.matched_tokens(request, 8) == (0, False)
    machine.allocated(request, FakeBlocks([7, 3, 9]), 0)
    orders = machine.orders_of(FakeStep())
    assert (orders.loads, orders.releases) == ([], [Release("room", "group", 8)])


def test_request_that_was_never_scheduled() -> None:
    """Rejected or aborted before it had blocks: the prefill engine hears of it, and the engine makes a step for that."""
    machine = schedule()
    request = arrived(machine)
    assert machine.finished(request.ended("FINISHED_ABORTED", 0), []) == (False, None)
    assert machine.has_orders()
    assert machine.orders_of(FakeStep()).releases == [Release("room", "group", 10)]
    assert request.kv_transfer_params["do_remote_prefill"] is False
    assert machine.finished(request, []) == (False, None)
    assert not machine.has_orders()


@pytest.mark.parametrize(
    "params",
    [
        {"staging_room": None},
        {"staging_room": "ä"},
        {"remote_num_tokens": 0},
        {"remote_num_tokens": "10"},
        {"staging_group": 5},
    ],
)
def test_malformed_wish_means_no_transfer(params: dict[str, Any]) -> None:
    """The prompt is computed here, and nothing breaks."""
    machine = schedule()
    request = arrived(machine, **params)
    assert machine.matched_tokens(request, 0) == (0, False)
    machine.allocated(request, FakeBlocks([7, 3, 9]), 0)
    machine.finished(request, [7, 3, 9])
    assert not machine.has_orders()
    assert request.kv_transfer_params["do_remote_prefill"] is False


def test_params_of_another_kind() -> None:
    """What is no JSON object is no wish."""
    machine = schedule()
    request = FakeRequest("r", ["do_remote_prefill"])
    machine.new_request(request)
    assert machine.matched_tokens(request, 0) == (0, False)
