"""Models and engines that several tests share. Nothing here needs vLLM in the process of the tests."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.vllm.model import ModelShape, make_model
from tests.vllm.pairs import Pair, PairShape, Plain

ModelFolder = Callable[[ModelShape], Path]
PlainEngine = Callable[[ModelShape, str], Plain]
StartPair = Callable[[PairShape], Pair]


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
