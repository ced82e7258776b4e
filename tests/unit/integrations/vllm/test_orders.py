"""Orders travel from vLLM's scheduler to its workers."""

import pickle

from integrations.vllm.orders import Abandon, ConsumerOrders, Decline, Finish, Load, Orders, ProducerOrders, Release, Submission


def test_orders_survive_the_way() -> None:
    """VLLM pickles them, on its own side of the engine's processes; they arrive equal."""
    consumer = ConsumerOrders([Load("r", "room", "g", 3, (1,))], [Release("room", "g", 3)], is_idle=True)
    submissions, finishes = [Submission("room", ("tcp://a:1",), 0, 3, (1,))], [Finish("r", "room")]
    given_up, declined = [Abandon("room", "x", "r")], [Decline("room", ("tcp://a:1",), "x")]
    producer = ProducerOrders([Abandon("room", "x")], frozenset({1}), submissions, finishes, given_up, declined)
    every: tuple[Orders, ...] = (consumer, producer)
    assert pickle.loads(pickle.dumps(every)) == every
