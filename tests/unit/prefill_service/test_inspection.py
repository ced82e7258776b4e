"""The snapshot answers which chunk waits for what, and since when."""

import json

from prefill_service.outputs import WriteChunk
from protocol.messages import Error, ErrorCode, GrantStatus, Refused, RefusedCode, Subscribe
from tests.unit.prefill_service.bench import Bench, granted, of_type, sent


def test_snapshot_is_plain_data() -> None:
    """It goes through JSON unchanged, in the middle of everything."""
    bench = Bench()
    bench.connect()
    bench.writing("writing")
    bench.whole_room("requested")
    bench.whole_room("failed")
    bench.handler.abort_room("failed", bench.now)
    bench.submit("elsewhere", 10, decode=("d9",))
    snapshot = bench.handler.snapshot()
    assert json.loads(json.dumps(snapshot)) == snapshot


def test_gated_chunk_shows_what_it_needs() -> None:
    """A chunk at the gate names its grant, the watermark it needs and the one that was heard, and its age."""
    bench = Bench()
    bench.connect()
    bench.whole_room("r")
    bench.grant("d0", "r", 0, granted(4, 20, 2), watermark=(1, 30))
    bench.run(3.0)
    (chunk,) = bench.handler.snapshot()["rooms"][0]["targets"][0]["chunks"]
    assert chunk["state"] == "granted"
    assert chunk["state_s"] == 3.0
    assert chunk["grant"] == {"alloc_id": 4, "round": 2, "end": 80}
    assert chunk["gate"] == {"needs": [1, 80], "has": [1, 30]}
    assert bench.handler.snapshot()["peers"][0]["session"]["gated"] == 1


def test_refused_peer_shows_the_reason() -> None:
    """A peer without a session says what D said last."""
    bench = Bench()
    (subscribe,) = sent(bench.handler.add_peer("d0", bench.now), Subscribe)
    bench.hear("d0", Refused(subscribe.attempt, RefusedCode.DRAINING, "soon gone"))
    (peer,) = bench.handler.snapshot()["peers"]
    assert (peer["state"], peer["session"]) == ("subscribing", None)
    assert peer["refusal"] == {"code": "draining", "message": "soon gone"}


def test_busy_chunk_and_running_write_are_told_apart() -> None:
    """What D answered last is shown, and so is what runs here."""
    bench = Bench()
    bench.connect()
    bench.submit("r", 20)
    bench.respond("d0", "r", 0, GrantStatus.BUSY)
    assert of_type(bench.grant("d0", "r", 1, granted(1)), WriteChunk)
    first, second = bench.handler.snapshot()["rooms"][0]["targets"][0]["chunks"]
    assert (first["state"], first["last_answer"]) == ("requested", "busy")
    assert (second["state"], second["last_answer"]) == ("writing", "granted")
    assert bench.handler.snapshot()["writes"]["running"] == 1


def test_write_that_outlives_its_session_is_visible() -> None:
    """An operator sees which lost session is waited for."""
    bench = Bench()
    session = bench.connect()
    bench.writing()
    bench.now += 1.0
    bench.hear("d0", Error(session, ErrorCode.UNKNOWN_SESSION, "who?", "HEARTBEAT"))
    (peer,) = bench.handler.snapshot()["peers"]
    assert peer["state"] == "stopping"
    assert peer["lost_sessions"] == [{"session": session, "running_writes": 1}]
