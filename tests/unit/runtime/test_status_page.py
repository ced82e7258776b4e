"""The status page is one file that asks nobody but its own daemon, and never makes markup of a name."""

import re

from runtime.status_page import CONTENT_SECURITY_POLICY, status_page


def test_it_is_one_file_without_anything_from_outside() -> None:
    """No address of another place, no script or style of another file."""
    page = status_page().decode("utf-8")
    assert re.findall(r"https?://[^\s\"'<]+", page) == []
    assert re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"(?!data:,)", page) == []
    assert "connect-src 'self'" in CONTENT_SECURITY_POLICY


def test_names_are_never_markup() -> None:
    """Rooms may be called anything, so text goes in as text."""
    page = status_page().decode("utf-8")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", page)
