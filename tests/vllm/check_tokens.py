"""Greedy tokens after a transfer are those of an engine that did none, whatever the parallelism and layout of the two sides."""

import math

import pytest

from tests.vllm.conftest import PlainEngine, StartPair
from tests.vllm.engines import Answer
from tests.vllm.model import ModelShape
from tests.vllm.pairs import CHUNK_TOKENS, TOKENS, Pair, PairShape, Side, random_prompts

pytestmark = pytest.mark.timeout(1200)

SAVES = ("finish", "layer")
PROMPTS = 104
SCATTERED = "tests.vllm.tampering:chunks_scattered"
ONE_HEAD = ModelShape(kv_heads=1, seed=11)
EVERY_HEAD = ModelShape(hidden=512, kv_heads=8, head_dim=64, intermediate=1024, seed=12)
GROUPED = ModelShape(kv_heads=2, seed=13)


def tokens_of(answers: list[Answer]) -> list[tuple[int, ...]]:
    """Their tokens; every request ended because it was long enough."""
    assert {answer.reason for answer in answers} == {"length"}
    return [answer.tokens for answer in answers]


def compare(pair: Pair, plain_engine: PlainEngine, prompts: list[list[int]]) -> None:
    """Every token is right, by a transfer of every prompt to every rank, and nothing is left behind."""
    expected = plain_engine(pair.shape.model, pair.shape.dtype).complete(prompts)
    chunks = sum(math.ceil(len(prompt) / CHUNK_TOKENS) for prompt in prompts)
    before = pair.consumer.call(SCATTERED)
    assert tokens_of(pair.complete(prompts)) == expected
    assert pair.consumer.call(SCATTERED) == [count + chunks for count in before]
    pair.assert_nothing_left()


@pytest.mark.parametrize("save", SAVES)
def test_tokens_are_those_of_an_engine_without_transfer(
    plain_engine: PlainEngine, save: str, request: pytest.FixtureRequest
) -> None:
    """A hundred random prompts, as many at once as the engines take: every token is right and every block comes back."""
    compare(request.getfixturevalue(f"{save}_pair"), plain_engine, random_prompts(PROMPTS, seed=11))


@pytest.mark.slow
@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize(("producer_tp", "consumer_tp"), [(2, 1), (1, 2)])
def test_unequal_tensor_parallelism(
    plain_engine: PlainEngine, start_pair: StartPair, producer_tp: int, consumer_tp: int, save: str
) -> None:
    """The same where one side has two ranks and the other has one."""
    pair = start_pair(PairShape(save=save, producer=Side(producer_tp), consumer=Side(consumer_tp)))
    compare(pair, plain_engine, random_prompts(PROMPTS, seed=producer_tp * 10 + consumer_tp))


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(PairShape(producer=Side(arguments={"block_size": 32})), id="blocks of 32 to 128"),
        pytest.param(PairShape(save="layer", consumer=Side(arguments={"block_size": 64})), id="blocks of 128 to 64"),
        pytest.param(PairShape(model=ONE_HEAD, producer=Side(2)), id="one head on two producers"),
        pytest.param(PairShape(model=ONE_HEAD, save="layer", consumer=Side(2)), id="one head on two consumers"),
        pytest.param(PairShape(model=EVERY_HEAD), id="as many KV heads as heads"),
        pytest.param(PairShape(model=GROUPED, save="layer"), id="four heads to a KV head"),
        pytest.param(PairShape(dtype="bfloat16"), id="bf16"),
        pytest.param(
            PairShape(dtype="bfloat16", save="layer", producer=Side(arguments={"block_size": 64})),
            id="bf16, blocks of 64 to 128",
        ),
    ],
)
def test_layouts_meet(shape: PairShape, plain_engine: PlainEngine, start_pair: StartPair) -> None:
    """Whatever pages, heads and numbers the two sides keep, the tokens are right."""
    compare(start_pair(shape), plain_engine, random_prompts(24, seed=5))


def test_a_transfer_overlaps_with_the_prefill(plain_engine: PlainEngine, layer_pair: Pair) -> None:
    """With a room of the client's choice both sides are asked at once; chunked prefills give the right tokens."""
    pair = layer_pair
    prompts = random_prompts(16, seed=3, longest=1500)
    prefills, decodes = [], []
    for number, prompt in enumerate(prompts):
        room = {"staging_room": f"chosen-{number}"}
        decode = {"do_remote_prefill": True, "do_remote_decode": False, "staging_group": pair.group, **room}
        decodes.append(pair.decode(prompt, decode))
        prefills.append(pair.prefill(prompt, **room))
    assert tokens_of([decode.result() for decode in decodes]) == plain_engine(pair.shape.model, "float32").complete(prompts)
    assert {prefill.result().reason for prefill in prefills} == {"length"}
    pair.assert_nothing_left()


@pytest.mark.slow
def test_a_cached_prefix_is_not_written_again(plain_engine: PlainEngine, start_pair: StartPair) -> None:
    """Prompts that share beginnings, with prefix caching on both sides: what the consumer has already stays as it is."""
    caching = Side(arguments={"enable_prefix_caching": True})
    pair = start_pair(PairShape(producer=caching, consumer=caching))
    stems = random_prompts(3, seed=21, longest=600)
    tails = random_prompts(24, seed=22, longest=200)
    prompts = [stems[number % len(stems)] + tail for number, tail in enumerate(tails)]
    plain = plain_engine(pair.shape.model, "float32")
    for begin in range(0, len(prompts), 6):
        some = prompts[begin : begin + 6]
        # Twice: the second time all full blocks are there.
        for _ in range(2):
            assert tokens_of(pair.complete(some)) == plain.complete(some)
    pair.assert_nothing_left()


def test_a_prompt_without_transfer_is_computed(plain_engine: PlainEngine, finish_pair: Pair) -> None:
    """Both engines still answer requests that say nothing of a transfer."""
    pair = finish_pair
    prompts = random_prompts(4, seed=9)
    expected = plain_engine(pair.shape.model, "float32").complete(prompts)
    for engine in (pair.producer, pair.consumer):
        requests = [engine.generate(prompt, TOKENS) for prompt in prompts]
        assert [request.result().tokens for request in requests] == expected
    pair.assert_nothing_left()
