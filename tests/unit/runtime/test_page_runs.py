"""Page runs: which tokens lie where, and which lists of pages are refused."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.layout import ModelLayout, PageRun, RankLayout, TensorSpec
from runtime.page_runs import PageRunError, TokenRun, TokenRuns, check_page_run
from runtime.pool_layout import arrange_pool


def test_consecutive_pages_merge_into_one_run() -> None:
    """Three pages in a row and two elsewhere are two runs, cut to the tokens asked for."""
    run = PageRun((4, 5, 6, 1, 2), first_token=3)
    assert list(TokenRuns(run, 4, 8, 0, 17)) == [(TokenRun(4, 3, 9), 0), (TokenRun(1, 0, 8), 9)]
    assert list(TokenRuns(run, 4, 8, 2, 8)) == [(TokenRun(5, 1, 7), 0), (TokenRun(1, 0, 1), 7)]
    assert list(TokenRuns(run, 4, 8, 6, 2)) == [(TokenRun(6, 1, 2), 0)]
    assert list(TokenRuns(run, 4, 8, 3, 0)) == []


@settings(max_examples=60)
@given(
    st.randoms(use_true_random=False), st.sampled_from([1, 2, 16]), st.integers(0, 40), st.integers(0, 60), st.integers(0, 60)
)
def test_runs_name_each_token_where_the_page_list_puts_it(
    random: Random, page_size: int, first: int, start: int, count: int
) -> None:
    """Expanding the runs, or the index, gives the same (page, token) for every room token as looking each one up."""
    pages = list(range(200))
    random.shuffle(pages)
    if random.random() < 0.5:
        pages.sort(key=lambda page: page // 7 % 3)
    run = PageRun(tuple(pages), first)
    tokens = TokenRuns(run, page_size, 200, start, count)
    found = [divmod(part.page * page_size + part.first + at, page_size) for part, _ in tokens for at in range(part.tokens)]
    expected = [(pages[at // page_size], at % page_size) for at in range(first + start, first + start + count)]
    assert found == expected
    assert tokens.flat_index.tolist() == [page * page_size + slot for page, slot in expected]
    assert tokens.offsets(1000, 10).tolist() == [page * 1000 + slot * 10 for page, slot in expected]
    assert tokens.count == len(list(tokens))


@pytest.mark.parametrize(
    ("run", "start", "count", "complaint"),
    [
        (PageRun((0, 1)), 0, 9, "tokens 0 to 8 are not in 2 pages of 4"),
        (PageRun((0, 1), 7), 1, 1, "tokens 8 to 8 are not in 2 pages of 4"),
        (PageRun((0, 1), -9), 1, 1, "tokens -8 to -8 are not in"),
        (PageRun((6, 7, 8)), 0, 12, "page 8 is not in the pool, expected 0 to 7"),
        (PageRun((-1,)), 0, 1, "page -1 is not in the pool"),
    ],
)
def test_pages_that_do_not_hold_the_tokens_are_refused(run: PageRun, start: int, count: int, complaint: str) -> None:
    """Short lists, negative starts and pages outside the pool are named, never clipped."""
    with pytest.raises(PageRunError, match=complaint):
        TokenRuns(run, 4, 8, start, count)


LAYOUT = arrange_pool(RankLayout(ModelLayout(((TensorSpec("kv", 2, 8, "x"),),)), 0, 1, 0, 1, (0, 1)), page_size=4, num_pages=8)


@pytest.mark.parametrize(
    ("run", "count", "complaint"),
    [
        (PageRun((0, 1), -1), 4, "first_token is -1"),
        (PageRun((0, 1), 1), 8, "2 pages of 4 tokens do not hold 8 tokens from token 1 on"),
        (PageRun((0, 8)), 8, "page 8 is not in the pool, expected 0 to 7"),
        (PageRun((-1, 0)), 8, "page -1 is not in the pool"),
        (PageRun((3, 3)), 8, "a page is listed twice"),
    ],
)
def test_an_engines_page_list_is_checked_before_it_is_used(run: PageRun, count: int, complaint: str) -> None:
    """What an engine registers is refused with the number that is wrong; a right one passes."""
    check_page_run(LAYOUT, PageRun((7, 0), 3), 5)
    check_page_run(LAYOUT, PageRun(()), 0)
    with pytest.raises(PageRunError, match=complaint):
        check_page_run(LAYOUT, run, count)
