"""``lab size`` as an operator calls it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lab.__main__ import main
from tests.unit.lab.test_kv_config import LLAMA


def run(*arguments: str) -> Result:
    """Call the command."""
    return CliRunner().invoke(main, ["size", *arguments])


def test_a_model_file_gives_settings_to_copy(tmp_path: Path) -> None:
    """The text holds both commands with the recommended values and every tier."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    result = run("--config", str(tmp_path), "--prefill-tp", "4", "--decode-tp", "8")
    assert result.exit_code == 0
    assert "decode-service serve --ring-bytes 50MiB --chunk-tokens 256" in result.output
    assert "prefill-service serve --chunk-tokens 256" in result.output
    assert "no full chunk fits" in result.output


def test_json_is_one_object() -> None:
    """Programs read the same answer, with names, units and the verdict on a given ring."""
    result = run("--preset", "llama3-70b", "--decode-tp", "8", "--chunk-tokens", "256", "--ring-bytes", "64MiB", "--json")
    found = json.loads(result.stdout)
    assert (found["chunk_bytes"], found["given_ring_bytes"], found["is_enough"]) == (10_485_760, 64 << 20, True)
    assert [tier["from_bytes"] for tier in found["tiers"]] == [0, 10_485_760, 20_971_520, 52_428_800]


def test_a_ring_that_holds_no_chunk_fails() -> None:
    """The exit code says that the given ring cannot work, and the text what would happen."""
    result = run("--preset", "llama3-70b", "--ring-bytes", "1MiB")
    assert result.exit_code == 1
    assert "ring_too_small" in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "--config or --preset"),
        (("--preset", "tiny", "--config", "x"), "one of them only"),
        (("--preset", "tiny", "--kv-dtype", "fp8"), "--kv-dtype: expected only with --config"),
        (("--preset", "tiny", "--ring-bytes", "much"), "--ring-bytes: expected a size in bytes"),
        (("--preset", "tiny", "--prefill-tp", "3"), "3"),
        (("--config", "/nonexistent/config.json"), "No such file"),
    ],
)
def test_unusable_questions_end_with_two(arguments: tuple[str, ...], words: str) -> None:
    """Every refusal says what was expected."""
    result = run(*arguments)
    assert (result.exit_code, words in result.output) == (2, True)
