"""``explain`` prints sentences for people and JSON for programs, and an exit code says whether there was an answer."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from click.testing import CliRunner, Result

import runtime.explain_command
from runtime.explain_command import explain_command
from runtime.questions import NoAnswer

FOUND = {
    "side": "decode",
    "rank": 2,
    "summary": "grant 4 of room 'r' waits for the bytes of prefill 'p-0'",
    "lines": ["its gate needs none: open"],
    "next_words": ["in 9.0 s prefill 'p-0' is fenced"],
}


class Daemon:
    """Answers from a table."""

    answer: Mapping[str, Any] = {"explanations": []}
    asked: Mapping[str, Any] = {}

    def __init__(self, place: object) -> None:
        self.name = str(place)

    def ask(self, question: str, **body: object) -> Mapping[str, Any]:
        """What the table says."""
        if "nowhere" in self.name:
            raise NoAnswer(f"{self.name} was not reached")
        Daemon.asked = {"question": question, "place": self.name, **body}
        return Daemon.answer

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture(autouse=True)
def _daemons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime.explain_command, "HttpDaemon", Daemon)
    monkeypatch.setattr(runtime.explain_command, "SocketDaemon", Daemon)


def run(*arguments: str, answer: Mapping[str, Any] | None = None) -> Result:
    """The command as a person types it."""
    Daemon.answer = answer or {"explanations": []}
    return CliRunner().invoke(explain_command("decode", 7590), arguments)


def test_words() -> None:
    """One sentence that says it, then the rest of the story, then what will happen; explanations stand apart."""
    prefill = {**FOUND, "side": "prefill", "prefill_id": "p-0", "next_words": []}
    result = run("--room", "r", answer={"explanations": [FOUND, prefill]})
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "Decode rank 2: grant 4 of room 'r' waits for the bytes of prefill 'p-0'.",
        "  its gate needs none: open.",
        "  What will happen:",
        "    in 9.0 s prefill 'p-0' is fenced.",
        "",
        "Prefill p-0: grant 4 of room 'r' waits for the bytes of prefill 'p-0'.",
        "  its gate needs none: open.",
    ]


def test_json() -> None:
    """The answer as it is."""
    assert json.loads(run("--json", answer={"explanations": [FOUND]}).stdout) == {"explanations": [FOUND]}


def test_nothing_waits() -> None:
    """An empty answer is an answer."""
    result = run()
    assert (result.exit_code, result.stdout) == (0, "Nothing is on its way: nothing is waited for.\n")


def test_where_it_asks() -> None:
    """The usual port, another one, or the engine's socket."""
    run("--room", "r", "--chunk", "3", "--rank", "1")
    assert Daemon.asked == {"question": "explain", "place": "127.0.0.1:7590", "room": "r", "chunk": 3, "rank": 1}
    run("--http", "host:1")
    assert Daemon.asked["place"] == "host:1"
    run("--engine-socket", "/run/d.sock")
    assert Daemon.asked["place"] == "/run/d.sock"


def test_no_answer_and_no_question() -> None:
    """An unreachable daemon is exit code 1, a chunk of no room exit code 2."""
    result = run("--http", "nowhere:1")
    assert (result.exit_code, result.stderr) == (1, "error: nowhere:1 was not reached\n")
    assert run("--chunk", "1").exit_code == 2
