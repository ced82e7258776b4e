"""The ring in space and time, as one SVG picture: time runs to the right, bytes of the ring upwards, a grant is a box.

    bytes ^      +------+   pale: granted, and waiting for the watermark
          |  +---|######|   full: it could be written and was not given back yet
          |  |###|  +------------  crossed red: closed, waiting for proof that nobody writes
          +--------------------> time

A stair shows the tail, which is the oldest live grant: whatever holds it up is the box that it rests on. The picture is the
same for a daemon's status page, for a demonstration and for a replay. It needs nothing from outside and runs no script.
"""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape, quoteattr

WIDTH: Final = 960
PANEL: Final = 220
LEFT: Final = 78
RIGHT: Final = 14
TOP: Final = 30
BOTTOM: Final = 34
MAX_BOXES: Final = 4000
"""Boxes drawn of one panel: the latest ones."""

STYLE: Final = """
text{font:12px system-ui,sans-serif;fill:#333}.title{font-weight:600}.axis{stroke:#999}.grid{stroke:#e4e4e4}
.wait{fill-opacity:.22}.held{fill-opacity:.85}.closed{fill:url(#cross);stroke:#c00;stroke-width:1.5}
.tail{fill:none;stroke:#111;stroke-width:1.2}.live{stroke:#111;stroke-width:.8}
"""

CROSSED: Final = """<defs><pattern id="cross" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
<rect width="6" height="6" fill="#fdd"/><path d="M0 0V6" stroke="#c00" stroke-width="2"/></pattern></defs>"""


@dataclass(frozen=True, slots=True)
class Box:
    """One grant: where it lies and when. Times are seconds of one clock; ``None`` has not happened."""

    room: str
    chunk: int
    alloc_id: int
    round: int
    offset: int
    end: int
    granted_at: float
    ready_at: float | None = None
    closed_at: float | None = None
    ended_at: float | None = None
    outcome: str = ""
    """How it ended, in a word."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One ring between two moments."""

    title: str
    ring_bytes: int
    since: float
    until: float
    boxes: Sequence[Box]


def draw(panels: Sequence[Panel]) -> str:
    """One picture, the panels one below the other."""
    height = max(1, len(panels)) * PANEL
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<style>{STYLE}</style>",
        CROSSED,
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
    ]
    for number, panel in enumerate(panels):
        parts.append(f'<g transform="translate(0,{number * PANEL})">')
        parts.extend(_panel(panel))
        parts.append("</g>")
    return "\n".join((*parts, "</svg>"))


def tail_steps(boxes: Sequence[Box], until: float) -> list[tuple[float, int]]:
    """``(time, tail)`` wherever the oldest live grant changes; a ring without live grants has its tail at 0.

    Ids are given in the order of granting, so the oldest live one is the lowest. A grant counts from its first moment to its
    last.
    """
    events = sorted(
        [(box.granted_at, 1, box) for box in boxes] + [(box.ended_at, 0, box) for box in boxes if box.ended_at is not None],
        key=lambda event: (event[0], event[1], event[2].alloc_id),
    )
    live: dict[int, Box] = {}
    steps: list[tuple[float, int]] = []
    for at, opens, box in events:
        if opens:
            live[box.alloc_id] = box
        else:
            live.pop(box.alloc_id, None)
        # Grants are put in with rising ids, and a dictionary keeps that order.
        tail = next(iter(live.values())).offset if live else 0
        if at <= until and (not steps or steps[-1][1] != tail):
            steps.append((at, tail))
    return steps


def size_text(num_bytes: float) -> str:
    """A number of bytes as people say it."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.4g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.4g} TiB"


def _panel(panel: Panel) -> Iterator[str]:
    boxes = sorted(panel.boxes, key=lambda box: box.alloc_id)[-MAX_BOXES:]
    scale = _Scale(panel)
    yield f'<text class="title" x="{LEFT}" y="18">{escape(panel.title)}</text>'
    yield from _axes(panel, scale)
    for box in boxes:
        yield from _box(box, panel, scale)
    yield _tail(boxes, panel, scale)


class _Scale:
    """From seconds and bytes to places within a panel."""

    def __init__(self, panel: Panel) -> None:
        self._since = panel.since
        self._per_second = (WIDTH - LEFT - RIGHT) / max(panel.until - panel.since, 1e-9)
        self._per_byte = (PANEL - TOP - BOTTOM) / max(panel.ring_bytes, 1)

    def x(self, at: float) -> float:
        """Never left of the axis."""
        return LEFT + max(0.0, at - self._since) * self._per_second

    def y(self, offset: int) -> float:
        """Byte 0 is at the bottom."""
        return PANEL - BOTTOM - offset * self._per_byte


def _axes(panel: Panel, scale: _Scale) -> Iterator[str]:
    for step in range(5):
        offset = panel.ring_bytes * step // 4
        y = f"{scale.y(offset):.1f}"
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
        yield f'<text x="{LEFT - 6}" y="{y}" text-anchor="end" dominant-baseline="middle">{size_text(offset)}</text>'
    span = panel.until - panel.since
    for step in range(7):
        at = panel.since + span * step / 6
        x = f"{scale.x(at):.1f}"
        anchor = "end" if step == 6 else "middle"
        yield f'<line class="axis" x1="{x}" x2="{x}" y1="{PANEL - BOTTOM}" y2="{PANEL - BOTTOM + 4}"/>'
        yield f'<text x="{x}" y="{PANEL - BOTTOM + 18}" text-anchor="{anchor}">{at - panel.until:.3g} s</text>'
    low = scale.y(0)
    yield f'<path class="axis" d="M{LEFT} {TOP}V{low:.1f}H{WIDTH - RIGHT}" fill="none"/>'


def _box(box: Box, panel: Panel, scale: _Scale) -> Iterator[str]:
    ended = panel.until if box.ended_at is None else box.ended_at
    if ended < panel.since or box.granted_at > panel.until:
        return
    ready = ended if box.ready_at is None else min(box.ready_at, ended)
    closed = ended if box.closed_at is None else max(min(box.closed_at, ended), ready)
    colour = f"hsl({zlib.crc32(box.room.encode()) % 360},62%,46%)"
    name = quoteattr(f"{box.room}/{box.chunk}")
    live = " live" if box.ended_at is None else ""
    yield f"<g data-grant={name}><title>{escape(_words(box, panel.until))}</title>"
    for style, begin, stop in (("wait", box.granted_at, ready), ("held", ready, closed), ("closed", closed, ended)):
        if stop > begin and stop > panel.since:
            left, right = scale.x(begin), scale.x(stop)
            top, bottom = scale.y(box.end), scale.y(box.offset)
            fill = "" if style == "closed" else f' fill="{colour}"'
            place = f'x="{left:.1f}" y="{top:.1f}" width="{max(right - left, 0.4):.1f}" height="{max(bottom - top, 0.6):.1f}"'
            yield f'<rect class="{style}{live}" {place}{fill}/>'
    yield "</g>"


def _words(box: Box, until: float) -> str:
    where = f"room {box.room} chunk {box.chunk}, grant {box.alloc_id}: bytes {box.offset} to {box.end} of round {box.round}"
    waited = (box.ended_at or until) if box.ready_at is None else box.ready_at
    lines = [where, f"granted {until - box.granted_at:.2f} s ago, waited {max(0.0, waited - box.granted_at):.3f} s at the gate"]
    if box.closed_at is not None:
        lines.append(f"closed {until - box.closed_at:.2f} s ago")
    lines.append("live" if box.ended_at is None else f"{box.outcome or 'ended'} {until - box.ended_at:.2f} s ago")
    return "\n".join(lines)


def _tail(boxes: Sequence[Box], panel: Panel, scale: _Scale) -> str:
    steps = tail_steps(boxes, panel.until)
    before = [tail for at, tail in steps if at <= panel.since]
    path = [f"M{LEFT} {scale.y(before[-1] if before else 0):.1f}"]
    path += [f"H{scale.x(at):.1f}V{scale.y(tail):.1f}" for at, tail in steps if at > panel.since]
    return f'<path class="tail" d="{"".join(path)}H{scale.x(panel.until):.1f}"/>'
