"""One deployment, ready to be played on: workspace, pools, daemons and the engines of the chosen kind."""

from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from lab.engines import SimulatedEngines
from lab.model.config import MODELS
from lab.model.engines import ModelEngines
from lab.model.processes import EngineProcesses
from lab.model.single import MOST_OUTPUT
from lab.model.single_process import SingleProcess
from lab.pair import PRODUCT, DaemonPair, Programs
from lab.pools import PoolSet, pool_sizes
from lab.report import RunReport
from lab.shape import PairShape, ShapeError
from lab.workload import Request
from lab.workspace import Workspace


class Engines(Protocol):
    """What plays requests. ``report`` collects what becomes of them."""

    report: RunReport

    async def play(self, request: Request) -> None:
        """Carry one request to its end."""

    def judge(self) -> None:
        """Compare what has not been compared yet. No request is in flight; may take a while."""


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """Which engines: ``single`` is the process that the model's answers are compared with, ``None`` for simulated engines."""

    single: SingleProcess | None = None
    seed: int = 0
    """Of KV bytes, or of prompts. The model's weights come from seed 0."""

    @classmethod
    def model(cls, attention: str, seed: int) -> "EngineChoice":
        """The model with this kind of attention."""
        return cls(SingleProcess(MODELS[attention], WEIGHTS_SEED), seed)


WEIGHTS_SEED = 0


@dataclass(frozen=True, slots=True)
class Deployment:
    """Processes and engines. ``run`` starts them, keeps them alive while its argument runs, and returns what that returned."""

    pair: DaemonPair
    engines: Engines
    run: Callable[[Coroutine[Any, Any, None]], Coroutine[Any, Any, None]]
    workspace: Workspace


@contextmanager
def deploy(
    choice: EngineChoice,
    shape: PairShape,
    requests: Sequence[Request],
    concurrency: int,
    say: Callable[[str], None],
    report: RunReport,
    *,
    deadline_s: float,
    programs: Programs = PRODUCT,
    settings: Sequence[str] = (),
) -> Iterator[Deployment]:
    """Make everything for these requests; nothing of it is left at the end. Raises ``PoolError``."""
    longest = [replace(request, num_tokens=request.num_tokens + MOST_OUTPUT) for request in requests]
    sizes = pool_sizes(shape, requests if choice.single is None else longest, concurrency)
    with (
        Workspace() as workspace,
        PoolSet.create(workspace.pools, shape, sizes) as pools,
        DaemonPair(shape, workspace, pools, say, programs, settings) as pair,
    ):
        if choice.single is None:
            simulated = SimulatedEngines(shape, pools, pair, report, seed=choice.seed, deadline_s=deadline_s)
            yield Deployment(pair, simulated, pair.run, workspace)
            return
        with EngineProcesses(shape, workspace, pools, choice.single.config.name, WEIGHTS_SEED) as processes:
            engines = ModelEngines(
                shape, pools, pair, processes, report, choice.single, seed=choice.seed, deadline_s=deadline_s
            )
            yield Deployment(pair, engines, partial(processes.run, pair), workspace)


def check_model_fits(attention: str, shape: PairShape) -> None:
    """Raise ``ShapeError`` if the model cannot be split over the ranks of either side."""
    for side, tp_size in (("prefill", shape.group_size), ("decode", shape.decode_ranks)):
        problem = MODELS[attention].tp_problem(tp_size)
        if problem is not None:
            raise ShapeError(f"{side}: {problem}")
