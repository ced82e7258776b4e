"""The two connectors that are compared, with a clock: from a request's blocks to the moment in which its engine knows their KV.

Both are timed at the same two hooks of vLLM's scheduler, so engine steps count for both. One JSON line for each load goes to
the file that ``LOADS_FILE`` names. vLLM picks some of its settings by the name ``NixlConnector``, so the class has it.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.nixl import NixlConnector as PlainNixlConnector

from integrations.vllm.connector import PdStagingConnector as PlainStagingConnector
from tests.vllm.servers import LOADS_FILE


class Stopwatch:
    """Mixed into a connector: notes when a load begins and when it has ended."""

    _began: dict[str, float]

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """A request has its blocks."""
        super().update_state_after_alloc(request, blocks, num_external_tokens)  # type: ignore[misc]
        if num_external_tokens > 0:
            self.__dict__.setdefault("_began", {})[request.request_id] = time.monotonic()

    def update_connector_output(self, connector_output: Any) -> None:
        """A step has reported what has arrived."""
        super().update_connector_output(connector_output)  # type: ignore[misc]
        for request in connector_output.finished_recving or ():
            seconds = time.monotonic() - self._began.pop(request)
            with Path(os.environ[LOADS_FILE]).open("a", encoding="utf-8") as file:
                file.write(json.dumps({"request": request, "seconds": seconds}) + "\n")


class PdStagingConnector(Stopwatch, PlainStagingConnector):
    """Ours."""


class NixlConnector(Stopwatch, PlainNixlConnector):  # type: ignore[misc]
    """vLLM's own."""
