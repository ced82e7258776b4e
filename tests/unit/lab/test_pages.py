"""Pages are lent once and come back once."""

import pytest

from lab.pages import PageAllocator, PagesExhausted, pages_needed


def test_pages_are_lent_to_one_request_at_a_time() -> None:
    """Two requests never share a page, and freed pages come round again."""
    pages = PageAllocator(5)
    first, second = pages.allocate(2), pages.allocate(3)
    assert set(first).isdisjoint(second)
    pages.release(first)
    assert pages.free_pages == 2
    assert set(pages.allocate(2)) == set(first)


def test_exhaustion_lends_nothing() -> None:
    """A request that does not fit leaves the free pages as they were."""
    pages = PageAllocator(3)
    pages.allocate(1)
    with pytest.raises(PagesExhausted, match="3 pages needed, 2 of 3 free"):
        pages.allocate(3)
    assert pages.free_pages == 2


@pytest.mark.parametrize("wrong", [(0,), (7,), (1, 1)])
def test_a_page_that_is_not_lent_cannot_come_back(wrong: tuple[int, ...]) -> None:
    """Freeing twice, freeing a stranger and freeing a repeated page are errors, and change nothing."""
    pages = PageAllocator(2)
    pages.release(pages.allocate(1))
    lent = pages.allocate(1)
    assert lent == (1,)
    with pytest.raises(ValueError, match="not lent"):
        pages.release(wrong)
    assert pages.free_pages == 1


def test_pages_needed_counts_the_prefix_within_the_first_page() -> None:
    """The last page may be partly filled, and so may the first."""
    assert [pages_needed(tokens, 4) for tokens in (1, 4, 5)] == [1, 1, 2]
    assert pages_needed(4, 4, first_token=1) == 2
