"""The mutator keeps maps maps, and can be repeated."""

import msgpack

from tests.fuzz.frames import KINDS, RAW, check
from tests.fuzz.mutation import mutate

HEARTBEAT = bytes((0, KINDS.index(b"HEARTBEAT"))) + msgpack.packb({"session": "s", "seq": 1, "seen": [0, 0], "blocked": None})


def test_a_mutation_is_a_map_again_and_repeatable() -> None:
    """Whatever the seed, the result opens as a map, holds, and is the same for the same seed; many differ from the origin."""
    results = [mutate(HEARTBEAT, seed) for seed in range(500)]
    for seed, result in enumerate(results):
        assert result is not None
        assert isinstance(msgpack.unpackb(result[2:], strict_map_key=False), dict)
        check(result)
        assert mutate(HEARTBEAT, seed) == result
    assert len(set(results)) > 50


def test_what_holds_no_map_is_left_to_the_fuzzer() -> None:
    """Raw frames, rubbish and scalars have nothing to change."""
    for data in (b"", bytes((RAW, 0, 1)), b"\x00\x00\xc1", b"\x00\x00\x05", b"\x00\x00\x80"):
        assert mutate(data, 1) is None
