"""What the connector reads of vLLM's configuration and caches, and what it refuses to serve."""

from typing import Any, Final

import torch
import vllm
from vllm.model_executor.models.utils import extract_layer_index

from integrations.vllm.cells import CellCache, Elements
from integrations.vllm.compatibility import IncompatibleVllmError, parallel_problems, version_problem
from integrations.vllm.kernel_order import cell_order
from integrations.vllm.placement import ELEMENTS, ModelShape, as_cells
from protocol.layout import RankLayout
from runtime.logs import logger

SINGLE: Final = tuple(f"{kind}_size" for kind in ("pipeline_parallel", "data_parallel", "decode_context_parallel"))
"""Sizes that the connector serves only where they are 1."""


def check(vllm_config: Any, kv_cache_config: Any, *, allow_other: bool) -> None:  # noqa: ANN401 - vLLM's own types
    """Refuse what cannot be served. Raises ``IncompatibleVllmError``."""
    problem = version_problem(vllm.__version__)
    if problem is not None:
        if not allow_other:
            raise IncompatibleVllmError(problem)
        logger().warning("vllm_version_unknown", found=vllm.__version__, reason=problem)
    sizes = {name: getattr(vllm_config.parallel_config, name, 1) for name in SINGLE}
    if problems := parallel_problems(sizes, len(kv_cache_config.kv_cache_groups)):
        raise IncompatibleVllmError("; ".join(problems))


def is_producer(transfer: Any) -> bool:  # noqa: ANN401
    """Whether the engine prefills. Raises ``IncompatibleVllmError`` for an engine that would do both."""
    if transfer.kv_role not in {"kv_producer", "kv_consumer"}:
        raise IncompatibleVllmError(
            f"kv_role is {transfer.kv_role!r}: expected kv_producer (prefill) or kv_consumer (decode); an engine is one of them"
        )
    return bool(transfer.kv_role == "kv_producer")


def layer_names(kv_caches: dict[str, Any]) -> list[str]:
    """Names of the layers, in the order of the model."""
    return sorted(kv_caches, key=extract_layer_index)


def cells_of(vllm_config: Any, kv_caches: dict[str, Any], tp_rank: int) -> tuple[RankLayout, CellCache]:  # noqa: ANN401
    """A rank's layout and its cache as cells. Raises ``IncompatibleVllmError`` or ``LayoutError``."""
    names, model = layer_names(kv_caches), vllm_config.model_config
    tp_size, block_size = vllm_config.parallel_config.tensor_parallel_size, vllm_config.cache_config.block_size
    first = kv_caches[names[0]]
    if first.device.type != "cpu" or first.dtype.itemsize not in ELEMENTS:
        raise IncompatibleVllmError(
            f"a KV cache of {first.dtype} on {first.device}: this connector serves vLLM's CPU backend with caches of 2 or 4 "
            "bytes per element (kv_cache_dtype auto)"
        )
    dtype, itemsize = str(first.dtype).removeprefix("torch."), first.dtype.itemsize
    shape = ModelShape(len(names), model.get_total_num_kv_heads(), model.get_head_size(), dtype, itemsize)
    layers = [as_cells(_array(kv_caches[name]), shape, block_size, tp_size) for name in names]
    return shape.rank(tp_rank, tp_size), CellCache(layers, cell_order(first.dtype, block_size, shape.head_size))


def allow_amx() -> None:
    """Ask the kernel for the use of AMX, where there is one: a decode engine whose first step is one token never does."""
    if torch.cpu._is_amx_tile_supported():  # noqa: SLF001 - torch offers no other way
        torch.cpu._init_amx()  # noqa: SLF001


def _array(tensor: Any) -> Elements:  # noqa: ANN401
    itemsize: int = tensor.dtype.itemsize
    array: Elements = tensor.view({2: torch.int16, 4: torch.int32}[itemsize]).numpy()
    elements: Elements = array.view(ELEMENTS[itemsize])
    return elements
