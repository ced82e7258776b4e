"""The keys that decode endpoints must have."""

from pathlib import Path

import pytest

from runtime.key_files import write_key_pair
from runtime.known_servers import KnownServers, KnownServersError, load_known_servers


def test_one_certificate_is_for_every_endpoint(tmp_path: Path) -> None:
    """A plain public key file holds for whatever endpoint is asked about."""
    pair = write_key_pair(tmp_path, "d")
    assert load_known_servers(tmp_path / "d.key").keys_of("tcp://anywhere:1") == (pair.public,)


def test_the_most_exact_entry_counts(tmp_path: Path) -> None:
    """Endpoint before host before default; without a default an unnamed endpoint has no key."""
    rank, host, rest = (write_key_pair(tmp_path, name).public for name in ("a", "b", "c"))
    text = f'default = "{rest}"\n[endpoints]\n"tcp://d:7600" = "{rank}"\n"tcp://d" = "{host}"\n'
    path = tmp_path / "servers.toml"
    path.write_text(text, encoding="utf-8")
    known = load_known_servers(path)
    assert [known.keys_of(f"tcp://{name}") for name in ("d:7600", "d:7601", "e:7600")] == [(rank,), (host,), (rest,)]
    assert KnownServers(known.endpoints).keys_of("tcp://e:7600") == ()


def test_several_keys_are_kept_in_order(tmp_path: Path) -> None:
    """While a decode daemon changes its key, its entry lists both."""
    old, new = (write_key_pair(tmp_path, name).public for name in ("a", "b"))
    path = tmp_path / "servers.toml"
    path.write_text(f'default = ["{old}", "{new}"]\n', encoding="utf-8")
    assert load_known_servers(path).keys_of("tcp://d:7600") == (old, new)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no key"),
        ('default = "short"', "default: expected a public key"),
        ("[endpoints]\n'd:7600' = 'x'", "endpoints.d:7600: expected"),
        ("default = []", "default: expected a public key"),
        ("endpoints = 3", "expected a table"),
        ("colour = 1\ndefault = ''", "colour: expected default"),
        ("= x", "servers.toml"),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, text: str, words: str) -> None:
    """Every mistake names its entry."""
    path = tmp_path / "servers.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(KnownServersError, match=words):
        load_known_servers(path)


@pytest.mark.parametrize("name", ["none.toml", "none.key"])
def test_a_missing_file_is_told(tmp_path: Path, name: str) -> None:
    """The error names the path."""
    with pytest.raises(KnownServersError, match=name):
        load_known_servers(tmp_path / name)
