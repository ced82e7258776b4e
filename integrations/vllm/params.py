"""``kv_transfer_params``: what a proxy carries between the two engines, by the conventions of vLLM's own network connector.

It is JSON from a client. What is malformed is a ``TransferParamsError`` with every problem; the engine lives on and the request
goes without a transfer.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from protocol.identifiers import ID_EXPECTED, is_id
from protocol.limits import MAX_RANKS, MAX_ROOM_TOKENS

_ENDPOINT = re.compile(r"tcp://(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([1-9]\d{0,4})")
_MISSING = object()


class TransferParamsError(ValueError):
    """A request's ``kv_transfer_params`` cannot be used; ``problems`` says everything that is wrong."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Save:
    """What a prefill request asks for. ``None``: the connector's own choice."""

    room: str | None
    endpoints: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Fetch:
    """What a decode request asks for. ``None``: the connector's setting, or the prompt's length."""

    room: str
    group: str | None
    num_tokens: int | None


def read_save(params: object) -> Save | None:
    """What a prefill engine is asked to send, or ``None``. Raises ``TransferParamsError``."""
    if not _wants(params, "do_remote_decode"):
        return None
    checked = _Reader(params)
    save = Save(checked.id("staging_room"), checked.endpoints("decode_endpoints"))
    checked.close()
    return save


def read_fetch(params: object) -> Fetch | None:
    """What a decode engine is asked to load, or ``None``. Raises ``TransferParamsError``."""
    if not _wants(params, "do_remote_prefill"):
        return None
    checked = _Reader(params)
    room = checked.id("staging_room", required=True)
    fetch = Fetch(room or "", checked.id("staging_group"), checked.tokens("remote_num_tokens"))
    checked.close()
    return fetch


def answer(
    *, engine: str, request: str, blocks: list[int], tp_size: int, num_tokens: int, room: str, group: str
) -> dict[str, Any]:
    """What the prefill engine returns to the client, to be copied as it is into the decode engine's request."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": engine,
        "remote_request_id": request,
        "remote_block_ids": [blocks],
        # Nothing connects there: the prefill side calls the decode side. Some proxies want the keys.
        "remote_host": "127.0.0.1",
        "remote_port": 0,
        "tp_size": tp_size,
        "remote_num_tokens": num_tokens,
        "staging_room": room,
        "staging_group": group,
    }


def _wants(params: object, key: str) -> bool:
    if params is None:
        return False
    if not isinstance(params, Mapping):
        raise TransferParamsError([f"kv_transfer_params: expected a JSON object, got {type(params).__name__}"])
    return bool(params.get(key))


class _Reader:
    """Reads optional fields of one JSON object and keeps what is wrong with them."""

    def __init__(self, params: object) -> None:
        assert isinstance(params, Mapping)
        self._params = params
        self._problems: list[str] = []

    def close(self) -> None:
        """Raise ``TransferParamsError`` if anything was wrong."""
        if self._problems:
            raise TransferParamsError(self._problems)

    def id(self, key: str, *, required: bool = False) -> str | None:
        """An id of the protocol."""
        value = self._take(key)
        if value is None:
            if required:
                self._problems.append(f"{key}: missing, expected {ID_EXPECTED}")
            return None
        if not isinstance(value, str) or not is_id(value):
            self._problems.append(f"{key}: expected {ID_EXPECTED}, got {value!r:.80}")
            return None
        return value

    def tokens(self, key: str) -> int | None:
        """A number of tokens, at least one."""
        value = self._take(key)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_ROOM_TOKENS:
            self._problems.append(f"{key}: expected 1 to {MAX_ROOM_TOKENS}, got {value!r:.80}")
            return None
        return value

    def endpoints(self, key: str) -> tuple[str, ...] | None:
        """Addresses of decode ranks, in the order of the ranks."""
        value = self._take(key)
        if value is None:
            return None
        if not isinstance(value, list) or not 1 <= len(value) <= MAX_RANKS or tuple(self._wrong(value)):
            self._problems.append(
                f"{key}: expected a list of distinct addresses such as tcp://127.0.0.1:7600, got {value!r:.80}"
            )
            return None
        return tuple(value)

    def _take(self, key: str) -> Any:  # noqa: ANN401 - JSON
        value = self._params.get(key, _MISSING)
        return None if value is _MISSING else value

    @staticmethod
    def _wrong(value: list[Any]) -> Iterator[Any]:
        seen = set()
        for item in value:
            found = _ENDPOINT.fullmatch(item) if isinstance(item, str) else None
            if found is None or int(found[1]) > 65_535 or item in seen:
                yield item
            else:
                seen.add(item)
