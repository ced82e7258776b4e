"""Where a person finds a running daemon, and how a question is put to it: over HTTP, or over the engine's unix socket."""

import json
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import ProxyHandler, build_opener

from runtime.engine_client import EngineClient
from runtime.engine_protocol import EngineError

TIMEOUT_S: Final = 5.0
MAX_ANSWER_BYTES: Final = 64 << 20
PATHS: Final = {"explain": "/explain", "watch": "/status.json"}


class NoAnswer(Exception):
    """The daemon was not reached, or refused. The message is for people."""


class Daemon(Protocol):
    """A daemon that can be asked. Close it."""

    name: str

    def ask(self, question: str, **body: Any) -> Mapping[str, Any]:  # noqa: ANN401 - a question's body is open
        """Ask ``explain`` or ``watch``. Raises ``NoAnswer``."""

    def close(self) -> None:
        """End the connection."""


class HttpDaemon:
    """A daemon at its HTTP port; a proxy that the environment names is not asked."""

    def __init__(self, address: str) -> None:
        bare = address.removeprefix("http://").rstrip("/")
        self.name = f"http://{bare if ':' in bare else f'127.0.0.1:{bare}'}"
        self._opener = build_opener(ProxyHandler({}))

    def ask(self, question: str, **body: Any) -> Mapping[str, Any]:  # noqa: ANN401 - as above
        """Ask ``explain`` or ``watch``. Raises ``NoAnswer``."""
        query = urlencode({name: value for name, value in body.items() if value is not None})
        url = f"{self.name}{PATHS[question]}" + (f"?{query}" if query else "")
        try:
            with self._opener.open(url, timeout=TIMEOUT_S) as answer:
                found: Mapping[str, Any] = json.loads(answer.read(MAX_ANSWER_BYTES))
        except HTTPError as error:
            with error:
                text = error.read(4096).decode("utf-8", "replace").strip()
            raise NoAnswer(f"{self.name}: {text or error}") from error
        except URLError as error:
            raise NoAnswer(
                f"{self.name} was not reached: {error.reason}; is the daemon running, and is its http_port that?"
            ) from error
        except (OSError, HTTPException, ValueError) as error:
            raise NoAnswer(f"{self.name}: {error}") from error
        return found

    def close(self) -> None:
        """Nothing stays open between questions."""


class SocketDaemon:
    """A daemon at its engine's unix socket."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        if not path.is_socket():
            raise NoAnswer(f"{path} is no socket: no daemon runs there")
        self._client = EngineClient(path)

    def ask(self, question: str, **body: Any) -> Mapping[str, Any]:  # noqa: ANN401 - as above
        """Ask ``explain`` or ``watch``. Raises ``NoAnswer``."""
        try:
            return self._client.call(question, **body).result(TIMEOUT_S)
        except TimeoutError as error:
            raise NoAnswer(f"{self.name} has not answered for {TIMEOUT_S:g} s") from error
        except EngineError as error:
            raise NoAnswer(f"{self.name}: {error.message}") from error

    def close(self) -> None:
        """End the connection."""
        self._client.close()
