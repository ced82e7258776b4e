"""The rings of replayed decode machines in space and time, drawn like those of a daemon's status page."""

from collections.abc import Sequence

from decode_service.handler import DecodeStagingHandler
from decode_service.observing import boxes
from lab.replay import Replayed
from runtime.spacetime import Panel, draw


def plot(results: Sequence[Replayed]) -> str:
    """One SVG picture with a panel for each decode machine, up to the moment at which its replay stopped."""
    return draw([panel for result in results if (panel := _panel(result)) is not None])


def _panel(result: Replayed) -> Panel | None:
    machine = result.machine
    if not isinstance(machine, DecodeStagingHandler):
        return None
    drawn = boxes(machine.state)
    since = min((box.granted_at for box in drawn), default=result.now)
    return Panel(result.name, machine.state.grants.allocator.total_size, since, result.now, drawn)
