"""Key files: private, never overwritten, and every refusal has its reason."""

import stat
from pathlib import Path

import pytest
import zmq.auth

from runtime.key_files import KeyFileError, is_public_key, is_readable_by_all, read_key_pair, read_public_key, write_key_pair


def test_a_new_pair_is_private_and_reads_back(tmp_path: Path) -> None:
    """Both files have mode 0600; the public one holds no secret; both give back what was made."""
    pair = write_key_pair(tmp_path, "p")
    public, secret = tmp_path / "p.key", tmp_path / "p.key_secret"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (public, secret)] == [0o600, 0o600]
    assert (read_public_key(public), read_key_pair(secret)) == (pair.public, pair)
    assert pair.secret not in public.read_text(encoding="utf-8")
    assert is_public_key(pair.public)
    assert not is_readable_by_all(secret)


def test_the_files_are_zeromqs_own_certificates(tmp_path: Path) -> None:
    """ZeroMQ's own reader takes what was written, and what its writer makes is read here."""
    pair = write_key_pair(tmp_path, "ours")
    assert zmq.auth.load_certificate(tmp_path / "ours.key_secret") == (pair.public.encode(), pair.secret.encode())
    _, secret = zmq.auth.create_certificates(tmp_path, "theirs")
    Path(secret).chmod(0o600)
    assert read_key_pair(Path(secret)).public == read_public_key(tmp_path / "theirs.key")


@pytest.mark.parametrize("kept", ["p.key", "p.key_secret"])
def test_nothing_is_overwritten(tmp_path: Path, kept: str) -> None:
    """If either file exists, it stays as it is, the other is not made, and the error says what to do."""
    (tmp_path / kept).write_text("precious", encoding="utf-8")
    with pytest.raises(KeyFileError, match="never overwritten"):
        write_key_pair(tmp_path, "p")
    assert [path.name for path in tmp_path.iterdir()] == [kept]
    assert (tmp_path / kept).read_text(encoding="utf-8") == "precious"


def test_the_secret_shows_in_no_text(tmp_path: Path) -> None:
    """A pair that ends up in a log or a traceback does not give its secret away."""
    pair = write_key_pair(tmp_path, "p")
    assert pair.secret not in f"{pair!r} {pair}"


def test_each_bad_file_is_told_apart(tmp_path: Path) -> None:
    """Missing, without a key, without the secret half, of two halves that do not fit, or open to others' changes."""
    pair, other = write_key_pair(tmp_path, "p"), write_key_pair(tmp_path, "q")
    secret = tmp_path / "p.key_secret"
    mixed = tmp_path / "mixed"
    mixed.write_text(secret.read_text(encoding="utf-8").replace(pair.public, other.public), encoding="utf-8")
    short = tmp_path / "short"
    short.write_text('curve\n    public-key = "abc"\n', encoding="utf-8")
    empty = tmp_path / "empty"
    empty.write_text("", encoding="utf-8")
    expected = {
        tmp_path / "none": "does not exist",
        empty: "holds no public key",
        short: "40 characters",
        tmp_path / "p.key": "holds no secret key",
        mixed: "does not belong",
    }
    for path, words in expected.items():
        with pytest.raises(KeyFileError, match=words):
            read_key_pair(path)
    secret.chmod(0o620)
    with pytest.raises(KeyFileError, match=r"others may change it.*chmod 600"):
        read_key_pair(secret)


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    """No folder is made: the operator decides where secrets lie."""
    with pytest.raises(KeyFileError, match="No such file or directory"):
        write_key_pair(tmp_path / "none", "p")
