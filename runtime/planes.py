"""Which data planes this process can use: the order of preference, what each needs, and why one is left out.

``auto`` takes every plane that works here by itself. A plane that is named is taken or is an error: never silently another one.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from runtime import mooncake_engine, nixl_engine
from runtime.settings import Problem

AUTO = "auto"
PLANES = ("shm", "nixl", "mooncake", "zmq")
"""Best first: no copy on the way, then one-sided writes, then what works everywhere."""
PLANE_CHOICES = (AUTO, *PLANES)
ONE_SIDED_PLANES = ("nixl", "mooncake")

_LISTENS_EVERYWHERE = "it listens on every interface without authentication, so it must be named (planes)"
_LIBRARIES: Mapping[str, Callable[[], object]] = {
    "nixl": nixl_engine.load_bindings,
    "mooncake": mooncake_engine.load_binding,
}
_PACKAGES = {
    "nixl": "pip install 'pd-staging[nixl]' (without CUDA's torch: pip install --no-deps nixl-cu12==1.5.1)",
    "mooncake": "pip install 'pd-staging[mooncake]'",
}
_DEBIAN_PACKAGES = {
    "libibverbs.so.1": "libibverbs1",
    "librdmacm.so.1": "librdmacm1",
    "libnuma.so.1": "libnuma1",
    "libcurl.so.4": "libcurl4",
    "libstdc++.so.6": "libstdc++6",
}


@dataclass(frozen=True, slots=True)
class PlaneSelection:
    """The planes to offer, best first, and the reason for each that is not among them."""

    planes: tuple[str, ...]
    left_out: Mapping[str, str]


def plane_obstacle(plane: str) -> str | None:
    """What keeps this process from using a plane, and what to install; ``None`` if nothing does."""
    load = _LIBRARIES.get(plane)
    if load is None:
        return None
    try:
        load()
    except ImportError as error:
        return _obstacle(plane, error)
    return None


def select_planes(named: tuple[str, ...]) -> PlaneSelection:
    """The planes that were named, in that order; for ``auto`` those that work here, in the order of preference."""
    if named != (AUTO,):
        return PlaneSelection(named, {plane: "it is not named in planes" for plane in PLANES if plane not in named})
    left_out = {"mooncake": _LISTENS_EVERYWHERE}
    left_out |= {plane: why for plane in PLANES if plane not in left_out and (why := plane_obstacle(plane)) is not None}
    return PlaneSelection(tuple(plane for plane in PLANES if plane not in left_out), left_out)


def plane_problems(named: tuple[str, ...]) -> Iterator[Problem]:
    """Why the setting ``planes`` cannot be used on this machine."""
    if AUTO in named and len(named) > 1:
        yield Problem(("planes",), ",".join(named), f"{AUTO} alone, or names of planes")
    for plane in named:
        obstacle = plane_obstacle(plane)
        if obstacle is not None:
            yield Problem(("planes",), plane, "a plane that works on this machine", obstacle)


def _obstacle(plane: str, error: ImportError) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"its package is not installed: {_PACKAGES[plane]}"
    text = str(error)
    library = text.partition(":")[0]
    debian = _DEBIAN_PACKAGES.get(library)
    if debian is not None:
        return f"{library} is missing: apt-get install {debian}"
    return f"its package does not load: {text[:200]}"
