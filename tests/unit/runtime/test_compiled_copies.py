"""The compiled loop: the same bytes, and a clear word where it cannot be had."""

import sys

import numpy as np
import pytest

from runtime.compiled_copies import CompiledCopiesError, address_of, load_copy_rows, require_compiled_copies
from runtime.compiled_instructions import LINE_BYTES
from runtime.errors import StartError


def test_rows_of_every_stack_token_and_head_are_moved_both_ways() -> None:
    """Two stacks of three tokens of two heads, with gaps in the pool and none in the block."""
    pool = np.arange(2 * 60, dtype=np.uint8)
    block = np.zeros(2 * 3 * 2 * 4, np.uint8)
    tokens = np.array([40, 0, 20], np.int64)
    copy = load_copy_rows()
    copy(False, 2, address_of(pool), 60, address_of(block), 24, tokens, 2, 10, 4)
    expected = [pool[stack * 60 + token + head * 10 :][:4] for stack in range(2) for token in tokens for head in range(2)]
    assert block.tobytes() == b"".join(row.tobytes() for row in expected)

    target = np.zeros_like(pool)
    copy(True, 2, address_of(target), 60, address_of(block), 24, tokens, 2, 10, 4)
    changed = np.flatnonzero(target)
    assert len(changed) == len(block) - 1  # one of the bytes copied is a zero
    assert np.array_equal(target[changed], pool[changed])


@pytest.mark.parametrize("width", [1, 24, 64, 192, 256, 4096])
@pytest.mark.parametrize("shift", [0, 8])
def test_whole_lines_and_others_wherever_they_begin(width: int, shift: int) -> None:
    """Rows of every length, aligned to lines of the caches and not, arrive as they were sent and touch nothing beside them."""
    tokens = np.array([6, 1, 3, 0, 5], np.int64) * 2 * width
    pool = np.random.default_rng(width).integers(1, 256, 14 * width + 128, np.uint8)
    block, target = np.zeros(5 * width + 128, np.uint8), np.zeros_like(pool)
    places = [address + -address % LINE_BYTES + shift for address in map(address_of, (pool, block, target))]
    copy = load_copy_rows()
    copy(False, 1, places[0], 0, places[1], 0, tokens, 1, 0, width)
    copy(True, 1, places[2], 0, places[1], 0, tokens, 1, 0, width)

    begins = [place - address_of(memory) for place, memory in zip(places, (pool, block, target), strict=True)]
    rows = [pool[begins[0] + token :][:width] for token in tokens]
    assert block[begins[1] :][: 5 * width].tobytes() == b"".join(row.tobytes() for row in rows)
    assert [target[begins[2] + token :][:width].tobytes() for token in tokens] == [row.tobytes() for row in rows]
    assert np.count_nonzero(block) == np.count_nonzero(target) == 5 * width


def test_a_missing_compiler_is_said_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was wanted, what is missing and what to do; nobody who does not want it is asked for it."""
    monkeypatch.setitem(sys.modules, "numba", None)
    load_copy_rows.cache_clear()
    require_compiled_copies(wanted=False)
    with pytest.raises(CompiledCopiesError, match="numba cannot be imported"):
        load_copy_rows()
    with pytest.raises(StartError, match=r"use compiled copies: numba .*pip install 'pd-staging\[fast\]'; or leave"):
        require_compiled_copies(wanted=True)
