"""What an engine process is told at its start: its model, its ranks and their pools, its daemon, and where to listen."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from lab.model.config import MODELS, ModelConfig
from lab.model.kv import PoolViews
from runtime.pool import KvPool
from runtime.pool_descriptor import PoolDescriptor

SINGLE_THREADED = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Environment of an engine process: its matrices are too small for threads, which would only fight over the cores."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """One engine process: the ranks of one tensor-parallel instance."""

    listen: Path
    daemon: Path
    model: str
    seed: int
    ranks: tuple[int, ...]
    """As the daemon counts them, in the order of the instance's TP ranks."""
    pools: tuple[PoolDescriptor, ...]
    chunk_tokens: int

    @property
    def config(self) -> ModelConfig:
        """The model's sizes."""
        return MODELS[self.model]

    def open_pools(self) -> list[PoolViews]:
        """Map every rank's pool."""
        return [PoolViews(KvPool.open(pool)) for pool in self.pools]

    def save(self, path: Path) -> None:
        """Write the file that ``load`` reads."""
        paths = {"listen": str(self.listen), "daemon": str(self.daemon)}
        pools = [pool.to_map() for pool in self.pools]
        rest = {"model": self.model, "seed": self.seed, "ranks": self.ranks, "chunk_tokens": self.chunk_tokens}
        path.write_text(json.dumps({**paths, "pools": pools, **rest}), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what ``save`` wrote."""
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return cls(
            listen=Path(value["listen"]),
            daemon=Path(value["daemon"]),
            model=value["model"],
            seed=value["seed"],
            ranks=tuple(value["ranks"]),
            pools=tuple(PoolDescriptor.from_map(pool) for pool in value["pools"]),
            chunk_tokens=value["chunk_tokens"],
        )


def given_assignment() -> Assignment:
    """The one that the command line names."""
    return Assignment.load(Path(sys.argv[1]))
