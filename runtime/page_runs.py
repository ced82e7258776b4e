"""Where a room's tokens lie in a pool's pages, cut where the pages are not consecutive."""

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from protocol.layout import PageRun
from runtime.pool_layout import PoolLayout


class PageRunError(ValueError):
    """Pages that cannot hold the tokens they are said to hold."""


class TokenRun(NamedTuple):
    """``tokens`` tokens in consecutive pages, from token ``first`` of page ``page``."""

    page: int
    first: int
    tokens: int


def check_page_run(layout: PoolLayout, run: PageRun, num_tokens: int) -> None:
    """Raise ``PageRunError`` unless ``run`` names distinct pages of this pool with room for ``num_tokens`` tokens."""
    if run.first_token < 0 or num_tokens < 0:
        raise PageRunError(f"first_token is {run.first_token} and num_tokens is {num_tokens}, expected at least 0")
    if run.first_token + num_tokens > len(run.pages) * layout.page_size:
        held = f"{len(run.pages)} pages of {layout.page_size} tokens"
        raise PageRunError(f"{held} do not hold {num_tokens} tokens from token {run.first_token} on")
    if run.pages and not (min(run.pages) >= 0 and max(run.pages) < layout.num_pages):
        bad = next(page for page in run.pages if not 0 <= page < layout.num_pages)
        raise PageRunError(f"page {bad} is not in the pool, expected 0 to {layout.num_pages - 1}")
    if len(set(run.pages)) != len(run.pages):
        raise PageRunError("a page is listed twice")


class TokenRuns:
    """Room tokens ``[token_start, + num_tokens)``, by page or cut into runs where the pages are not consecutive.

    Raises ``PageRunError`` for a page outside the pool or for tokens past the last page.
    """

    def __init__(self, run: PageRun, page_size: int, num_pages: int, token_start: int, num_tokens: int) -> None:
        start = run.first_token + token_start
        first_page, self._first = divmod(start, page_size)
        end_page = -(-(start + num_tokens) // page_size)
        if num_tokens and (start < 0 or end_page > len(run.pages)):
            raise PageRunError(f"tokens {start} to {start + num_tokens - 1} are not in {len(run.pages)} pages of {page_size}")
        self.page_size = page_size
        self.num_tokens = max(0, num_tokens)
        self._pages = np.array(run.pages[first_page:end_page] if num_tokens else (), np.int64)
        outside = self._pages[(self._pages < 0) | (self._pages >= num_pages)]
        if len(outside):
            raise PageRunError(f"page {outside[0]} is not in the pool, expected 0 to {num_pages - 1}")
        self._cuts = np.flatnonzero(np.diff(self._pages) != 1) + 1

    @property
    def count(self) -> int:
        """How many runs there are."""
        return len(self._cuts) + bool(self.num_tokens)

    def __iter__(self) -> Iterator[tuple[TokenRun, int]]:
        """Each run, and the token of this copy at which it begins."""
        done, first = 0, self._first
        begins = [0, *self._cuts.tolist()] if self.num_tokens else []
        for begin, end in zip(begins, [*begins[1:], len(self._pages)], strict=False):
            tokens = min((end - begin) * self.page_size - first, self.num_tokens - done)
            yield TokenRun(int(self._pages[begin]), first, tokens), done
            done, first = done + tokens, 0

    @cached_property
    def flat_index(self) -> NDArray[np.int64]:
        """Each token's place counted in tokens from page 0."""
        return self.offsets(self.page_size, 1)

    def offsets(self, page_stride: int, token_stride: int) -> NDArray[np.int64]:
        """Each token's distance in bytes from token 0 of page 0."""
        slots = np.arange(self.page_size, dtype=np.int64) * token_stride
        every = (self._pages[:, np.newaxis] * page_stride + slots).reshape(-1)
        return every[self._first : self._first + self.num_tokens]
