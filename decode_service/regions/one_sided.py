"""The ``nixl`` and ``mooncake`` planes, decode half: the ring is registered with an engine, and writers reach it from any host.

No question about a session has an answer here. A writer that failed, timed out, was stopped or is dead may still have bytes on
their way, and taking the registration back revokes nothing; so this plane never calls a session quiet, and its region, once
replaced, is kept for as long as the process lives unless every writer's word is in.
"""

from collections.abc import Callable

from decode_service.regions.base import Quietness
from protocol.messages import Descriptor
from runtime.errors import StartError
from runtime.mooncake_engine import MooncakeTarget
from runtime.nixl_engine import NixlTarget
from runtime.one_sided import OneSidedError, Target, address_of

MakeTarget = Callable[[int, int], Target]
"""Registers ``(address, num_bytes)``. Raises ``OneSidedError``."""


class OneSidedPlane:
    """One ring, registered once for its life. Raises ``StartError``."""

    two_sided = False

    def __init__(self, name: str, buffer: memoryview, make: MakeTarget) -> None:
        self.name = name
        try:
            self._target = make(address_of(buffer), buffer.nbytes)
        except OneSidedError as error:
            advice = "look at the devices and limits it names, or leave this plane out of planes"
            raise StartError(f"offer the {name} plane", str(error), advice) from error

    def descriptor(self) -> Descriptor:
        """What the writer's engine needs."""
        return self._target.descriptor()

    def quietness(self, session: str) -> Quietness:  # noqa: ARG002 - the plane's interface
        """Never proven: nothing that this side can see says so, not even its writer's death."""
        return Quietness.NOT_PROVEN

    def forget(self, session: str) -> None:
        """Nothing is kept per session."""

    def close(self) -> None:
        """End the engine that receives for this ring; only then may the ring be unmapped."""
        self._target.close()


def nixl_plane(buffer: memoryview, agent: str) -> OneSidedPlane:
    """The ``nixl`` plane, under an agent whose name is never used again. Raises ``StartError``."""
    return OneSidedPlane("nixl", buffer, lambda address, size: NixlTarget(agent, address, size))


def mooncake_plane(buffer: memoryview, host: str) -> OneSidedPlane:
    """The ``mooncake`` plane, reachable at ``host``. Raises ``StartError``."""
    return OneSidedPlane("mooncake", buffer, lambda address, size: MooncakeTarget(host, address, size))
