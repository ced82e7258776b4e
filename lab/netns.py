"""Two network namespaces joined by one link that can be cut: two hosts, as far as TCP can tell. Needs root and ``ip``."""

import os
import shutil
import subprocess
from types import TracebackType
from typing import Self

from lab.chaos.expectations import Unavailable

DECODE_HOST, PREFILL_HOST = "10.77.0.1", "10.77.0.2"
_PREFIX = "pdst"
_DEVICE = "link0"


class LinkedNamespaces:
    """Namespaces ``decode`` and ``prefill`` of this process. Entering raises ``Unavailable`` where they cannot be had."""

    def __init__(self) -> None:
        self._ip = shutil.which("ip") or ""
        self.decode = f"{_PREFIX}-{os.getpid()}-d"
        self.prefill = f"{_PREFIX}-{os.getpid()}-p"

    def __enter__(self) -> Self:
        if not self._ip:
            raise Unavailable("network namespaces need the command ip: install the package iproute2")
        if os.geteuid() != 0:
            raise Unavailable("network namespaces need root: run this scenario as root, or in a container with --privileged")
        try:
            self._sweep()
            self._join()
        except subprocess.CalledProcessError as error:
            self.remove()
            text = (
                f"network namespaces cannot be made here ({error.stderr.strip()}): root needs CAP_SYS_ADMIN and CAP_NET_ADMIN"
            )
            raise Unavailable(text) from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.remove()

    def inside(self, namespace: str) -> tuple[str, ...]:
        """The start of a command line that runs the rest of it inside one of the two, under the same process id."""
        return (self._ip, "netns", "exec", namespace)

    def cut(self) -> None:
        """Take the link down: packets of both directions are lost, and nobody is told."""
        self._run("-n", self.decode, "link", "set", _DEVICE, "down")

    def mend(self) -> None:
        """Take the link up again."""
        self._run("-n", self.decode, "link", "set", _DEVICE, "up")

    def remove(self) -> None:
        """Remove both namespaces and with them the link. Repeating it changes nothing."""
        for namespace in (self.decode, self.prefill):
            subprocess.run([self._ip, "netns", "del", namespace], check=False, capture_output=True)

    def _join(self) -> None:
        for namespace in (self.decode, self.prefill):
            self._run("netns", "add", namespace)
        peer = ("peer", "name", _DEVICE, "netns", self.prefill)
        self._run("link", "add", _DEVICE, "netns", self.decode, "type", "veth", *peer)
        for namespace, address in ((self.decode, DECODE_HOST), (self.prefill, PREFILL_HOST)):
            self._run("-n", namespace, "addr", "add", f"{address}/24", "dev", _DEVICE)
            self._run("-n", namespace, "link", "set", _DEVICE, "up")

    def _sweep(self) -> None:
        """Remove the namespaces of runs that were killed."""
        for line in self._run("netns", "list").splitlines():
            name = line.split()[0]
            prefix, _, rest = name.partition("-")
            pid = rest.partition("-")[0]
            if prefix == _PREFIX and pid.isdigit() and not os.path.exists(f"/proc/{pid}"):  # noqa: PTH110 - a process, not a file
                subprocess.run([self._ip, "netns", "del", name], check=False, capture_output=True)

    def _run(self, *arguments: str) -> str:
        return subprocess.run([self._ip, *arguments], check=True, capture_output=True, text=True).stdout
