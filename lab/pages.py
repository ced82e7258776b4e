"""Pages of a simulated engine: which page ids of its KV pools are free.

One engine instance keeps the same page ids on every rank of its group, so one allocator serves all of a group's pools.
Pages come back in the order in which they were freed, so a page that was given back too early is soon overwritten, and the
comparison after each request would see it.
"""

from collections import deque


class PagesExhausted(Exception):
    """Fewer pages are free than a request needs."""


class PageAllocator:
    """Page ids ``0 .. num_pages - 1``, each either free or lent to one request."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free: deque[int] = deque(range(num_pages))
        self._lent: set[int] = set()

    @property
    def free_pages(self) -> int:
        """How many pages could be lent now."""
        return len(self._free)

    def allocate(self, count: int) -> tuple[int, ...]:
        """Lend ``count`` pages. Raises ``PagesExhausted``, and lends nothing, if fewer are free."""
        if count > len(self._free):
            raise PagesExhausted(f"{count} pages needed, {len(self._free)} of {self.num_pages} free")
        pages = tuple(self._free.popleft() for _ in range(count))
        self._lent.update(pages)
        return pages

    def release(self, pages: tuple[int, ...]) -> None:
        """Take lent pages back. Raises ``ValueError`` for a page that is not lent: it would be lent twice."""
        wrong = [page for page in pages if page not in self._lent]
        if wrong or len(set(pages)) != len(pages):
            raise ValueError(f"pages that are not lent: {wrong or pages}")
        self._lent.difference_update(pages)
        self._free.extend(pages)


def pages_needed(num_tokens: int, page_size: int, first_token: int = 0) -> int:
    """Pages that hold ``num_tokens`` tokens of which the first is token ``first_token`` of the first page."""
    return -(-(first_token + num_tokens) // page_size)
