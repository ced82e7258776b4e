"""One prefill of two is stopped under load: the decode side names it, its grant, its room, and what will happen when."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

import pytest

from lab.ports import free_port_base
from prefill_service.engine import PrefillEngineClient
from protocol.layout import PageRun
from runtime.questions import HttpDaemon
from tests.integration.daemons import CHUNK_TOKENS, DECODE_PAGE, DECODE_TP, PREFILL_PAGE, PREFILL_TP, WAIT_S, Daemon, Deployment

Explanation = Mapping[str, Any]

ROOMS = 5
TOKENS = 2 * CHUNK_TOKENS
LEASE = ("--heartbeat-s", "0.5", "--lease-s", "3", "--grace-s", "1", "--quarantine-s", "90")


class SecondPrefill:
    """Another prefill daemon of the deployment, with the same pools and a group of its own."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        settings = [*deployment.prefill.command[4:], "--prefill-id", "q"]
        folder = deployment.folder / "q"
        folder.mkdir()
        self.daemon = Daemon("prefill_service", folder, settings)
        self.engine = PrefillEngineClient(deployment.runtime / "q.engine.sock")

    def start(self) -> None:
        """Start it and register its pools."""
        self.daemon.start()
        for rank, pool in enumerate(self._deployment.prefill_pools):
            self.engine.register_pool(rank, pool.descriptor).result(WAIT_S)

    def close(self) -> None:
        """Leave no process."""
        self.engine.close()
        self.daemon.kill()


def run(first: int, page_size: int) -> PageRun:
    """Pages for one room of ``TOKENS`` tokens; rooms of a group share theirs, since nobody compares bytes here."""
    count = TOKENS // page_size
    return PageRun(tuple(range(first, first + count)))


def submit(deployment: Deployment, engine: PrefillEngineClient, group: str) -> list[str]:
    """Register rooms on every decode rank and hand them over on every prefill rank, all at once."""
    rooms = [f"{group}-room-{number}" for number in range(ROOMS)]
    calls = [
        deployment.decode_engine.register_room(room, rank, group, TOKENS, run(number * 8, DECODE_PAGE))
        for number, room in enumerate(rooms)
        for rank in range(DECODE_TP)
    ]
    calls += [
        engine.submit_chunk(room, rank, deployment.endpoints, 0, TOKENS, run(0, PREFILL_PAGE))
        for room in rooms
        for rank in range(PREFILL_TP)
    ]
    for call in calls:
        call.result(WAIT_S)
    return rooms


def until(look: Callable[[], Explanation | None]) -> Explanation:
    """What ``look`` finds, as soon as it finds something."""
    end = monotonic() + WAIT_S
    while (found := look()) is None:
        assert monotonic() < end, "it was never said"
        Event().wait(0.05)
    return found


def explain(port: int, *arguments: str) -> str:
    """What a person reads."""
    command = [sys.executable, "-m", "decode_service", "explain", "--http", f"127.0.0.1:{port}", *arguments]
    environment = {**os.environ, "NO_COLOR": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=True, env=environment).stdout


class Incident:
    """Two prefills under load, of which the first is stopped."""

    def __init__(self, deployment: Deployment, second: SecondPrefill, port: int) -> None:
        self.deployment = deployment
        self.second = second
        self.port = port
        self.daemon = HttpDaemon(f"{port}")

    def begin(self) -> None:
        """Sessions come with the first room: a prefill that is stopped before it has any is waited for in another way."""
        self.deployment.expect("warm-up", TOKENS, run(0, DECODE_PAGE))
        self.deployment.submit("warm-up", TOKENS, run(0, PREFILL_PAGE))
        assert all(outcome.done for outcome in self.deployment.outcomes("warm-up"))
        self.mine = submit(self.deployment, self.deployment.prefill_engine, "p")
        self.deployment.prefill.signal(signal.SIGSTOP)
        self.others = submit(self.deployment, self.second.engine, "q")

    def held_up(self, state: str) -> Explanation:
        """What holds a ring up and waits for the stopped prefill, as soon as it is in that state."""

        def look() -> Explanation | None:
            held = self.daemon.ask("explain")["explanations"]
            named = (found for found in held if found["state"] == state and found["waits_for_prefills"])
            return next((found for found in named if found["waits_for_prefills"][0].startswith("p-")), None)

        return until(look)

    def behind(self, held: Explanation) -> Explanation:
        """A chunk of the other prefill that waits behind this one."""

        def look() -> Explanation | None:
            rows = (
                row for room in self.others for row in self.daemon.ask("explain", room=room, rank=held["rank"])["explanations"]
            )
            return next((row for row in rows if row["oldest_alloc_id"] == held["alloc_id"]), None)

        return until(look)

    def end(self) -> None:
        """Let it go on: every room of both completes."""
        self.deployment.prefill.signal(signal.SIGCONT)
        for engine, rooms in ((self.deployment.prefill_engine, self.mine), (self.second.engine, self.others)):
            for room in rooms:
                for number in range(PREFILL_TP):
                    engine.finish_room(room, number).result(WAIT_S)
                    assert engine.wait_room(room, number).result(WAIT_S).done

    def stalls(self) -> list[dict[str, Any]]:
        """What the decode daemon's log said by itself."""
        lines = self.deployment.decode.log.splitlines()
        return [json.loads(line) for line in lines if '"chunk_stalled"' in line]


@pytest.fixture
def incident(tmp_path: Path) -> Iterator[Incident]:
    """It has begun; afterwards nothing is left stopped."""
    port = free_port_base(1)
    with Deployment(tmp_path, "shm", decode=[*LEASE, "--http-port", f"{port}"]).start() as deployment:
        second = SecondPrefill(deployment)
        try:
            second.start()
            begun = Incident(deployment, second, port)
            begun.begin()
            yield begun
        finally:
            deployment.prefill.signal(signal.SIGCONT)
            second.close()


def test_a_stopped_prefill_is_named_with_its_grant_its_room_and_what_will_happen(incident: Incident) -> None:
    """Before the fence: whom it waits for and when that one is fenced. After it: whose proof is missing and until when."""
    held = incident.held_up("writing")
    check_before_the_fence(incident, held)
    blocked = incident.behind(held)
    assert blocked["state"] in {"gated", "waits_for_turn"}
    assert any(f"the oldest grant of the ring is grant {held['alloc_id']} (bytes " in line for line in blocked["lines"])
    assert any(f"prefill '{held['waits_for_prefills'][0]}'" in line for line in blocked["next_words"])
    check_after_the_fence(incident, incident.held_up("quarantined"))
    incident.end()
    stalls = incident.stalls()
    named = [line for line in stalls if line["prefills"] == held["waits_for_prefills"] and line["room"] == held["room"]]
    assert "is fenced unless it says something" in named[0]["coming"][0]
    assert len({(line["rank"], line["room"], line["chunk"], line["waited_s"]) for line in stalls}) == len(stalls)


def check_before_the_fence(incident: Incident, held: Explanation) -> None:
    """A person reads the prefill, its grant, its room, the frames, the lease, and the three steps that will follow."""
    rank, room, chunk, alloc_id = held["rank"], held["room"], held["chunk"], held["alloc_id"]
    (prefill,) = held["waits_for_prefills"]
    assert room in incident.mine
    words = explain(incident.port, "--room", room, "--chunk", f"{chunk}", "--rank", f"{rank}")
    assert f"Decode rank {rank}: grant {alloc_id} (bytes " in words
    assert f"of room '{room}' chunk {chunk} waits for the bytes of prefill '{prefill}'" in words
    assert f"last frame from prefill '{prefill}': " in words
    assert "left to say something before it is fenced" in words
    assert "it is the oldest grant of the ring: everything behind it waits for it" in words
    fence, quarantine, replacement = (line.strip() for line in words.partition("What will happen:")[2].strip().splitlines()[:3])
    assert fence.endswith(f"s prefill '{prefill}' is fenced unless it says something.")
    assert f"grant {alloc_id} is quarantined then, until it is proven that nobody can write it any more" in quarantine
    assert "the region is replaced if no proof has come, and unfinished chunks are written again" in replacement


def check_after_the_fence(incident: Incident, held: Explanation) -> None:
    """A person reads whose proof is missing, why it is closed, when the region is replaced, and what would spare it."""
    words = explain(incident.port, "--rank", f"{held['rank']}")
    assert f"waits for proof that prefill '{held['waits_for_prefills'][0]}'" in words
    assert "fenced: silent for " in words
    assert "s the region is replaced if no proof has come" in words
    assert "as soon as the proof comes (its word, its orderly end, the end of its process) the grant is released" in words
