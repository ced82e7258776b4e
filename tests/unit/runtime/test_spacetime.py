"""The picture of a ring: every grant in its place and time, whatever its room is called."""

import xml.etree.ElementTree as ET
from pathlib import Path

from runtime.spacetime import LEFT, PANEL, WIDTH, Box, Panel, draw, size_text, tail_steps

SVG = "{http://www.w3.org/2000/svg}"


def drawn(*boxes: Box, since: float = 0.0, until: float = 10.0, ring: int = 100) -> ET.Element:
    """The picture as a tree."""
    return ET.fromstring(draw([Panel("ring", ring, since, until, boxes)]))


def rects(picture: ET.Element, style: str) -> list[dict[str, str]]:
    """The boxes of one style."""
    return [rect.attrib for rect in picture.iter(f"{SVG}rect") if rect.get("class", "").split(" ")[0] == style]


def test_a_grant_is_a_box_in_space_and_time() -> None:
    """Half the time on the right, the upper half of the ring: first pale, then full."""
    picture = drawn(Box("r", 0, 1, 1, 50, 100, 5.0, ready_at=7.5, ended_at=10.0, outcome="consumed"))
    (wait,), (held,) = rects(picture, "wait"), rects(picture, "held")
    middle = LEFT + (float(held["x"]) - LEFT) * 2 / 3
    assert abs(float(wait["x"]) - middle) < 1
    assert abs(float(held["x"]) + float(held["width"]) - (WIDTH - 14)) < 1
    assert float(wait["y"]) == float(held["y"]) < PANEL / 2


def test_a_quarantined_grant_is_crossed() -> None:
    """From the moment it was closed, until it ends or now."""
    picture = drawn(Box("r", 0, 1, 0, 0, 50, 1.0, ready_at=1.0, closed_at=6.0))
    assert len(rects(picture, "closed")) == len(rects(picture, "held")) == 1
    assert "live" in rects(picture, "closed")[0]["class"]


def test_what_lies_outside_is_not_drawn() -> None:
    """A grant that ended before the picture begins leaves no box."""
    assert rects(drawn(Box("r", 0, 1, 0, 0, 50, 1.0, 1.0, None, 2.0), since=5.0), "held") == []


def test_a_room_may_be_called_anything() -> None:
    """Markup in a room's name is text, and the picture stays well formed."""
    name = "<script>alert('\"&')</script>"
    picture = drawn(Box(name, 0, 1, 0, 0, 50, 1.0))
    assert [node for node in picture.iter() if node.tag.endswith("script")] == []
    titles = [title.text or "" for title in picture.iter(f"{SVG}title")]
    assert name in titles[0]


def test_the_tail_rests_on_the_oldest_live_grant() -> None:
    """It steps when the oldest ends, not when a later one does, and falls to zero in an empty ring."""
    boxes = [
        Box("a", 0, 1, 0, 0, 40, 1.0, 1.0, None, 5.0),
        Box("b", 0, 2, 0, 40, 80, 2.0, 2.0, None, 4.0),
        Box("c", 0, 3, 0, 80, 100, 3.0, 3.0, None, 6.0),
    ]
    assert tail_steps(boxes, 10.0) == [(1.0, 0), (5.0, 80), (6.0, 0)]
    assert tail_steps(boxes, 5.5) == [(1.0, 0), (5.0, 80)]


def test_panels_stand_below_each_other(tmp_path: Path) -> None:
    """One picture of two rings, which any viewer of SVG opens; without any ring it is empty."""
    panels = [Panel(f"ring {number}", 100, 0.0, 1.0, ()) for number in range(2)]
    file = tmp_path / "rings.svg"
    file.write_text(draw(panels), encoding="utf-8")
    assert ET.parse(file).getroot().get("height") == str(2 * PANEL)
    assert ET.fromstring(draw([])).get("height") == str(PANEL)


def test_sizes_are_said_as_people_say_them() -> None:
    """With the unit that leaves few digits."""
    assert [size_text(number) for number in (0, 1023, 1536, 3 << 20, 1 << 42)] == ["0 B", "1023 B", "1.5 KiB", "3 MiB", "4 TiB"]
