"""Models and engines that several tests share. Nothing here needs vLLM in the process of the tests."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.vllm.model import ModelShape, make_model
from tests.vllm.pairs import Pair, PairShape, Plain, Side

ModelFolder = Callable[[ModelShape], Path]
PlainEngine = Callable[[ModelShape, str], Plain]
StartPair = Callable[[PairShape], Pair]

SHORT_TIMERS = {"heartbeat_s": 0.3, "lease_s": 1.0, "grace_s": 0.3, "quarantine_s": 1.0, "park_s": 5.0}
"""Of a consumer: it soon notices that its producer has gone, or wants nothing any more."""
LONG_DEADLINE = {"room_deadline_s": 600.0}
"""Of a producer: it holds blocks longer than any test waits for them, so they come back because it was told."""


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the engines write their logs."""
    return tmp_path_factory.mktemp("engines")


@pytest.fixture(scope="session")
def model_folder() -> Iterator[ModelFolder]:
    """Makes a model of a shape at the first call for it."""
    made: dict[ModelShape, Path] = {}
    with tempfile.TemporaryDirectory(prefix="pdv-models-") as folder:

        def model(shape: ModelShape) -> Path:
            if shape not in made:
                made[shape] = make_model(Path(folder), shape)
            return made[shape]

        yield model


@pytest.fixture(scope="session")
def plain_engine(model_folder: ModelFolder, logs: Path) -> Iterator[PlainEngine]:
    """An engine without transfer for a model and a dtype: the judge of every token."""
    started: dict[tuple[ModelShape, str], Plain] = {}

    def plain(shape: ModelShape, dtype: str) -> Plain:
        if (shape, dtype) not in started:
            started[shape, dtype] = Plain(model_folder(shape), logs, dtype)
        return started[shape, dtype]

    # Nearly every test wants this one: it comes up beside the first pair.
    plain(ModelShape(), "float32")
    yield plain
    for engine in started.values():
        engine.engine.close()


@pytest.fixture(scope="session")
def finish_pair(plain_engine: PlainEngine, model_folder: ModelFolder, logs: Path) -> Iterator[Pair]:  # noqa: ARG001 - starts too
    """A pair that saves at the end and recomputes what it could not load. Each test leaves it as it was."""
    shape = PairShape(policy="recompute", producer=Side(settings=LONG_DEADLINE), consumer=Side(settings=SHORT_TIMERS))
    with Pair(shape, model_folder(shape.model), logs) as pair:
        yield pair


@pytest.fixture(scope="session")
def layer_pair(plain_engine: PlainEngine, model_folder: ModelFolder, logs: Path) -> Iterator[Pair]:  # noqa: ARG001 - starts too
    """A pair that saves layer by layer, computes long prompts in several steps, and fails what it could not load. As above."""
    producer = Side(arguments={"max_num_batched_tokens": 512}, settings=LONG_DEADLINE)
    shape = PairShape(save="layer", policy="fail", producer=producer, consumer=Side(settings=SHORT_TIMERS))
    with Pair(shape, model_folder(shape.model), logs) as pair:
        yield pair


@pytest.fixture
def start_pair(model_folder: ModelFolder, logs: Path) -> Iterator[StartPair]:
    """Starts a pair that ends with the test."""
    started: list[Pair] = []

    def start(shape: PairShape) -> Pair:
        started.append(Pair(shape, model_folder(shape.model), logs))
        return started[-1]

    yield start
    for pair in started:
        pair.close()
