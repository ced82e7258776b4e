"""The public keys that decode endpoints must prove to have, as a prefill daemon knows them.

Either one certificate (``NAME.key``) that holds for every endpoint, or a TOML file::

    default = "<40 characters>"                # optional: for endpoints that are not named
    [endpoints]
    "tcp://decode-0:7600" = "<40 characters>"  # one rank
    "tcp://decode-1" = "<40 characters>"       # every port of that host

Where a list of keys stands in place of one, they are tried in turn: while a decode daemon changes its key, both are good.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.key_files import KeyFileError, is_public_key, read_public_key

MAX_KEYS = 8
_EXPECTED = f"a public key of 40 characters, or a list of up to {MAX_KEYS}"


class KnownServersError(ValueError):
    """A file of server keys that cannot be used, with every problem in it."""

    def __init__(self, path: Path, problems: tuple[str, ...]) -> None:
        super().__init__(f"{path}: {'; '.join(problems)}")
        self.path = path
        self.problems = problems


@dataclass(frozen=True, slots=True)
class KnownServers:
    """Keys by endpoint or host, and those for all others (empty: there are none)."""

    endpoints: Mapping[str, tuple[str, ...]]
    default: tuple[str, ...] = ()

    def keys_of(self, endpoint: str) -> tuple[str, ...]:
        """The keys of ``tcp://host:port``, the most exact entry first; empty if none is known."""
        host = endpoint.rpartition(":")[0]
        return self.endpoints.get(endpoint) or self.endpoints.get(host) or self.default


def load_known_servers(path: Path) -> KnownServers:
    """Read a certificate or a table of keys. Raises ``KnownServersError``."""
    if path.suffix != ".toml":
        try:
            return KnownServers({}, (read_public_key(path),))
        except KeyFileError as error:
            raise KnownServersError(path, (error.cause, error.advice)) from error
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise KnownServersError(path, (error.strerror or str(error),)) from error
    except ValueError as error:  # tomllib.TOMLDecodeError and UnicodeDecodeError
        raise KnownServersError(path, (str(error),)) from error
    problems = tuple(_problems(table))
    if problems:
        raise KnownServersError(path, problems)
    endpoints = {endpoint: _keys(value) for endpoint, value in table.get("endpoints", {}).items()}
    return KnownServers(endpoints, _keys(table.get("default", [])))


def _problems(table: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"{key}: expected default or [endpoints]" for key in table if key not in {"default", "endpoints"})
    default, endpoints = table.get("default"), table.get("endpoints", {})
    if default is None and not endpoints:
        yield "it names no key"
    if default is not None and not _are_keys(default):
        yield f"default: expected {_EXPECTED}"
    if not isinstance(endpoints, dict):
        yield 'endpoints: expected a table of "tcp://host:port" = key'
        return
    for endpoint, key in endpoints.items():
        if not endpoint.startswith("tcp://") or not _are_keys(key):
            yield f'endpoints.{endpoint}: expected "tcp://host:port" or "tcp://host" = {_EXPECTED}'


def _are_keys(value: Any) -> bool:  # noqa: ANN401 - what a file held
    keys = value if isinstance(value, list) else [value]
    return 0 < len(keys) <= MAX_KEYS and all(isinstance(key, str) and is_public_key(key) for key in keys)


def _keys(value: str | list[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)
