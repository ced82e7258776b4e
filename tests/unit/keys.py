"""Keys and lists in files, for tests of whoever uses them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtime.key_files import KeyPair, write_key_pair


class KeyRing:
    """A folder of key files, an allow-list that a test rewrites, and what each daemon is configured with."""

    def __init__(self, folder: Path, *clients: str) -> None:
        self.folder = folder / "keys"
        self.folder.mkdir()
        self.allow_list = self.folder / "allow.toml"
        self.server = write_key_pair(self.folder, "server")
        self.clients: dict[str, KeyPair] = {name: write_key_pair(self.folder, name) for name in clients}
        self.allow(*clients)

    def allow(self, *names: str) -> None:
        """Let exactly these clients in, each as the prefill and group of its name. Replaces the file as editors do."""
        entries = [f'[clients.{name}]\npublic_keys = ["{self.clients[name].public}"]\n' for name in names]
        fresh = self.folder / "allow.new"
        fresh.write_text("\n".join(entries), encoding="utf-8")
        fresh.replace(self.allow_list)

    @property
    def decode(self) -> Mapping[str, Any]:
        """Settings of a decode daemon."""
        return {"server_key": self.folder / "server.key_secret", "allow_list": self.allow_list}

    def prefill(self, name: str) -> Mapping[str, Any]:
        """Settings of a prefill daemon that holds that client's key."""
        return {"client_key": self.folder / f"{name}.key_secret", "server_keys": self.folder / "server.key"}

    def renew(self, name: str) -> None:
        """Give a client a new pair in place of its old one, and let it alone in."""
        for suffix in ("key", "key_secret"):
            (self.folder / f"{name}.{suffix}").unlink()
        self.clients[name] = write_key_pair(self.folder, name)
        self.allow(name)
