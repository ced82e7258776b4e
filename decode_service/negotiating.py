"""Which data plane a session gets: the first of ours that the prefill offers and that can reach it, and why not another."""

from decode_service.handler_settings import DecodeHandlerSettings, PlaneOffer
from protocol.messages import Subscribe


def choose_plane(settings: DecodeHandlerSettings, request: Subscribe) -> PlaneOffer | None:
    """The best plane that both sides have; ``None`` if there is none."""
    usable = (offer for offer in settings.planes if not _obstacle(settings, request, offer.name))
    return next(usable, None)


def planes_not_taken(settings: DecodeHandlerSettings, request: Subscribe, taken: str) -> dict[str, str]:
    """The reason against every other plane that either side has named, for the log."""
    ours = [offer.name for offer in settings.planes]
    named = dict.fromkeys((*ours, *request.planes))
    return {plane: _obstacle(settings, request, plane) or f"{taken} is preferred" for plane in named if plane != taken}


def _obstacle(settings: DecodeHandlerSettings, request: Subscribe, plane: str) -> str:
    offer = next((offer for offer in settings.planes if offer.name == plane), None)
    if offer is None:
        return "this decode rank does not offer it"
    if plane not in request.planes:
        return "the prefill does not offer it"
    if offer.same_host and request.host_id != settings.host_id:
        return f"no shared memory: host_id is {request.host_id} there and {settings.host_id} here"
    return ""
