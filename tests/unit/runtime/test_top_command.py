"""``top`` shows the rings and sessions of running daemons in a terminal."""

from pathlib import Path

from click.testing import CliRunner
from rich.console import Console
from structlog.testing import capture_logs

from lab.ports import free_port_base
from runtime.top_command import BAR, prefill_rank, ring_bar, top_command
from tests.unit.embedded import CHUNK_TOKENS, WAIT_S, EmbeddedPair


def grant(offset: int, end: int, *, ready: bool = True, quarantined: bool = False) -> dict[str, object]:
    """A grant as the daemon shows it."""
    return {"offset": offset, "end": end, "ready": ready, "quarantined": quarantined}


def test_a_ring_in_characters() -> None:
    """Free, held, waiting and quarantined bytes differ; of two rounds in one place the one that is there is shown."""
    grants = [grant(0, 25), grant(25, 50, quarantined=True), grant(0, 75, ready=False)]
    drawn = ring_bar({"total_bytes": 100}, grants).plain
    quarter = BAR // 4
    assert drawn == "#" * quarter + "X" * quarter + "-" * quarter + "." * quarter


def test_a_small_grant_is_not_lost() -> None:
    """It has at least one character, also at the very end."""
    assert ring_bar({"total_bytes": 10**9}, [grant(10**9 - 1, 10**9)]).plain == "." * (BAR - 1) + "#"


def test_daemons_beside_each_other(tmp_path: Path) -> None:
    """Both halves in one look, with their sessions and what is blocked; markup in a room's name is text."""
    port = free_port_base(2)
    slow = {"http_port": port, "stall_warn_s": 0.001, "park_s": 60.0}
    prefill = {"http_port": port + 1, "stall_warn_s": 0.001}
    with capture_logs(), EmbeddedPair(tmp_path, decode=slow, prefill=prefill) as pair:
        pair.carry("done", CHUNK_TOKENS)
        pair.submit("[red]r[/red]", CHUNK_TOKENS)
        while not pair.client._calls.call("watch").result(WAIT_S)["ranks"][0]["blocked"]:
            pass  # it counts as blocked from a millisecond on
        look = CliRunner(env={"COLUMNS": "200"}).invoke(
            top_command(7590), ["--http", f"{port}", "--http", f"127.0.0.1:{port + 1}", "--once"]
        )
        pair.client.engine.abort_room("[red]r[/red]", 0).result(WAIT_S)
    assert look.exit_code == 0
    words = " ".join(look.stdout.split())
    assert f"http://127.0.0.1:{port} decode ready" in words
    assert "prefill-0 shm" in words
    assert f"http://127.0.0.1:{port + 1} prefill ready" in words
    assert f"{pair.endpoint} current" in words
    assert "blocked: chunk 0 of room '[red]r[/red]'" in words


def test_a_refused_subscription_shows_its_code() -> None:
    """The state of the way to a decode rank has the code with which it turned the last subscription away."""
    peers: list[dict[str, object]] = [
        {"endpoint": "tcp://d:1", "state": "subscribing", "refusal": {"code": "layout", "message": "no"}, "session": None},
        {"endpoint": "tcp://e:1", "state": "subscribing", "refusal": None, "session": None},
    ]
    rank = {"rank": 0, "prefill_id": "p-0", "room_count": 0, "writes": {"running": 0}, "peers": peers}
    console = Console(width=120)
    with console.capture() as shown:
        console.print(*prefill_rank(rank), sep="\n")
    words = " ".join(shown.get().split())
    assert "tcp://d:1 subscribing (refused: layout)" in words
    assert "tcp://e:1 subscribing" in words


def test_a_daemon_that_is_not_there() -> None:
    """It is named, and the exit code says that something is missing."""
    look = CliRunner().invoke(top_command(free_port_base(1)), ["--once"])
    assert look.exit_code == 1
    assert "was not reached" in look.stdout
