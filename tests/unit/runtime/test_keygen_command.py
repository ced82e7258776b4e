"""``keygen`` as an operator uses it."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from decode_service.__main__ import main as decode
from prefill_service.__main__ import main as prefill
from runtime.allow_list import load_allow_list
from runtime.key_files import read_key_pair


def test_a_prefill_key_comes_with_its_entry(tmp_path: Path) -> None:
    """The output names both files and holds an entry for the allow-list that works as it stands; the secret is not in it."""
    result = CliRunner().invoke(prefill, ["keygen", "--name", "pre-1", "--out", str(tmp_path)])
    assert result.exit_code == 0
    pair = read_key_pair(tmp_path / "pre-1.key_secret")
    assert pair.secret not in result.output
    entry = tmp_path / "allow.toml"
    entry.write_text(result.output[result.output.index("[clients") :], encoding="utf-8")
    client = load_allow_list(entry).client(pair.public)
    assert client is not None
    assert client.may_be("pre-1-0")


def test_a_decode_key_says_where_it_goes(tmp_path: Path) -> None:
    """The output says which option takes which file."""
    result = CliRunner().invoke(decode, ["keygen", "--out", str(tmp_path)])
    assert result.exit_code == 0
    assert f"--server-key {tmp_path / 'decode.key_secret'}" in result.output
    assert "--server-keys decode.key" in result.output


@pytest.mark.parametrize(("name", "code", "words"), [("twice", 1, "never overwritten"), ("a/b", 2, "--name: expected a name")])
def test_refusals(tmp_path: Path, name: str, code: int, words: str) -> None:
    """An existing key is kept (1); a name that is a path is refused (2)."""
    CliRunner().invoke(decode, ["keygen", "--name", "twice", "--out", str(tmp_path)])
    result = CliRunner().invoke(decode, ["keygen", "--name", name, "--out", str(tmp_path)])
    assert (result.exit_code, words in result.output) == (code, True)
