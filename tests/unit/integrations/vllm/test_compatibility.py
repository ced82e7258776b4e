"""Which vLLM is served, and what the others are told."""

import pytest

from integrations.vllm.compatibility import parallel_problems, version_problem


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1+cpu", "0.32.0rc1", "0.32.7.dev3+g123"])
def test_supported_versions(version: str) -> None:
    """Every patch release of the one minor version."""
    assert version_problem(version) is None


@pytest.mark.parametrize("version", ["0.31.9", "0.33.0", "1.32.0", "0.320.0", "dev", ""])
def test_other_versions_are_told_what_to_do(version: str) -> None:
    """The words name what was found, what to install, and the way to try it nevertheless."""
    problem = version_problem(version)
    assert problem is not None
    for word in (f"found {version}", "vllm==0.32.0", "allow_other_vllm"):
        assert word in problem


def test_one_of_each_is_served() -> None:
    """Tensor parallelism alone, and one kind of cache."""
    assert parallel_problems({"pipeline_parallel_size": 1, "data_parallel_size": 1}, 1) == []


def test_every_problem_is_told() -> None:
    """All at once, by vLLM's own names."""
    problems = parallel_problems({"pipeline_parallel_size": 2, "data_parallel_size": 4}, 3)
    assert len(problems) == 3
    assert problems[0].startswith("pipeline_parallel_size is 2")
    assert "3 groups" in problems[2]
