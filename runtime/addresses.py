"""Which addresses only this machine can reach."""

import ipaddress
from collections.abc import Iterator

from runtime.settings import Problem

MAX_PORT = 65_535


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a socket bound to ``host``; a name other than ``localhost`` is not known to be."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def is_loopback_endpoint(endpoint: str) -> bool:
    """Whether ``tcp://host:port`` stays on this machine."""
    return is_loopback(endpoint.removeprefix("tcp://").rpartition(":")[0])


def bracket_problems(field: str, host: str) -> Iterator[Problem]:
    """What is wrong with a host that goes before a port, if it is an IPv6 address without its brackets."""
    if ":" in host and not host.startswith("["):
        yield Problem((field,), repr(host), "an IPv6 address in brackets", f"write [{host}]")


def is_wildcard(host: str) -> bool:
    """Whether ``host`` stands for every address of this machine, and so is none that others could use."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return host in {"", "*"}


def http_problems(host: str, *, public: bool) -> Iterator[Problem]:
    """What is wrong with the address of an HTTP port that only reads, but tells everything to whoever asks."""
    if not public and not is_loopback(host):
        advice = "bind loopback, or accept with --http-public that others read metrics, room ids and status"
        yield Problem(("http_host",), repr(host), "a loopback address", advice)
