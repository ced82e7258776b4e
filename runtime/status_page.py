"""The status page: one file without anything from outside, which asks this daemon alone."""

from functools import cache
from importlib.resources import files
from typing import Final

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Nothing is loaded from anywhere else, whatever a room may be called."""


@cache
def status_page() -> bytes:
    """The page as it is sent."""
    return files("runtime").joinpath("status_page.html").read_bytes()
