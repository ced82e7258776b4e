"""Several prefill daemons of equal size, commanded as one: rank ``r`` of all is rank ``r % size`` of daemon ``r // size``."""

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from prefill_service.engine import PrefillEngine, PrefillEngineClient
from runtime.engine_client import EngineClient


class PrefillFleet(PrefillEngineClient):
    """One connection per daemon. Close it."""

    def __init__(self, paths: Sequence[Path], size: int) -> None:
        self._size = size
        self._clients = [EngineClient(path) for path in paths]
        PrefillEngine.__init__(self, self._route)

    def pings(self) -> "list[Future[dict[str, Any]]]":
        """Ask each daemon which one it is."""
        return [client.call("ping") for client in self._clients]

    def close(self) -> None:
        """End all connections; open futures fail."""
        for client in self._clients:
            client.close()

    def _route(self, op: str, *, rank: int = 0, **body: Any) -> "Future[dict[str, Any]]":  # noqa: ANN401 - a command's body is open
        daemon, local = divmod(rank, self._size)
        return self._clients[daemon].call(op, rank=local, **body)
