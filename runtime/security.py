"""CURVE on a daemon's sockets: encryption, the decode daemon's identity, and which client is speaking.

*Decode side* (``ServerSecurity``): one secret key for all its control and data sockets, and the allow-list that says for every
handshake and again for every frame whose key is good for what. *Prefill side* (``ClientSecurity``): its own secret key, and the
public key that each decode endpoint must prove to have.

Every file is looked at about once a second and at SIGHUP. A changed file takes effect without a restart; one that cannot be
used is reported and changes nothing. A new key makes the connections anew that use it; what they carried is repeated.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import zmq

from runtime.allow_list import AllowList, AllowListError, Client, load_allow_list
from runtime.endpoint import Context, Socket
from runtime.errors import StartError
from runtime.file_watch import FileWatch
from runtime.key_files import KeyFileError, KeyPair, is_readable_by_all, read_key_pair
from runtime.known_servers import KnownServers, KnownServersError, load_known_servers
from runtime.logs import logger
from runtime.settings import Problem
from runtime.zap import ZAP_DOMAIN, ZapHandler

CHECK_S = 1.0
"""How often key files and lists are looked at."""

_ERRORS = (KeyFileError, AllowListError, KnownServersError)
_ADVICE = "correct the file; keygen makes keys, docs/security.md shows the lists"

T = TypeVar("T")


class Listener:
    """A listening socket whose key can be replaced."""

    def __init__(self, socket: Socket, address: str) -> None:
        self.socket = socket
        self.address = address
        taken: bytes = socket.getsockopt(zmq.LAST_ENDPOINT)  # type: ignore[assignment] # this option is bytes
        self.bound = taken.rstrip(b"\0").decode("ascii")
        """How libzmq names it: resolved."""
        self.rebind_due = False


class ServerSecurity:
    """The decode daemon's key and its allow-list. Raises ``StartError`` if either cannot be used."""

    def __init__(self, server_key: Path, allow_list: Path, clock: Callable[[], float]) -> None:
        self._key_file = server_key
        self._list_file = allow_list
        self._clock = clock
        self._log = logger()
        self._watch = FileWatch((server_key, allow_list))
        self._due = clock() + CHECK_S
        self._listeners: list[Listener] = []
        self._zap: ZapHandler | None = None
        self._keys: KeyPair = _or_start_error(lambda: read_key_pair(server_key))
        self._list: AllowList = _or_start_error(lambda: load_allow_list(allow_list))
        _warn_if_readable(server_key)

    @property
    def public_key(self) -> str:
        """What clients must know."""
        return self._keys.public

    def open_zap(self, context: Context) -> ZapHandler:
        """The socket on which libzmq asks about handshakes; before any socket is protected."""
        self._zap = ZapHandler(context, lambda key: self.client(key) is not None, self._clock)
        return self._zap

    def protect(self, socket: Socket) -> None:
        """Let only clients of the allow-list in. Before the socket is bound."""
        socket.curve_server = 1
        socket.curve_secretkey = self._keys.secret.encode("ascii")
        socket.zap_domain = ZAP_DOMAIN.encode("ascii")
        # Without this a client would be let in unasked while nobody answers.
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)

    def watch_listener(self, socket: Socket, address: str) -> None:
        """Bind this socket anew when the server key changes, which ends its connections. ``address`` is what it is bound to."""
        self._listeners.append(Listener(socket, address))

    def client(self, public_key: str) -> Client | None:
        """Whose key this is by the list as it is now."""
        return self._list.client(public_key)

    def counts(self) -> dict[str, object]:
        """What became of handshakes."""
        return {"handshakes": dict(self._zap.verdicts) if self._zap is not None else {}, "clients": len(self._list.by_key)}

    def reload(self) -> None:
        """Read both files now."""
        self._reload_list()
        self._reload_key()

    # ---- the loop's interface -------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When the files are looked at again."""
        return self._due

    def tick(self, now: float) -> None:
        """Look at the files, and bind again what could not be bound."""
        self._due = now + CHECK_S
        if self._watch.changed():
            self.reload()
        self._rebind()

    def flush(self, now: float) -> None:
        """Nothing is owed."""

    def _reload_list(self) -> None:
        try:
            found = load_allow_list(self._list_file)
        except AllowListError as error:
            self._log.error("allow_list_rejected", reason=str(error), kept_keys=len(self._list.by_key))
            return
        removed = sorted({self._list.by_key[key].name for key in self._list.by_key.keys() - found.by_key.keys()})
        added = len(found.by_key.keys() - self._list.by_key.keys())
        self._list = found
        self._log.info("allow_list_loaded", keys=len(found.by_key), added_keys=added, removed_keys_of=removed)

    def _reload_key(self) -> None:
        try:
            found = read_key_pair(self._key_file)
        except KeyFileError as error:
            self._log.error("server_key_rejected", reason=str(error))
            return
        if found == self._keys:
            return
        self._keys = found
        self._log.info("server_key_replaced", public_key=found.public)
        for listener in self._listeners:
            listener.socket.curve_secretkey = found.secret.encode("ascii")
            if not listener.rebind_due:
                listener.socket.unbind(listener.bound)
            listener.rebind_due = True
        self._rebind()

    def _rebind(self) -> None:
        """Libzmq lets go of a port in its own thread, so the first try may come too early."""
        for listener in self._listeners:
            if listener.rebind_due:
                try:
                    listener.socket.bind(listener.address)
                except zmq.ZMQError as error:
                    self._due = self._clock() + CHECK_S / 20
                    self._log.debug("rebind_postponed", address=listener.address, reason=str(error))
                else:
                    listener.rebind_due = False


class ClientSecurity:
    """The prefill daemon's key, and the key of every decode endpoint. Raises ``StartError`` if either cannot be used."""

    def __init__(self, client_key: Path, server_keys: Path) -> None:
        self._key_file = client_key
        self._servers_file = server_keys
        self._log = logger()
        self._watch = FileWatch((client_key, server_keys))
        self._keys: KeyPair = _or_start_error(lambda: read_key_pair(client_key))
        self._servers: KnownServers = _or_start_error(lambda: load_known_servers(server_keys))
        _warn_if_readable(client_key)

    @property
    def public_key(self) -> str:
        """What the decode daemons' allow-lists must hold."""
        return self._keys.public

    def keys_known(self, endpoint: str) -> int:
        """How many keys of this decode endpoint are known."""
        return len(self._servers.keys_of(endpoint))

    def protect(self, socket: Socket, endpoint: str, attempt: int = 0) -> None:
        """Talk only to whoever holds the key of that decode endpoint. Before each connect. Raises ``StartError``.

        Where several keys are known, each ``attempt`` takes the next one.
        """
        servers = self._servers.keys_of(endpoint)
        if not servers:
            raise StartError(f"connect to {endpoint}", "its public key is not known", f"add it to {self._servers_file}")
        socket.curve_publickey = self._keys.public.encode("ascii")
        socket.curve_secretkey = self._keys.secret.encode("ascii")
        socket.curve_serverkey = servers[attempt % len(servers)].encode("ascii")

    def files_changed(self) -> bool:
        """Whether a file is different since the last call."""
        return self._watch.changed()

    def reload(self) -> bool:
        """Read both files; true if connections must be made anew."""
        try:
            keys, servers = read_key_pair(self._key_file), load_known_servers(self._servers_file)
        except _ERRORS as error:
            self._log.error("keys_rejected", reason=str(error))
            return False
        if (keys, servers) == (self._keys, self._servers):
            return False
        self._keys, self._servers = keys, servers
        self._log.info("keys_replaced", public_key=keys.public)
        return True


def key_file_problem(field: str, read: Callable[[], object]) -> Iterator[Problem]:
    """What is wrong with the file that the setting ``field`` names, if ``read`` cannot read it."""
    try:
        read()
    except _ERRORS as error:
        yield Problem((field,), str(error), "a file that can be used")


def _or_start_error(read: Callable[[], T]) -> T:
    try:
        return read()
    except _ERRORS as error:
        raise StartError("use the keys", str(error), _ADVICE) from error


def _warn_if_readable(path: Path) -> None:
    if is_readable_by_all(path):
        logger().warning("secret_key_readable_by_all", path=str(path))
