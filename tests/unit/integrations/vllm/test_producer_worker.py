"""A prefill engine's worker: what is handed over when, and that every held request is reported exactly once."""

from threading import Thread

import pytest

from integrations.vllm.orders import Abandon, Decline, Finish, ProducerOrders, Submission
from integrations.vllm.producer_worker import ProducerWorker
from integrations.vllm.reports import Due
from integrations.vllm.step_gate import NotComputedError, StepGate
from runtime.engine_protocol import EngineError
from runtime.logs import logger
from tests.unit.integrations.vllm.fakes import FakeHalf

ENDPOINTS = ("tcp://127.0.0.1:7600",)
SUBMISSION = Submission("room", ENDPOINTS, 0, 10, (5, 6, 7))
WHOLE = ProducerOrders(submissions=[SUBMISSION], finishes=[Finish("r", "room")])
IDLE = ProducerOrders(is_idle=True)
NOTHING, SENT = Due(), Due(sent=frozenset({"r"}))


def worker(half: FakeHalf, gate: StepGate | None = None) -> ProducerWorker:
    """Rank 1, which waits little."""
    gate = gate or StepGate(("layer",), 0.001)
    return ProducerWorker(half, gate, rank=1, preempt_wait_s=30, idle_wait_s=0.001, log=logger())


def step(subject: ProducerWorker, orders: ProducerOrders, *, broken: bool = False) -> None:
    """A whole step."""
    if orders.preempted:
        subject.preempt(orders)
    subject.begin_step(orders)
    subject.layer_saved("layer")
    subject.end_step(orders, broken=broken)


@pytest.mark.parametrize("code", ["", "aborted_by_decode", "deadline", "decode_restarted"])
def test_finished_request(code: str) -> None:
    """Tokens, the end of them, and one report when the room has ended, in whatever way."""
    half = FakeHalf()
    subject = worker(half)
    step(subject, WHOLE)
    assert half.names() == ["submit_chunk", "finish_room", "wait_room"]
    body = {"rank": 1, "decode": ENDPOINTS, "tokens": (0, 10), "pages": (5, 6, 7)}
    assert half.body("submit_chunk") == body
    assert subject.take({"r"}, WHOLE) == NOTHING
    half.end("room", code)
    assert subject.take(set(), WHOLE) == SENT
    assert subject.take({"r"}, None) == NOTHING


@pytest.mark.parametrize("code", ["unknown_room", "no_pool", "closed"])
def test_refused_submission(code: str) -> None:
    """Where the half takes nothing, the blocks come back at once, and a decode engine that may know the room hears of it."""
    half = FakeHalf()
    half.refusals = {name: EngineError(code, "because") for name in ("submit_chunk", "finish_room", "wait_room", "abort_room")}
    subject = worker(half)
    step(subject, WHOLE)
    assert "abort_room" in half.names()
    assert subject.take(set(), WHOLE) == SENT


def test_no_place_for_the_question() -> None:
    """Blocks are held until the half has said how the room ended; it is asked again with the next step."""
    half = FakeHalf()
    half.full.add("wait_room")
    subject = worker(half)
    step(subject, WHOLE)
    assert subject.take(set(), WHOLE) == NOTHING
    half.full.clear()
    step(subject, ProducerOrders(is_idle=True))
    half.end("room")
    assert subject.take(set(), ProducerOrders(is_idle=True)) == SENT


def test_second_finish_is_ignored() -> None:
    """There is one report for each request, whatever is ordered."""
    half = FakeHalf()
    subject = worker(half)
    step(subject, WHOLE)
    step(subject, ProducerOrders(finishes=[Finish("r", "room")]))
    assert half.names().count("finish_room") == 1


def test_layers_leave_while_they_are_computed() -> None:
    """With layers, tokens are handed over before the forward pass, and their copies are held back layer by layer."""
    half, gate = FakeHalf(), StepGate(("layer", "last"), 0.001)
    subject = worker(half, gate)
    orders = ProducerOrders(computed=frozenset({6, 7}), submissions=[SUBMISSION])
    subject.begin_step(orders)
    assert half.names() == ["submit_chunk"]
    gate.wait(0, [5])
    with pytest.raises(NotComputedError):
        gate.wait(0, [6])
    subject.layer_saved("layer")
    gate.wait(0, [6])
    subject.end_step(orders, broken=False)
    gate.wait(1, [6])
    assert half.names() == ["submit_chunk"]


def test_broken_forward_pass() -> None:
    """What a failed step was to compute is never copied."""
    half, gate = FakeHalf(), StepGate(("layer",), 0.001)
    step(worker(half, gate), ProducerOrders(computed=frozenset({6}), submissions=[SUBMISSION]), broken=True)
    with pytest.raises(NotComputedError):
        gate.wait(0, [6])


def test_abandoned_request() -> None:
    """A request that broke off is given up, and its blocks come back when no copy reads them any more."""
    half = FakeHalf()
    subject = worker(half)
    step(subject, ProducerOrders(abandoned=[Abandon("room", "because", "r")]))
    assert half.names() == ["abort_room", "wait_room"]
    assert subject.take({"r"}, WHOLE) == NOTHING
    half.end("room", "aborted")
    assert subject.take(set(), WHOLE) == SENT


def test_declined_room() -> None:
    """A room that never was is opened with a token that is not read, and given up: the decode side hears of it."""
    half = FakeHalf()
    subject = worker(half)
    step(subject, ProducerOrders(declined=[Decline("room", ENDPOINTS, "because")]))
    assert half.names() == ["submit_chunk", "abort_room"]
    assert (half.body("submit_chunk")["tokens"], half.body("submit_chunk")["pages"]) == ((0, 1), (0,))
    half.full.update({"submit_chunk", "abort_room"})
    step(subject, ProducerOrders(declined=[Decline("room", ENDPOINTS, "because")]))
    assert subject.take({"r"}, IDLE) == NOTHING


def test_preemption_waits_for_the_copies() -> None:
    """The blocks may be written again only when the room has ended; nothing is reported, since nothing is held."""
    half = FakeHalf()
    subject = worker(half)
    orders = ProducerOrders(preempted=[Abandon("room", "because")])
    thread = Thread(target=subject.preempt, args=(orders,))
    thread.start()
    while "room" not in half.waits:
        pass
    assert thread.is_alive()
    half.end("room", "aborted")
    thread.join()
    assert subject.take(set(), orders) == NOTHING


def test_preemption_does_not_wait_for_ever() -> None:
    """After a bound the engine goes on: what was given up is never read on the other side."""
    half = FakeHalf()
    subject = ProducerWorker(half, StepGate((), 1), rank=0, preempt_wait_s=0.001, idle_wait_s=0, log=logger())
    subject.preempt(ProducerOrders(preempted=[Abandon("room", "because")]))
    half.full.add("wait_room")
    subject.preempt(ProducerOrders(preempted=[Abandon("other", "because")]))
    assert half.names() == ["abort_room", "wait_room", "abort_room"]
