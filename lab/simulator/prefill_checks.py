"""What must hold in a prefill rank when it has heard a watermark, and what must be left of it at the end."""

from collections.abc import Iterator

from decode_service.handler import DecodeStagingHandler
from lab.simulator.memory import ViolationError
from prefill_service.handler import PrefillStagingHandler
from prefill_service.sessions import PeerState
from prefill_service.state import TimerKind
from protocol.watermark import START, Watermark

_STEADY = {TimerKind.HEARTBEAT, TimerKind.LEASE}


class BelievedWatermarks:
    """What a prefill rank believed last, by session: it never falls."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._highest: dict[str, Watermark] = {}

    def check(self, handler: PrefillStagingHandler, endpoint: str, decode: DecodeStagingHandler | None) -> None:
        """Compare with what it believed and, in the same epoch, with the truth; raises ``ViolationError``."""
        peer = handler.state.peers.get(endpoint)
        session = peer.session if peer is not None else None
        if session is None:
            return
        believed, before = session.gate.watermark, self._highest.get(session.id, START)
        if believed < before:
            raise ViolationError(f"{self._name} believes {believed} of {endpoint} after {before}")
        self._highest[session.id] = believed
        if decode is None or session.terms.epoch != decode.settings.epoch:
            return
        truth = decode.state.grants.allocator.get_watermark()
        if believed > truth:
            raise ViolationError(f"{self._name} believes {believed} of {endpoint}, which is at {truth}")


def prefill_leaks(handler: PrefillStagingHandler) -> Iterator[str]:
    """What is left in a rank whose rooms are all over."""
    state = handler.state
    if len(state.rooms) or state.writes.running or len(state.writes) or state.writes.in_flight:
        yield f"{len(state.rooms)} rooms, {len(state.writes.running)} writes that run, {len(state.writes)} that wait"
    for peer in state.peers.values():
        if peer.state is not PeerState.CURRENT or peer.session is None:
            yield f"no session with {peer.endpoint}: {peer.state}"
        elif len(peer.session.gate) or peer.session.busy or peer.session.running:
            yield f"chunks that still wait in the session with {peer.endpoint}"
        if peer.aborts or peer.ended or peer.stopping is not None:
            yield f"{len(peer.aborts)} aborts and {len(peer.ended)} lost sessions of {peer.endpoint}"
    if timers := [key for key in state.timers._deadline if key.kind not in _STEADY]:  # noqa: SLF001 - what was forgotten shows here
        yield f"timers {timers}"
