"""What a daemon answers over HTTP is what its loop says in time, and never a 200 when the loop does not."""

import json
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import pytest

import runtime.observation
from runtime.engine_protocol import EngineError
from runtime.http import Response
from runtime.metrics import Families, Measured, StageMetrics
from runtime.observation import Observation, panels_of


class Loop:
    """A loop that answers from a table, refuses, or hangs."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = dict(answers)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.hangs = False

    def call(self, op: str, **body: Any) -> "Future[dict[str, Any]]":
        """As a daemon's ``InProcessCalls``."""
        self.asked.append((op, body))
        future: Future[dict[str, Any]] = Future()
        answer = self.answers[op]
        if isinstance(answer, Exception):
            future.set_exception(answer)
        elif not self.hangs:
            future.set_result(answer)
        return future


BOX = {"room": "r", "chunk": 0, "alloc_id": 1, "round": 0, "offset": 0, "end": 50, "granted_at": 90.0}
ANSWERS: dict[str, Any] = {
    "ping": {},
    "ready": {"reasons": []},
    "explain": {"explanations": []},
    "watch": {"service": "decode"},
    "inspect": {"ranks": []},
    "measure": {"ranks": [], "ready": True},
    "history": {"ranks": [{"rank": 0, "title": "ring", "ring_bytes": 100, "now": 100.0, "boxes": [BOX]}]},
}


def describe(families: Families, measured: Measured) -> None:
    """One gauge."""
    families.gauge("ready", "Ready.", float(measured["ready"]))


class Site:
    """An observation and the loop behind it."""

    def __init__(self) -> None:
        self.loop = Loop(ANSWERS)
        self.routes = Observation(self.loop.call, StageMetrics(), describe).routes()

    def get(self, path: str, **query: str) -> Response:
        """One answer."""
        return self.routes[path](query)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    """An observation that gives a hanging loop little time."""
    monkeypatch.setattr(runtime.observation, "ANSWER_S", 0.05)
    return Site()


def test_healthy_and_ready(site: Site) -> None:
    """A loop that answers is healthy; one without reasons against it is ready."""
    assert [(site.get(path).status, site.get(path).body) for path in ("/healthz", "/readyz")] == [(200, b"ok\n")] * 2


def test_reasons_against_it_are_told(site: Site) -> None:
    """Healthy, and not ready, with every reason on a line of its own."""
    site.loop.answers["ready"] = {"reasons": ["rank 0: it is draining", "rank 1: it is draining"]}
    assert site.get("/healthz").status == 200
    answer = site.get("/readyz")
    assert (answer.status, answer.body) == (503, b"rank 0: it is draining\nrank 1: it is draining\n")


def test_a_wedged_loop_is_never_called_healthy(site: Site) -> None:
    """Nothing but the metrics succeeds, and those say that the loop does not respond."""
    site.loop.hangs = True
    for path in ("/healthz", "/readyz", "/explain", "/status.json", "/debug/ring.json", "/debug/spacetime.svg"):
        answer = site.get(path)
        assert answer.status == 503
        assert b"the daemon's loop has not answered" in answer.body
    assert b"pd_staging_loop_responsive 0.0" in site.get("/metrics").body


@pytest.mark.parametrize("code", ["closed", "busy"])
def test_a_daemon_that_ends_or_is_full_is_not_ready(site: Site, code: str) -> None:
    """Refusals of the call itself count like silence."""

    def refuse(op: str, **body: Any) -> "Future[dict[str, Any]]":  # noqa: ARG001 - it refuses whatever is asked
        raise EngineError(code, "no more")

    routes = Observation(refuse, StageMetrics(), describe).routes()
    assert [routes[path]({}).status for path in ("/healthz", "/readyz")] == [503, 503]
    site.loop.answers["ping"] = EngineError("closed", "the daemon stopped before it answered")
    assert site.get("/healthz").status == 503


def test_questions_reach_the_loop(site: Site) -> None:
    """Room, chunk and rank are handed on as what they are; anything else in them is the asker's mistake."""
    assert json.loads(site.get("/explain", room="r", chunk="3", rank="0", other="x").body) == {"explanations": []}
    assert site.loop.asked[-1] == ("explain", {"room": "r", "chunk": 3, "rank": 0})
    for wrong in ("-1", "x", "1" * 20, "٣"):
        with pytest.raises(ValueError, match="chunk: expected a whole number"):
            site.get("/explain", room="r", chunk=wrong)
    site.loop.answers["explain"] = EngineError("invalid", "room: expected an id", "room")
    assert (site.get("/explain", room="").status, site.get("/explain").body) == (400, b"room: expected an id\n")


def test_the_picture_is_drawn_from_the_history(site: Site) -> None:
    """One panel per rank, and at most so far back."""
    answer = site.get("/debug/spacetime.svg", rank="0")
    assert answer.content_type == "image/svg+xml"
    assert b'data-grant="r/0"' in answer.body
    assert site.loop.asked[-1] == ("history", {"rank": 0})
    assert [panel.since for panel in panels_of(ANSWERS["history"]["ranks"])] == [90.0]
    assert [panel.since for panel in panels_of(ANSWERS["history"]["ranks"], last_s=5.0)] == [95.0]


def test_the_page_may_load_nothing_from_outside(site: Site) -> None:
    """The browser is told so, and is given one file."""
    answer = site.get("/")
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert answer.body.startswith(b"<!doctype html>")
