"""The pool that comes with an engine's ``register_pool``."""

from runtime.engine_protocol import Body, EngineError
from runtime.pool import KvPool
from runtime.pool_descriptor import PoolDescriptor
from runtime.pool_layout import PoolError


def read_pool(body: Body) -> KvPool:
    """Open the pool that the request describes; an engine in the same process may hand over the pool itself."""
    given = body.get("pool")
    if isinstance(given, KvPool):
        return given
    try:
        return KvPool.open(PoolDescriptor.from_map(given))
    except PoolError as error:
        raise EngineError("pool", str(error), "pool") from error
