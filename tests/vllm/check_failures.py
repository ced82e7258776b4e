"""Whatever breaks, requests end, blocks come back, engines live on, and no token is ever wrong.

Two pairs serve most tests: ``finish_pair`` recomputes what it could not load, ``layer_pair`` fails those requests.
"""

import math
from typing import Any

import pytest

from tests.vllm.conftest import PlainEngine, StartPair
from tests.vllm.engines import Engine
from tests.vllm.pairs import CHUNK_TOKENS, TOKENS, Pair, PairShape, Side, random_prompts

pytestmark = [pytest.mark.timeout(1200)]

ALWAYS = 1_000_000
TAMPERING = "tests.vllm.tampering"
SHORT_PARK = {"park_s": 5.0}
"""Of a consumer: how long it keeps what a producer asks for rooms that never come."""


def do(engine: Engine, function: str, **arguments: Any) -> Any:
    """Run a function of the tampering in the one rank of an engine."""
    (result,) = engine.call(f"{TAMPERING}:{function}", **arguments)
    return result


def decode_rank(pair: Pair) -> dict[str, Any]:
    """What the consumer's half says of its rank."""
    (rank,) = do(pair.consumer, "inspect")["ranks"]
    state: dict[str, Any] = rank
    return state


def complete_right(pair: Pair, plain_engine: PlainEngine, seed: int) -> None:
    """The pair works: right tokens, by a transfer, nothing left."""
    before = do(pair.consumer, "chunks_scattered")
    prompts = random_prompts(8, seed)
    assert [answer.tokens for answer in pair.complete(prompts)] == plain_engine(pair.shape.model, "float32").complete(prompts)
    assert do(pair.consumer, "chunks_scattered") - before == sum(math.ceil(len(prompt) / CHUNK_TOKENS) for prompt in prompts)
    pair.assert_nothing_left()


def computed(pair: Pair, prompts: list[list[int]]) -> list[dict[str, Any]]:
    """What the producer tells the consumer of each prompt, once it has computed all of them."""
    answers = [request.result() for request in [pair.prefill(prompt) for prompt in prompts]]
    params = [answer.kv for answer in answers if answer.kv is not None]
    assert len(params) == len(prompts)
    return params


def test_spoiled_bytes_are_written_again(plain_engine: PlainEngine, finish_pair: Pair) -> None:
    """One head of what was staged is zero in three writes: the checksum refuses each, and the right bytes come after it."""
    pair = finish_pair
    before = do(pair.producer, "spoiled_writes")
    do(pair.producer, "spoil_writes", times=3)
    complete_right(pair, plain_engine, seed=31)
    assert do(pair.producer, "spoiled_writes") - before == 3


def test_without_checksums_spoiled_bytes_change_tokens(plain_engine: PlainEngine, start_pair: StartPair) -> None:
    """The control: nobody checks, so one head of zeros gives other tokens than the right ones."""
    producer = Side(settings={"checksums": False, "room_deadline_s": 15.0})
    pair = start_pair(PairShape(producer=producer, consumer=Side(settings={"checksums": False} | SHORT_PARK)))
    prompts = random_prompts(8, seed=32)
    do(pair.producer, "spoil_writes", times=ALWAYS)
    expected = plain_engine(pair.shape.model, "float32").complete(prompts)
    answers = pair.complete(prompts)
    assert {answer.reason for answer in answers} == {"length"}
    assert sum(answer.tokens != right for answer, right in zip(answers, expected, strict=True)) >= len(prompts) // 2
    pair.assert_nothing_left()
    # And in passing: what nobody asks for comes back at its deadline.
    computed(pair, prompts)
    pair.assert_nothing_left()


def test_what_cannot_be_loaded_is_recomputed(plain_engine: PlainEngine, finish_pair: Pair) -> None:
    """Policy ``recompute``: no write ever passes the check, and yet every token is right."""
    pair = finish_pair
    prompts = random_prompts(8, seed=33)
    do(pair.producer, "spoil_writes", times=ALWAYS)
    answers = pair.complete(prompts)
    do(pair.producer, "spoil_writes", times=0)
    assert [answer.tokens for answer in answers] == plain_engine(pair.shape.model, "float32").complete(prompts)
    pair.assert_nothing_left()
    complete_right(pair, plain_engine, seed=34)


def test_what_cannot_be_loaded_fails(plain_engine: PlainEngine, layer_pair: Pair) -> None:
    """Policy ``fail``: those requests end with an error, without any token, and those after them are right."""
    pair = layer_pair
    do(pair.producer, "spoil_writes", times=ALWAYS)
    answers = pair.complete(random_prompts(8, seed=35))
    do(pair.producer, "spoil_writes", times=0)
    assert {(answer.reason, answer.tokens) for answer in answers} == {("error", ())}
    pair.assert_nothing_left()
    complete_right(pair, plain_engine, seed=36)


def test_a_request_is_aborted_while_it_waits(plain_engine: PlainEngine, finish_pair: Pair) -> None:
    """Aborted at the consumer before a byte has come: its blocks come back, and the producer's when it comes too late."""
    pair = finish_pair
    prompts = random_prompts(6, seed=37)
    rooms = [{"staging_room": f"aborted-{number}", "staging_group": pair.group} for number in range(len(prompts))]
    waiting = [
        pair.decode(prompt, {"do_remote_prefill": True, "do_remote_decode": False, **room})
        for prompt, room in zip(prompts, rooms, strict=True)
    ]
    pair.consumer.until(f"{TAMPERING}:rooms_live", count=len(rooms))
    for request in waiting:
        request.abort()
    assert {request.result().reason for request in waiting} == {"abort"}
    assert pair.consumer.idle().free_blocks == pair.consumer_start.free_blocks
    late = [pair.prefill(prompt, staging_room=room["staging_room"]) for prompt, room in zip(prompts, rooms, strict=True)]
    assert {request.result().reason for request in late} == {"length"}
    pair.assert_nothing_left()
    complete_right(pair, plain_engine, seed=38)


def test_a_request_is_aborted_in_the_middle_of_its_transfer(plain_engine: PlainEngine, finish_pair: Pair) -> None:
    """Aborted while a write to its grant is under way: the blocks of both sides come back once nobody can write any more."""
    pair = finish_pair
    prompts = random_prompts(4, seed=39)
    do(pair.producer, "hold_writes")
    params = computed(pair, prompts)
    decodes = [pair.decode(prompt, kv) for prompt, kv in zip(prompts, params, strict=True)]
    pair.producer.until(f"{TAMPERING}:write_is_held")
    for request in decodes:
        request.abort()
    do(pair.producer, "release_writes")
    assert {request.result().reason for request in decodes} == {"abort"}
    pair.assert_nothing_left()
    complete_right(pair, plain_engine, seed=40)


def test_a_request_is_rejected_before_it_is_scheduled(plain_engine: PlainEngine, finish_pair: Pair) -> None:
    """The consumer never looks at it: the producer is told, and has its blocks back long before its own deadline."""
    pair = finish_pair
    prompts = random_prompts(6, seed=41)
    params = computed(pair, prompts)
    rejected = [pair.consumer.generate(prompt, TOKENS, kv, abort=True) for prompt, kv in zip(prompts, params, strict=True)]
    assert {request.result().reason for request in rejected} == {"abort"}
    pair.assert_nothing_left()
    complete_right(pair, plain_engine, seed=42)


def test_the_region_is_replaced(plain_engine: PlainEngine, finish_pair: Pair) -> None:
    """The producer stands still in the middle of a write until the consumer has a new ring: the rooms go on in that one."""
    pair = finish_pair
    epoch = decode_rank(pair)["epoch"]
    prompts = random_prompts(4, seed=43)
    do(pair.producer, "hold_writes")
    params = computed(pair, prompts)
    decodes = [pair.decode(prompt, kv) for prompt, kv in zip(prompts, params, strict=True)]
    pair.producer.until(f"{TAMPERING}:write_is_held")
    pair.producer.freeze()
    try:
        pair.consumer.until(f"{TAMPERING}:region_differs", epoch=epoch)
    finally:
        pair.producer.thaw()
    do(pair.producer, "release_writes")
    answers = [request.result() for request in decodes]
    assert [answer.tokens for answer in answers] == plain_engine(pair.shape.model, "float32").complete(prompts)
    pair.assert_nothing_left()
    complete_right(pair, plain_engine, seed=44)


def test_the_producer_is_killed(plain_engine: PlainEngine, finish_pair: Pair) -> None:
    """SIGKILL in the middle of a write: the consumer recomputes what it waited for, and works with the next life."""
    pair = finish_pair
    prompts = random_prompts(4, seed=45)
    do(pair.producer, "hold_writes")
    params = computed(pair, prompts)
    decodes = [pair.decode(prompt, kv) for prompt, kv in zip(prompts, params, strict=True)]
    pair.producer.until(f"{TAMPERING}:write_is_held")
    pair.producer.kill()
    answers = [request.result() for request in decodes]
    assert [answer.tokens for answer in answers] == plain_engine(pair.shape.model, "float32").complete(prompts)
    assert pair.consumer.idle().free_blocks == pair.consumer_start.free_blocks
    pair.restart_producer()
    complete_right(pair, plain_engine, seed=46)


def test_the_consumer_is_killed_and_started_again(plain_engine: PlainEngine, layer_pair: Pair) -> None:
    """SIGKILL in the middle of transfers: the producer's blocks come back, and it works with the next life."""
    pair = layer_pair
    prompts = random_prompts(6, seed=47, longest=2 * CHUNK_TOKENS)
    do(pair.producer, "hold_writes")
    for prompt, kv in zip(prompts, computed(pair, prompts), strict=True):
        pair.decode(prompt, kv)
    pair.consumer.until(f"{TAMPERING}:rooms_live", count=len(prompts))
    pair.producer.until(f"{TAMPERING}:write_is_held")
    pair.consumer.kill()
    do(pair.producer, "release_writes")
    pair.restart_consumer()
    assert pair.producer.idle().free_blocks == pair.producer_start.free_blocks
    complete_right(pair, plain_engine, seed=48)


SCARCE: dict[str, Any] = {
    "block_size": 32,
    "num_gpu_blocks_override": 48,
    "max_model_len": 1024,
    "max_num_batched_tokens": 128,
    # Let a prompt begin although there is no room for all of it.
    "scheduler_reserve_full_isl": False,
}


@pytest.mark.slow
@pytest.mark.parametrize("save", ["finish", "layer"])
def test_the_producer_preempts(save: str, plain_engine: PlainEngine, start_pair: StartPair) -> None:
    """Prompts beside completions that grow until not all fit: some are begun again in other blocks; every token is right."""
    pair = start_pair(PairShape(save=save, producer=Side(arguments=SCARCE), consumer=Side(settings=SHORT_PARK)))
    plain = plain_engine(pair.shape.model, "float32")
    prompts, growing = random_prompts(24, seed=51, longest=500), random_prompts(6, seed=53, longest=300)
    completions = [pair.producer.generate(prompt, 500) for prompt in growing]
    answers = pair.complete(prompts)
    assert [answer.tokens for answer in answers] == plain.complete(prompts)
    assert [completion.result().tokens for completion in completions] == plain.complete(growing, tokens=500)
    assert pair.producer.idle().preemptions > 0
    pair.assert_nothing_left()


@pytest.mark.slow
def test_the_consumer_preempts(plain_engine: PlainEngine, start_pair: StartPair) -> None:
    """Completions that do not fit together while others load: some are computed again, and the tokens are right."""
    pair = start_pair(PairShape(save="layer", consumer=Side(arguments=SCARCE)))
    prompts = random_prompts(24, seed=52, longest=400)
    answers = pair.complete(prompts, tokens=200)
    assert [answer.tokens for answer in answers] == plain_engine(pair.shape.model, "float32").complete(prompts, tokens=200)
    assert pair.consumer.idle().preemptions > 0
    pair.assert_nothing_left()
