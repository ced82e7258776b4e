"""Which client keys may connect, and as whom: the allow-list of a decode daemon.

A TOML file, or a directory whose ``*.toml`` files are read together::

    [clients.prefill-a]                # the name is for logs
    public_keys = ["<40 characters>"]  # two while one is being replaced
    prefill_ids = ["prefill-a"]        # default: the client's name
    groups = ["prefill-a"]             # default: its prefill ids
    max_sessions = 256                 # of each decode rank

A daemon whose ``prefill_id`` is NAME subscribes as NAME-0, NAME-1, ... (one for each of its ranks), and its groups are NAME or,
under DP attention, NAME-dp0, NAME-dp1, ...; an entry NAME covers exactly those and NAME itself.
"""

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from protocol.identifiers import ID_EXPECTED, is_id
from runtime.key_files import is_public_key

MAX_SESSIONS = 256
MAX_CLIENTS = 65_536
_FIELDS = frozenset({"public_keys", "prefill_ids", "groups", "max_sessions"})
_RANK = re.compile(r"(0|[1-9][0-9]{0,3})")


class AllowListError(ValueError):
    """An allow-list that cannot be used, with every problem in it."""

    def __init__(self, path: Path, problems: tuple[str, ...]) -> None:
        super().__init__(f"{path}: {'; '.join(problems)}")
        self.path = path
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Client:
    """Whoever holds one of a client's keys, and what it may be."""

    name: str
    public_keys: tuple[str, ...]
    prefill_ids: tuple[str, ...]
    groups: tuple[str, ...]
    max_sessions: int = MAX_SESSIONS

    def may_be(self, prefill_id: str) -> bool:
        """Whether it may speak as this prefill rank."""
        return any(_covers(name, "-", prefill_id) for name in self.prefill_ids)

    def may_join(self, group: str) -> bool:
        """Whether its ranks may be writers of this prefill group."""
        return any(_covers(name, "-dp", group) for name in self.groups)


@dataclass(frozen=True, slots=True)
class AllowList:
    """Clients by each of their public keys."""

    by_key: Mapping[str, Client]

    def client(self, public_key: str) -> Client | None:
        """Whose key this is; ``None`` for one that is not, or no longer, on the list."""
        return self.by_key.get(public_key)


def load_allow_list(path: Path) -> AllowList:
    """Read the list. Raises ``AllowListError`` with every problem of every file."""
    problems: list[str] = []
    by_key: dict[str, Client] = {}
    clients: dict[str, Client] = {}
    for file in _files(path, problems):
        for client in _read_file(file, problems):
            if client.name in clients:
                problems.append(f"clients.{client.name}: named twice")
            clients[client.name] = client
            for key in client.public_keys:
                if key in by_key:
                    problems.append(f"clients.{client.name}: its key belongs to {by_key[key].name} as well")
                by_key[key] = client
    problems.extend(_overlaps(clients.values()))
    if len(clients) > MAX_CLIENTS:
        problems.append(f"{len(clients)} clients, more than {MAX_CLIENTS}")
    if problems:
        raise AllowListError(path, tuple(problems))
    return AllowList(by_key)


def allow_list_entry(name: str, public_key: str) -> str:
    """What a new client's entry looks like, for an operator to copy."""
    return f'[clients."{name}"]\npublic_keys = ["{public_key}"]\nprefill_ids = ["{name}"]\ngroups = ["{name}"]\n'


def _covers(name: str, joint: str, asked: str) -> bool:
    return asked == name or (asked.startswith(name + joint) and _RANK.fullmatch(asked[len(name + joint) :]) is not None)


def _overlaps(clients: Collection[Client]) -> Iterator[str]:
    """Two clients that could speak as one prefill rank: each could end the other's sessions."""
    owner: dict[str, Client] = {}
    for client in clients:
        for name in client.prefill_ids:
            owner.setdefault(name, client)
    for client in clients:
        for name in client.prefill_ids:
            base, _, rank = name.rpartition("-")
            for taken in {name, base} if _RANK.fullmatch(rank) else {name}:
                if taken in owner and owner[taken] is not client:
                    yield f"clients.{client.name}: prefill id {name!r} is covered by clients.{owner[taken].name} as well"


def _files(path: Path, problems: list[str]) -> list[Path]:
    if not path.exists():
        problems.append("it does not exist")
        return []
    return sorted(path.glob("*.toml")) if path.is_dir() else [path]


def _read_file(file: Path, problems: list[str]) -> Iterator[Client]:
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        problems.append(f"{file.name}: {error.strerror}")
        return
    except ValueError as error:  # tomllib.TOMLDecodeError and UnicodeDecodeError
        problems.append(f"{file.name}: {error}")
        return
    problems.extend(f"{file.name}: {key}: expected only [clients.NAME]" for key in table if key != "clients")
    clients = table.get("clients", {})
    if not isinstance(clients, dict):
        problems.append(f"{file.name}: clients: expected tables [clients.NAME]")
        return
    for name, entry in clients.items():
        found = list(_entry_problems(entry))
        problems.extend(f"clients.{name}: {problem}" for problem in found)
        if not found:
            yield _client(name, entry)


def _client(name: str, entry: Mapping[str, Any]) -> Client:
    prefill_ids = tuple(entry.get("prefill_ids", [name]))
    groups = tuple(entry.get("groups", prefill_ids))
    return Client(name, tuple(entry["public_keys"]), prefill_ids, groups, entry.get("max_sessions", MAX_SESSIONS))


def _entry_problems(entry: object) -> Iterator[str]:
    if not isinstance(entry, dict):
        yield "expected a table"
        return
    fields = cast("dict[str, Any]", entry)
    yield from (f"{key}: expected one of {', '.join(sorted(_FIELDS))}" for key in fields if key not in _FIELDS)
    if not (_is_list(keys := fields.get("public_keys", [])) and all(is_public_key(key) for key in keys)):
        yield "public_keys: expected a list of public keys, 40 characters each"
    for field in ("prefill_ids", "groups"):
        if field in fields and not (_is_list(names := fields[field]) and all(is_id(name) for name in names)):
            yield f"{field}: expected a list of names, each {ID_EXPECTED}"
    limit = fields.get("max_sessions", MAX_SESSIONS)
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        yield "max_sessions: expected a whole number of at least 1"


def _is_list(value: Any) -> bool:  # noqa: ANN401 - what a file held
    return isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)
