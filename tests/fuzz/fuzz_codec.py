"""The fuzzer: ``make fuzz``. Arguments are libFuzzer's; a finding ends it with a file that ``test_corpus`` can keep."""

import sys

import atheris

with atheris.instrument_imports():
    from tests.fuzz.frames import check

from tests.fuzz.mutation import mutate


def mutated(data: bytes, max_size: int, seed: int) -> bytes:
    """Every other input is changed as a map, the rest as bytes."""
    changed = mutate(data, seed) if seed % 2 else None
    if changed is None or len(changed) > max_size:
        found: bytes = atheris.Mutate(data, max_size)
        return found
    return changed


atheris.Setup(sys.argv, check, custom_mutator=mutated)
atheris.Fuzz()
