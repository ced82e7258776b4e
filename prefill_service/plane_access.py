"""What a prefill daemon needs to open data planes: the planes it may use, and the engines that write for all of its ranks."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

from prefill_service.config import PrefillServiceConfig
from runtime import nixl_engine
from runtime.errors import StartError
from runtime.logs import logger
from runtime.mooncake_engine import MooncakeInitiator
from runtime.nixl_engine import NixlInitiator
from runtime.one_sided import Initiator, OneSidedError
from runtime.planes import ONE_SIDED_PLANES, PlaneSelection, select_planes


@dataclass(frozen=True, slots=True)
class PlaneAccess:
    """The planes of this daemon, and one engine for each one-sided plane among them."""

    selection: PlaneSelection
    initiators: Mapping[str, Initiator] = field(default_factory=dict)


def open_access(config: PrefillServiceConfig, incarnation: int, undo: ExitStack) -> PlaneAccess:
    """Choose the planes, say why others are left out, and start the engines. Raises ``StartError``."""
    selection = select_planes(config.planes)
    log = logger(prefill_id=config.prefill_id)
    for plane, reason in selection.left_out.items():
        log.info("plane_left_out", plane=plane, reason=reason)
    initiators: dict[str, Initiator] = {}
    for plane in ONE_SIDED_PLANES:
        if plane in selection.planes:
            initiators[plane] = initiator = _start(plane, config, incarnation)
            undo.callback(initiator.close)
    return PlaneAccess(selection, initiators)


def _start(plane: str, config: PrefillServiceConfig, incarnation: int) -> Initiator:
    try:
        if plane == "mooncake":
            return MooncakeInitiator()
        nixl_engine.prepare_environment(config.nixl_devices)
        return NixlInitiator(f"{config.prefill_id}.{incarnation:016x}")
    except OneSidedError as error:
        raise StartError(f"use the {plane} plane", str(error), "leave this plane out of planes, or mend that") from error
