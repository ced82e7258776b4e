"""What a daemon answers on its HTTP port: metrics, health, the ring, explanations, and a page for people.

    http thread --call("watch")--> loop thread: every machine as plain values --> http thread: an answer

Whatever an answer is made of comes from the loop, at most ``ANSWER_S`` late. A loop that does not answer in time is wedged:
then nothing here says 200 but the metrics, and those say that it is wedged.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from runtime.engine_protocol import EngineError
from runtime.http import Query, Response, Route
from runtime.metrics import Families, LoopCollector, Measured, StageMetrics
from runtime.spacetime import Box, Panel, draw
from runtime.status_page import CONTENT_SECURITY_POLICY, status_page

ANSWER_S: Final = 2.0
PICTURE_S: Final = 180.0
"""How far back the picture of the ring goes."""

Call = Callable[..., "Future[dict[str, Any]]"]
Describe = Callable[[Families, Measured], None]


class Wedged(Exception):
    """The loop did not answer in time, or is gone."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The answers of one daemon, by path. ``call`` carries out an engine's command from any thread."""

    call: Call
    metrics: StageMetrics
    describe: Describe

    def routes(self) -> Mapping[str, Route]:
        """The table for ``HttpEndpoint``. Registers the daemon's collector: call it once."""
        self.metrics.registry.register(LoopCollector(self._measure, self.describe))
        return {
            "/": self._page,
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/metrics": self._metrics,
            "/explain": self._explain,
            "/status.json": lambda _: self._plain("watch"),
            "/debug/ring.json": lambda _: self._plain("inspect"),
            "/debug/spacetime.svg": self._picture,
        }

    def ask(self, op: str, **body: Any) -> dict[str, Any]:  # noqa: ANN401 - a command's body is open
        """What the loop answers. Raises ``Wedged``, or ``EngineError`` for a refusal."""
        try:
            future = self.call(op, **body)
        except EngineError as error:
            raise Wedged(error.message) from error
        try:
            return future.result(ANSWER_S)
        except TimeoutError as error:
            future.cancel()
            raise Wedged(f"the daemon's loop has not answered for {ANSWER_S:g} s") from error
        except CancelledError as error:
            raise Wedged("the daemon is ending") from error
        except EngineError as error:
            if error.code == "closed":
                raise Wedged(error.message) from error
            raise

    def _measure(self) -> Measured | None:
        try:
            return self.ask("measure")
        except Wedged:
            return None

    def _page(self, query: Query) -> Response:  # noqa: ARG002 - a route's signature
        policy = {"Content-Security-Policy": CONTENT_SECURITY_POLICY, "Referrer-Policy": "no-referrer"}
        return Response(status_page(), "text/html; charset=utf-8", headers=policy)

    def _healthz(self, query: Query) -> Response:  # noqa: ARG002 - as above
        try:
            self.ask("ping")
        except Wedged as wedged:
            return _words(HTTPStatus.SERVICE_UNAVAILABLE, [str(wedged)])
        return _words(HTTPStatus.OK, [])

    def _readyz(self, query: Query) -> Response:  # noqa: ARG002 - as above
        try:
            reasons = self.ask("ready")["reasons"]
        except Wedged as wedged:
            reasons = [str(wedged)]
        return _words(HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK, reasons)

    def _metrics(self, query: Query) -> Response:  # noqa: ARG002 - as above
        return Response(generate_latest(self.metrics.registry), CONTENT_TYPE_LATEST)

    def _explain(self, query: Query) -> Response:
        body: dict[str, Any] = {name: query[name] for name in ("room",) if name in query}
        body |= {name: _number(query[name], name) for name in ("chunk", "rank") if name in query}
        return self._plain("explain", **body)

    def _picture(self, query: Query) -> Response:
        body = {"rank": _number(query["rank"], "rank")} if "rank" in query else {}
        try:
            panels = panels_of(self.ask("history", **body)["ranks"], PICTURE_S)
        except (Wedged, EngineError) as error:
            return _failed(error)
        return Response(draw(panels).encode(), "image/svg+xml")

    def _plain(self, op: str, **body: Any) -> Response:  # noqa: ANN401 - as in ``ask``
        try:
            return Response(json.dumps(self.ask(op, **body)).encode())
        except (Wedged, EngineError) as error:
            return _failed(error)


def panels_of(ranks: Sequence[Mapping[str, Any]], last_s: float | None = None) -> list[Panel]:
    """Pictures of what ``history`` answered; ``last_s`` limits how far back they go."""
    panels = []
    for rank in ranks:
        boxes = [Box(**box) for box in rank["boxes"]]
        now = float(rank["now"])
        since = min((box.granted_at for box in boxes), default=now - 1.0)
        if last_s is not None:
            since = max(since, now - last_s)
        panels.append(Panel(str(rank["title"]), int(rank["ring_bytes"]), since, now, boxes))
    return panels


def _number(text: str, name: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise ValueError(f"{name}: expected a whole number, got {text[:40]!r}")
    return int(text)


def _words(status: int, reasons: Sequence[str]) -> Response:
    text = "ok\n" if not reasons else "".join(f"{reason}\n" for reason in reasons)
    return Response(text.encode(), "text/plain; charset=utf-8", status)


def _failed(error: Wedged | EngineError) -> Response:
    if isinstance(error, Wedged):
        return _words(HTTPStatus.SERVICE_UNAVAILABLE, [str(error)])
    return _words(HTTPStatus.BAD_REQUEST, [error.message])
