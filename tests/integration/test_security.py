"""Real daemons with real keys: who gets through, who gets nowhere, and what the operator sees of it."""

import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from signal import SIGHUP, SIGKILL
from typing import Any

import pytest

from decode_service.config import DecodeServiceConfig
from protocol.codec import encode_data
from protocol.messages import (
    DataPiece,
    GrantStatus,
    Heartbeat,
    HeartbeatAck,
    Refused,
    RefusedCode,
    StagingReq,
    StagingRsp,
    Subscribe,
    Subscribed,
    ToPrefill,
)
from protocol.watermark import START
from runtime.key_files import write_key_pair
from runtime.security import ClientSecurity
from tests.integration.daemons import (
    CHUNK_TOKENS,
    DECODE_TP,
    HEADS,
    LAYERS,
    PREFILL_TP,
    WAIT_S,
    WIDTH,
    Deployment,
    rank_layout,
)
from tests.integration.test_moving_kv import carry, longer, runs
from tests.unit.embedded import Stranger, subscribe
from tests.unit.keys import KeyRing


def flags(settings: Mapping[str, Path]) -> list[str]:
    """Settings as a command line."""
    return [text for name, path in settings.items() for text in (f"--{name.replace('_', '-')}", f"{path}")]


@contextmanager
def secured(
    folder: Path, plane: str = "zmq", prefill: Mapping[str, Path] | None = None
) -> Iterator[tuple[Deployment, KeyRing]]:
    """Daemons with keys: the prefill daemon "p" with its own unless others are given, and a client "q" that has no daemon."""
    ring = KeyRing(folder, "p", "q")
    keys = ring.prefill("p") if prefill is None else prefill
    with Deployment(folder, plane, decode=flags(ring.decode), prefill=flags(keys)) as deployment:
        yield deployment, ring


def security_of(deployment: Deployment) -> list[dict[str, Any]]:
    """What each decode rank says about keys."""
    ranks = deployment.decode_engine.inspect().result(WAIT_S)["ranks"]
    return [rank["security"] for rank in ranks]


def total(deployment: Deployment, kind: str, reason: str) -> int:
    """How often something was turned away for that reason, on all ranks."""
    return sum(found[kind].get(reason, 0) for found in security_of(deployment))


def wait_for(deployment: Deployment, kind: str, reason: str, above: int = 0) -> None:
    """Ask the daemon until it has counted more than that."""
    for _ in range(100_000):
        if total(deployment, kind, reason) > above:
            return
    pytest.fail(f"{kind} {reason} was never counted")


def first(peer: Stranger, kind: type[ToPrefill]) -> ToPrefill:
    """The next message of that type."""
    while not isinstance(message := peer.hear(), kind):
        pass
    return message


def prefill_counts(deployment: Deployment) -> dict[str, int]:
    """Failed handshakes as the prefill daemon counts them."""
    found: dict[str, int] = deployment.prefill_engine.inspect(0).result(WAIT_S)["ranks"][0]["handshakes_failed"]
    return found


def peer_with(deployment: Deployment, ring: KeyRing, name: str) -> Stranger:
    """A bare peer of decode rank 0 that holds this client's key."""
    keys = ring.prefill(name)
    return Stranger(deployment.endpoints[0], ClientSecurity(keys["client_key"], keys["server_keys"]))


def opening(prefill_id: str, group: str) -> Subscribe:
    """What a prefill rank 0 of this model opens with."""
    message = replace(subscribe(DecodeServiceConfig()), layout=rank_layout(0, PREFILL_TP), chunk_tokens=CHUNK_TOKENS)
    return replace(message, prefill_id=prefill_id, group=group)


@pytest.mark.parametrize("plane", ["zmq", "shm"])
def test_every_byte_arrives_under_encryption(tmp_path: Path, plane: str) -> None:
    """With keys on both sides rooms go through as before, nothing is turned away, and every key is accepted."""
    with secured(tmp_path, plane) as (deployment, _):
        deployment.start()
        carry(deployment, "room", 5 * CHUNK_TOKENS + 7)
        assert [found["denied"] for found in security_of(deployment)] == [{}] * DECODE_TP
        assert security_of(deployment)[0]["handshakes"]["accepted"] >= DECODE_TP * PREFILL_TP
        assert deployment.prefill.end() == 0
        assert deployment.decode.end() == 0


def test_no_key_gets_nowhere(tmp_path: Path) -> None:
    """A prefill daemon without keys opens no session: both sides count and log it, with the likely reason."""
    with secured(tmp_path, prefill={}) as (deployment, _):
        deployment.start()
        source, destination = runs(1, 64)
        deployment.expect("room", 64, destination)
        deployment.submit("room", 64, source)
        wait_for(deployment, "handshakes_failed", "protocol")
        while not prefill_counts(deployment).get("handshake_failed_protocol"):
            pass
        snapshot = deployment.decode_engine.inspect(0).result(WAIT_S)["ranks"][0]
        assert snapshot["sessions"] == []
        assert "peer_handshake_failed" in deployment.decode.log
        assert "one side has keys and the other has none" in deployment.prefill.log


def test_a_wrong_key_gets_nowhere(tmp_path: Path) -> None:
    """A key that is on no list is refused in the handshake, counted and logged with the key, and the client learns why."""
    (tmp_path / "stranger").mkdir()
    stranger = write_key_pair(tmp_path / "stranger", "p")
    keys = {"client_key": tmp_path / "stranger" / "p.key_secret", "server_keys": tmp_path / "keys" / "server.key"}
    with secured(tmp_path, prefill=keys) as (deployment, _):
        deployment.start()
        source, destination = runs(1, 64)
        deployment.expect("room", 64, destination)
        deployment.submit("room", 64, source)
        wait_for(deployment, "handshakes", "unknown_key")
        while not prefill_counts(deployment).get("handshake_failed_auth"):
            pass
        assert deployment.decode_engine.inspect(0).result(WAIT_S)["ranks"][0]["sessions"] == []
        assert stranger.public in deployment.decode.log
        assert "client_refused" in deployment.decode.log
        assert "does not allow this client's key" in deployment.prefill.log


def test_a_revoked_key_gets_nowhere_and_a_restored_one_goes_on(tmp_path: Path) -> None:
    """Taken off the list under load, the client is heard no more; back on it, it carries on without any restart."""
    with secured(tmp_path) as (deployment, ring):
        deployment.start()
        carry(deployment, "before", 64)
        ring.allow("q")
        deployment.decode.signal(SIGHUP)
        source, destination = runs(2, 64)
        deployment.expect("during", 64, destination)
        deployment.submit("during", 64, source)
        wait_for(deployment, "denied", "revoked_key")
        assert "allow_list_loaded" in deployment.decode.log
        assert '"reason": "revoked_key"' in deployment.decode.log
        before = deployment.decode_engine.inspect(0).result(WAIT_S)["ranks"][0]
        assert "during" in str(before["rooms"])
        ring.allow("p", "q")
        deployment.decode.signal(SIGHUP)
        assert [outcome.code for outcome in deployment.outcomes("during") if not outcome.done] == []
        assert deployment.differences(64, source, destination) == 0


def test_somebody_elses_session_gets_nowhere(tmp_path: Path) -> None:
    """With a good key of its own, a client that knows the victim's session, room and grant moves nothing and hears nothing.

    The victim's prefill daemon is killed in the middle of a room, so that its session is known and nobody else uses it.
    """
    with secured(tmp_path) as (deployment, ring):
        deployment.start()
        source, destination = runs(3, 64)
        deployment.expect("room", 96, longer(destination, 96))
        deployment.submit("room", 64, source, finish=False)
        victim = peer_with(deployment, ring, "p")
        while not (sessions := deployment.decode_engine.inspect(0).result(WAIT_S)["ranks"][0]["sessions"]):
            pass
        session = str(sessions[0]["session"])
        deployment.prefill.end(SIGKILL)
        thief = peer_with(deployment, ring, "q")
        thief.say(opening("q-0", "q"))
        answer = first(thief, Subscribed)
        assert isinstance(answer, Subscribed)
        slice_bytes = CHUNK_TOKENS * LAYERS * 2 * WIDTH * HEADS // DECODE_TP
        port = deployment.endpoints[0].rpartition(":")[2]
        data = f"tcp://127.0.0.1:{int(port) + DECODE_TP}"
        thief.say(Heartbeat(session, 1, START))
        thief.say(StagingReq(session, "room", 2, 64, CHUNK_TOKENS))
        thief.push(data, *encode_data(DataPiece(session, "room", 2, 1, 1, 0, slice_bytes)), bytes(slice_bytes))
        thief.say(replace(opening("p-0", "p"), attempt=2))
        refused = first(thief, Refused)
        assert isinstance(refused, Refused)
        assert refused.code is RefusedCode.NOT_ALLOWED
        thief.say(Heartbeat(answer.session, 1, START))
        assert first(thief, HeartbeatAck) == HeartbeatAck(answer.session, 1)
        wait_for(deployment, "denied", "foreign_session", above=2)
        assert total(deployment, "denied", "foreign_prefill_id") == 1
        assert '"client": "q"' in deployment.decode.log
        victim.say(StagingReq(session, "room", 2, 64, CHUNK_TOKENS))
        granted = first(victim, StagingRsp)
        assert isinstance(granted, StagingRsp)
        assert granted.status is GrantStatus.GRANTED
        thief.close()
        victim.close()


def test_keys_change_on_both_sides_without_a_restart(tmp_path: Path) -> None:
    """New client key, then new server key: rooms before, between and after go through, and no daemon was restarted."""
    with secured(tmp_path) as (deployment, ring):
        deployment.start()
        carry(deployment, "one", 64)
        for name in ("p", "server"):
            for suffix in ("key", "key_secret"):
                (ring.folder / f"{name}.{suffix}").unlink()
            fresh = write_key_pair(ring.folder, name)
            if name == "p":
                ring.clients["p"] = fresh
                ring.allow("p", "q")
            deployment.decode.signal(SIGHUP)
            deployment.prefill.signal(SIGHUP)
            carry(deployment, f"after-{name}", 64, seed=4)
        assert "server_key_replaced" in deployment.decode.log
        assert "keys_replaced" in deployment.prefill.log


def test_a_public_bind_without_keys_is_refused_and_with_consent_told(tmp_path: Path) -> None:
    """Beyond loopback a daemon starts with keys or with ``--insecure``, and then its log says so from the start."""
    with Deployment(tmp_path, "zmq", decode=["--host", "0.0.0.0"]) as deployment:
        deployment.decode.start()
        assert deployment.decode.process is not None
        assert deployment.decode.process.wait(WAIT_S) == 2
        assert "host: found '0.0.0.0' without keys" in deployment.decode.log
        deployment.decode.command.append("--insecure")
        deployment.decode.start()
        deployment.register_decode()
        assert "insecure_sockets_open" in deployment.decode.log
        assert deployment.decode.end() == 0


def test_a_remote_decode_rank_without_keys_is_refused(tmp_path: Path) -> None:
    """A prefill daemon without keys sends nothing beyond loopback: the engine is told which setting is missing."""
    with Deployment(tmp_path, "zmq") as deployment:
        deployment.prefill.start()
        deployment.register_prefill()
        source, _ = runs(1, 16)
        call = deployment.prefill_engine.submit_chunk("room", 0, ["tcp://192.0.2.1:7600"], 0, 16, source)
        with pytest.raises(Exception, match="beyond loopback: set client_key and server_keys, or --insecure"):
            call.result(WAIT_S)


def test_what_lies_in_the_file_system_is_private(tmp_path: Path) -> None:
    """Engine sockets and staging segments have mode 0600, their directory 0700, while the daemons run."""
    with Deployment(tmp_path, "shm").start() as deployment:
        carry(deployment, "room", 64)
        found = [*deployment.runtime.glob("*.sock"), *deployment.segments.iterdir()]
        assert len(found) >= 2 + DECODE_TP
        assert {stat.S_IMODE(path.stat().st_mode) for path in found} == {0o600}
        assert stat.S_IMODE(deployment.runtime.stat().st_mode) == 0o700
