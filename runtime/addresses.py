"""Which addresses only this machine can reach."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a socket bound to ``host``; a name other than ``localhost`` is not known to be."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def is_loopback_endpoint(endpoint: str) -> bool:
    """Whether ``tcp://host:port`` stays on this machine."""
    return is_loopback(endpoint.removeprefix("tcp://").rpartition(":")[0])


def is_wildcard(host: str) -> bool:
    """Whether ``host`` stands for every address of this machine, and so is none that others could use."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return host in {"", "*"}
