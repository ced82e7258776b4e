"""CURVE keys in files: made once, never overwritten, and read with a reason for every refusal.

The files are ZeroMQ's own certificates (``NAME.key`` holds the public key, ``NAME.key_secret`` both), so its other tools read
them too. A key is 32 bytes, written as 40 characters of Z85.
"""

import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path

import zmq
import zmq.auth

PUBLIC_SUFFIX = ".key"
SECRET_SUFFIX = ".key_secret"  # noqa: S105 - the end of a file name
_KEY = re.compile(r"[0-9A-Za-z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
_BANNER = "# CURVE {kind} of {name!r}. {advice}\n\n"
_PUBLIC_ADVICE = "Give it to whoever must know this peer."
_SECRET_ADVICE = "Give it to nobody."  # noqa: S105 - a sentence


class KeyFileError(ValueError):
    """A key file that cannot be made or used: which one, why, and what to do."""

    def __init__(self, path: Path, cause: str, advice: str) -> None:
        super().__init__(f"{path}: {cause}; {advice}")
        self.path = path
        self.cause = cause
        self.advice = advice


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Both halves of one key, in Z85. The secret one never shows in a text or a log."""

    public: str
    secret: str = field(repr=False)


def is_public_key(text: str) -> bool:
    """Whether this is a key as Z85 writes it."""
    return _KEY.fullmatch(text) is not None


def write_key_pair(folder: Path, name: str) -> KeyPair:
    """Make a new key pair as ``NAME.key`` and ``NAME.key_secret`` of mode 0600. Raises ``KeyFileError`` if either exists."""
    public, secret = (half.decode("ascii") for half in zmq.curve_keypair())
    body = f'metadata\n    name = "{name}"\ncurve\n    public-key = "{public}"\n'
    public_path, secret_path = folder / f"{name}{PUBLIC_SUFFIX}", folder / f"{name}{SECRET_SUFFIX}"
    if public_path.exists():
        raise KeyFileError(public_path, "it exists", "keys are never overwritten: choose another --name or --out")
    banner = _BANNER.format(kind="secret key", name=name, advice=_SECRET_ADVICE)
    _write_new(secret_path, f'{banner}{body}    secret-key = "{secret}"\n')
    _write_new(public_path, _BANNER.format(kind="public key", name=name, advice=_PUBLIC_ADVICE) + body)
    return KeyPair(public, secret)


def read_public_key(path: Path) -> str:
    """The public key of a certificate. Raises ``KeyFileError``."""
    return _read(path)[0]


def read_key_pair(path: Path) -> KeyPair:
    """Both halves of a secret certificate that nobody else may change. Raises ``KeyFileError``."""
    public, secret = _read(path)
    if secret is None:
        raise KeyFileError(path, "it holds no secret key", f"name the file that ends in {SECRET_SUFFIX}")
    if zmq.curve_public(secret.encode("ascii")).decode("ascii") != public:
        raise KeyFileError(path, "its public key does not belong to its secret key", "make a new pair with keygen")
    mode = path.stat().st_mode
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise KeyFileError(path, f"others may change it (mode {stat.S_IMODE(mode):04o})", f"chmod 600 {path}")
    return KeyPair(public, secret)


def is_readable_by_all(path: Path) -> bool:
    """Whether every user of this host may read the file. Container secrets often are, so it is told and not refused."""
    return bool(path.stat().st_mode & stat.S_IROTH)


def _read(path: Path) -> tuple[str, str | None]:
    try:
        found = zmq.auth.load_certificate(path)
    except OSError as error:
        raise KeyFileError(path, error.strerror or "it does not exist", "make one with keygen, or correct the path") from error
    except ValueError as error:
        raise KeyFileError(path, "it holds no public key", "name a file that keygen made") from error
    public, secret = (None if half is None else half.decode("ascii", "replace") for half in found)
    for half in (public, secret):
        if half is not None and not is_public_key(half):
            raise KeyFileError(path, "a key in it is not 40 characters of Z85", "make a new pair with keygen")
    assert public is not None
    return public, secret


def _write_new(path: Path, text: str) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise KeyFileError(path, "it exists", "keys are never overwritten: choose another --name or --out") from error
    except OSError as error:
        raise KeyFileError(path, error.strerror or str(error), "choose a directory that exists with --out") from error
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
