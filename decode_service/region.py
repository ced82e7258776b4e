"""One epoch of a rank's staging memory, and the planes that lead to it."""

import secrets

from decode_service.config import DecodeServiceConfig
from decode_service.handler_settings import PlaneOffer
from decode_service.regions.base import Plane, RingMemory
from decode_service.regions.memory import AnonymousRing, SharedRing, segment_name
from decode_service.regions.one_sided import OneSidedPlane, mooncake_plane, nixl_plane
from decode_service.regions.shm import ShmPlane
from decode_service.regions.zmq import ZmqPlane
from runtime.errors import StartError
from runtime.planes import ONE_SIDED_PLANES, select_planes


class StagingRegion:
    """A ring of one epoch. ``data`` is the rank's plane for other hosts, which outlives the region. Raises ``StartError``."""

    def __init__(self, config: DecodeServiceConfig, data: ZmqPlane | None) -> None:
        self.epoch = secrets.randbits(63) | 1
        self.size = config.ring_bytes
        self.ring: RingMemory
        self._planes: dict[str, Plane] = {}
        self._one_sided: list[OneSidedPlane] = []
        self._order = select_planes(config.planes).planes
        if "shm" in self._order:
            shared = SharedRing(config.shm_dir, segment_name(config.decode_id, self.epoch), self.size)
            self.ring = shared
            self._planes["shm"] = ShmPlane(shared)
        else:
            self.ring = AnonymousRing(self.size)
        if data is not None:
            self._planes["zmq"] = data
        try:
            self._register(config)
        except StartError:
            self.close()
            raise

    def plane(self, name: str) -> Plane:
        """The plane of that name; ``KeyError`` if this rank does not offer it."""
        return self._planes[name]

    def offers(self) -> tuple[PlaneOffer, ...]:
        """What the machine may offer to a prefill, the preferred one first."""
        return tuple(self._offer(self._planes[name]) for name in self._order)

    def close(self) -> None:
        """End what receives for this ring, then remove its memory."""
        for plane in self._one_sided:
            plane.close()
        self.ring.close()

    def _register(self, config: DecodeServiceConfig) -> None:
        """Register the ring with the engines of the one-sided planes, once for its life."""
        for name in ONE_SIDED_PLANES:
            if name not in self._order:
                continue
            if name == "nixl":
                plane = nixl_plane(self.ring.buffer, f"{config.decode_id}.{self.epoch:016x}")
            else:
                plane = mooncake_plane(self.ring.buffer, config.data_host or config.host)
            self._one_sided.append(plane)
            self._planes[name] = plane

    def _offer(self, plane: Plane) -> PlaneOffer:
        return PlaneOffer(
            name=plane.name,
            descriptor=plane.descriptor(),
            two_sided=plane.two_sided,
            same_host=plane.name == "shm",
            piece_bytes=plane.piece_bytes if isinstance(plane, ZmqPlane) else 0,
            reaches_retired=isinstance(plane, OneSidedPlane),
        )
