"""The prefill engine's scheduler side: what is handed over when, and which blocks are held."""

from typing import Any

import pytest

from integrations.vllm.orders import Abandon, Decline, Finish, Submission
from integrations.vllm.producer_schedule import ProducerSchedule, clean_name
from runtime.logs import logger
from tests.unit.integrations.vllm.fakes import FakeBlocks, FakeCached, FakeNew, FakeRequest, FakeStep

WANTED = {"do_remote_decode": True}
ENDPOINTS = ("tcp://127.0.0.1:7600", "tcp://127.0.0.1:7601")


def schedule(*, by_layer: bool) -> ProducerSchedule:
    """Blocks of four tokens."""
    return ProducerSchedule(
        life="life",
        engine="engine",
        group="group",
        endpoints=ENDPOINTS,
        tp_size=2,
        block_size=4,
        by_layer=by_layer,
        log=logger(),
    )


def arrived(machine: ProducerSchedule, name: str = "r", params: Any = None, **more: Any) -> FakeRequest:
    """A request that the schedule knows."""
    request = FakeRequest(name, dict(WANTED) if params is None else params, **more)
    machine.new_request(request)
    return request


def step_of(name: str, blocks: list[int], tokens: int) -> FakeStep:
    """A first step of a request."""
    return FakeStep([FakeNew(name, blocks)], num_scheduled_tokens={name: tokens})


def later(name: str, before: int, tokens: int, blocks: list[int] | None = None, *, resumed: bool = False) -> FakeStep:
    """A further step of a request."""
    ids = None if blocks is None else (blocks,)
    return FakeStep(
        scheduled_cached_reqs=FakeCached([name], [ids], [before], {name} if resumed else set()),
        num_scheduled_tokens={name: tokens},
    )


def test_finished_request_is_sent_whole() -> None:
    """Without layers all is handed over when the request ends, its blocks are held, and the client gets the way to it."""
    machine = schedule(by_layer=False)
    request = arrived(machine)
    assert machine.matched_tokens(request, 0) == (0, False)
    machine.allocated(request, FakeBlocks([5, 6, 7]), 0)
    assert machine.orders_of(step_of("r", [5, 6, 7], 10)).submissions == []
    assert not machine.has_orders()
    held, params = machine.finished(request.ended("FINISHED_LENGTH_CAPPED"), [5, 6, 7, 8])
    assert held
    assert params == {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": "engine",
        "remote_request_id": "r",
        "remote_block_ids": [[5, 6, 7]],
        "remote_host": "127.0.0.1",
        "remote_port": 0,
        "tp_size": 2,
        "remote_num_tokens": 10,
        "staging_room": "life-1.1.r",
        "staging_group": "group",
    }
    assert machine.has_orders()
    orders = machine.orders_of(FakeStep())
    assert orders.submissions == [Submission("life-1.1.r", ENDPOINTS, 0, 10, (5, 6, 7))]
    assert orders.finishes == [Finish("r", "life-1.1.r")]
    assert orders.is_idle
    assert not orders.computed
    assert not machine.has_orders()


def test_decoded_tokens_are_not_sent() -> None:
    """A prefill that went on decoding sends its prompt only."""
    machine = schedule(by_layer=False)
    request = arrived(machine)
    _, params = machine.finished(request.ended("FINISHED_STOPPED", 15), [5, 6, 7, 8])
    assert params is not None
    assert (params["remote_num_tokens"], params["remote_block_ids"]) == (10, [[5, 6, 7]])


def test_layers_follow_the_steps() -> None:
    """With layers each step's tokens go as it begins, with the blocks so far; the end only says that there are no more."""
    machine = schedule(by_layer=True)
    request = arrived(machine)
    first = machine.orders_of(step_of("r", [5, 6], 6))
    assert first.submissions == [Submission("life-1.1.r", ENDPOINTS, 0, 6, (5, 6))]
    assert first.computed == {5, 6}
    second = machine.orders_of(later("r", 6, 4, [7]))
    assert second.submissions == [Submission("life-1.1.r", ENDPOINTS, 6, 4, (5, 6, 7))]
    assert second.computed == {6, 7}
    assert machine.orders_of(later("r", 10, 1)).submissions == []
    held, params = machine.finished(request.ended("FINISHED_LENGTH_CAPPED", 11), [5, 6, 7])
    assert held
    assert params is not None
    orders = machine.orders_of(FakeStep())
    assert (orders.submissions, orders.finishes) == ([], [Finish("r", "life-1.1.r")])


def test_cached_prefix_is_part_of_the_first_submission() -> None:
    """What the local prefix cache holds is handed over with the first step, and not waited for."""
    machine = schedule(by_layer=True)
    arrived(machine)
    orders = machine.orders_of(FakeStep([FakeNew("r", [5, 6, 7], 8)], num_scheduled_tokens={"r": 2}))
    assert orders.submissions == [Submission("life-1.1.r", ENDPOINTS, 0, 10, (5, 6, 7))]
    assert orders.computed == {7}


@pytest.mark.parametrize("status", ["FINISHED_ABORTED", "FINISHED_ERROR", "FINISHED_IGNORED"])
def test_request_that_breaks_off(status: str) -> None:
    """A request that does not end well is not sent; its blocks are held only if copies of it may run."""
    machine = schedule(by_layer=False)
    request = arrived(machine)
    assert machine.finished(request.ended(status), [5, 6, 7]) == (False, None)
    assert not machine.has_orders()
    layered = schedule(by_layer=True)
    request = arrived(layered)
    layered.orders_of(step_of("r", [5, 6], 6))
    assert layered.finished(request.ended(status, 6), [5, 6]) == (True, None)
    abandoned = layered.orders_of(FakeStep()).abandoned
    assert abandoned == [Abandon("life-1.1.r", f"the prefill engine ended the request: {status}", "r")]


@pytest.mark.parametrize("by_layer", [True, False])
def test_room_of_the_clients_name_is_declined(by_layer: bool) -> None:
    """The decode engine may wait for it already: it hears that nothing will come, though nothing was handed over here."""
    machine = schedule(by_layer=by_layer)
    request = arrived(machine, params={**WANTED, "staging_room": "mine"})
    assert machine.finished(request.ended("FINISHED_ABORTED", 0), []) == (False, None)
    assert machine.has_orders()
    reason = "the prefill engine ended the request: FINISHED_ABORTED"
    assert machine.orders_of(FakeStep()).declined == [Decline("mine", ENDPOINTS, reason)]
    assert not machine.has_orders()


def test_preempted_request_begins_another_room() -> None:
    """VLLM takes the blocks away: the room is given up before they are written, and the next attempt has another name."""
    machine = schedule(by_layer=True)
    request = arrived(machine)
    machine.orders_of(step_of("r", [5, 6], 6))
    preempting = machine.orders_of(FakeStep(preempted_req_ids={"r", "stranger"}))
    assert preempting.preempted == [Abandon("life-1.1.r", "the prefill engine preempted the request")]
    again = machine.orders_of(later("r", 0, 10, [9, 3, 4], resumed=True))
    assert again.submissions == [Submission("life-1.2.r", ENDPOINTS, 0, 10, (9, 3, 4))]
    _, params = machine.finished(request.ended("FINISHED_LENGTH_CAPPED"), [9, 3, 4])
    assert params is not None
    assert params["staging_room"] == "life-1.2.r"


def test_preemption_before_any_submission_gives_nothing_up() -> None:
    """Where nothing was handed over, a preemption concerns nobody else."""
    machine = schedule(by_layer=False)
    arrived(machine)
    machine.orders_of(step_of("r", [5, 6], 6))
    assert machine.orders_of(FakeStep(preempted_req_ids={"r"})).preempted == []


def test_preempted_room_of_the_clients_name_is_not_tried_again() -> None:
    """A room whose name the client gave has failed for good: the request goes on without a transfer."""
    machine = schedule(by_layer=True)
    request = arrived(machine, params={**WANTED, "staging_room": "mine"})
    machine.orders_of(step_of("r", [5, 6], 6))
    assert machine.orders_of(FakeStep(preempted_req_ids={"r"})).preempted[0].room == "mine"
    assert machine.orders_of(later("r", 0, 10, [9, 3, 4], resumed=True)).submissions == []
    assert machine.finished(request.ended("FINISHED_LENGTH_CAPPED"), [9, 3, 4]) == (False, None)


def test_client_chooses_room_and_decode_engine() -> None:
    """What the request brings goes before the settings."""
    machine = schedule(by_layer=False)
    request = arrived(machine, params={**WANTED, "staging_room": "mine", "decode_endpoints": ["tcp://10.0.0.1:1"]})
    _, params = machine.finished(request.ended("FINISHED_LENGTH_CAPPED"), [5, 6, 7])
    assert params is not None
    assert params["staging_room"] == "mine"
    assert machine.orders_of(FakeStep()).submissions == [Submission("mine", ("tcp://10.0.0.1:1",), 0, 10, (5, 6, 7))]


@pytest.mark.parametrize("params", [None, {}, {"do_remote_decode": False}, [1], {**WANTED, "staging_room": 7}])
def test_request_without_a_usable_wish_is_served_alone(params: Any) -> None:
    """No wish, or a malformed one, means no transfer and no held block."""
    machine = schedule(by_layer=True)
    request = FakeRequest("r", params)
    machine.new_request(request)
    assert machine.orders_of(step_of("r", [5, 6, 7], 10)).submissions == []
    assert machine.finished(request.ended("FINISHED_LENGTH_CAPPED"), [5, 6, 7]) == (False, None)


def test_missing_blocks_are_never_sent() -> None:
    """Where vLLM has put its null block, or has no blocks at all, there is nothing to send."""
    for blocks in ([0, 6, 7], []):
        machine = schedule(by_layer=True)
        request = arrived(machine)
        machine.orders_of(step_of("r", blocks, 10))
        assert machine.finished(request.ended("FINISHED_LENGTH_CAPPED"), blocks) == (False, None)


def test_room_names_are_ids() -> None:
    """A request's id becomes part of a room's name: cleaned, cut, and told apart from what it could be mixed up with."""
    assert clean_name("cmpl-1.a:b_c") == "cmpl-1.a:b_c"
    assert clean_name("ä b").startswith("__b~")
    assert clean_name("ä b") != clean_name("ö b")
    assert len(clean_name("x" * 500)) < 80
