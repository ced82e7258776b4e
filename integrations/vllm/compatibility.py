"""Which vLLM this connector is made for. Its connector interface is experimental: it changes between minor versions."""

import re
from typing import Final

SUPPORTED: Final = (0, 32)
"""Major and minor version whose interface the connector was built and tested with."""


class IncompatibleVllmError(RuntimeError):
    """This vLLM, or this set-up of it, cannot be served. The text says what to do."""


def version_problem(version: str) -> str | None:
    """What is wrong with this version of vLLM and what to do about it; ``None`` for a supported one."""
    found = re.match(r"(\d+)\.(\d+)(?:\D|$)", version)
    if found is not None and (int(found[1]), int(found[2])) == SUPPORTED:
        return None
    wanted = ".".join(map(str, SUPPORTED))
    return (
        f"this connector is made for vLLM {wanted}.x and found {version}: install vllm=={wanted}.0, or a version of pd-staging "
        'made for yours, or set "allow_other_vllm": true in kv_connector_extra_config to try it at your own risk'
    )


def parallel_problems(sizes: dict[str, int], groups: int) -> list[str]:
    """Every kind of parallelism and of cache that the connector does not serve, in words; ``sizes`` by vLLM's name."""
    problems = [
        f"{name} is {size}: only 1 is supported, beside any tensor_parallel_size" for name, size in sizes.items() if size > 1
    ]
    if groups != 1:
        problems.append(f"the model's KV cache has {groups} groups: only 1 is supported (full attention in every layer)")
    return problems
