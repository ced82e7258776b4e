"""A limit on open files that cannot do is named before anything is opened."""

import resource

import pytest

from runtime.errors import StartError
from runtime.open_files import FIXED, PER_RANK, require_open_files


@pytest.mark.parametrize(("limit", "ranks"), [(FIXED + PER_RANK, 1), (FIXED + 8 * PER_RANK, 8), (resource.RLIM_INFINITY, 4096)])
def test_enough_is_enough(monkeypatch: pytest.MonkeyPatch, limit: int, ranks: int) -> None:
    """The exact number suffices, and so does no limit at all."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    require_open_files(ranks)


def test_too_few_are_refused_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what is needed, what the limit is, and which limit to raise."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (127, 4096))
    with pytest.raises(StartError, match=r"128 files that 4 ranks need: .* limit of 127; raise the limit on open files"):
        require_open_files(4)
