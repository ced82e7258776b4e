"""A daemon's side of being observed: its telemetry, and its HTTP port where it has one."""

from contextlib import ExitStack
from functools import partial

from runtime.addresses import is_loopback
from runtime.http import HttpEndpoint
from runtime.logs import logger
from runtime.metrics import StageMetrics
from runtime.observation import Call, Describe, Observation
from runtime.telemetry import Telemetry
from runtime.tracing import open_tracer


class Observed:
    """Opened with the daemon's other resources, answers from ``start`` on, and ends with them."""

    def __init__(self, service: str, instance: str, otlp_endpoint: str, undo: ExitStack) -> None:
        self._undo = undo
        self._http: HttpEndpoint | None = None
        metrics = StageMetrics()
        dropped = partial(metrics.dropped, "span")
        self.telemetry = Telemetry(open_tracer(otlp_endpoint, f"pd-staging-{service}", instance, dropped), metrics)
        undo.callback(self.telemetry.close)

    def listen(self, host: str, port: int, call: Call, describe: Describe) -> None:
        """Take the HTTP port; 0 is none. Raises ``StartError``."""
        if not port:
            return
        routes = Observation(call, self.telemetry.metrics, describe).routes()
        self._http = HttpEndpoint(host, port, routes)
        self._undo.callback(self._http.close)
        if not is_loopback(host):
            logger().warning("http_port_public", address=self._http.address, reason="room ids and metrics can be read there")

    @property
    def address(self) -> str | None:
        """Where the HTTP port is."""
        return None if self._http is None else self._http.address

    def start(self) -> None:
        """Begin to answer."""
        if self._http is not None:
            self._http.start()
