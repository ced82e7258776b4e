"""What the connector takes for vLLM's interface is vLLM's interface, so the unit tests' fakes stand for the real thing."""

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from decode_service.engine import DecodeEngine
from integrations.vllm import engine_types
from integrations.vllm.compatibility import version_problem
from prefill_service.engine import PrefillEngine
from tests.unit.integrations.vllm import fakes
from tests.vllm.engines import ENVIRONMENT

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]

STATUSES = ("FINISHED_LENGTH_CAPPED", "FINISHED_STOPPED", "FINISHED_ABORTED")
WORDS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@pytest.fixture(scope="module")
def real() -> Iterator[SimpleNamespace]:
    """Objects of vLLM's own classes, by the name of their protocol, and the two classes that must agree."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        yield SimpleNamespace(objects=real_objects(), **connector_classes())


def real_objects() -> Mapping[str, Any]:
    """One of each class that the connector reads."""
    from vllm import SamplingParams  # noqa: PLC0415 - only where vLLM is installed
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks  # noqa: PLC0415
    from vllm.v1.core.kv_cache_utils import KVCacheBlock  # noqa: PLC0415
    from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput  # noqa: PLC0415
    from vllm.v1.request import Request, RequestStatus  # noqa: PLC0415

    sampling = SamplingParams(max_tokens=1, extra_args={"kv_transfer_params": {"do_remote_decode": True}})
    request, step = Request("r", [5, 6, 7], sampling, None), SchedulerOutput.make_empty()
    return {
        "Request": request,
        "Named": RequestStatus.FINISHED_STOPPED,
        "Blocks": KVCacheBlocks(([KVCacheBlock(3), KVCacheBlock(4)],)),
        "NewRequest": NewRequestData.from_request(request, ([3, 4],)),
        "CachedRequests": step.scheduled_cached_reqs,
        "Step": step,
    }


def connector_classes() -> Mapping[str, Any]:
    """The connector, what it is a kind of, and vLLM's version."""
    import vllm  # noqa: PLC0415
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1  # noqa: PLC0415
    from vllm.v1.request import RequestStatus  # noqa: PLC0415

    from integrations.vllm.connector import PdStagingConnector  # noqa: PLC0415

    return {
        "connector": PdStagingConnector,
        "base": KVConnectorBase_V1,
        "version": vllm.__version__,
        "statuses": set(RequestStatus.__members__),
    }


FAKES: Mapping[str, Any] = {
    "Request": fakes.FakeRequest("r"),
    "Named": fakes.FakeStatus("FINISHED_STOPPED"),
    "Blocks": fakes.FakeBlocks([3, 4]),
    "NewRequest": fakes.FakeNew("r", [3, 4]),
    "CachedRequests": fakes.FakeCached(),
    "Step": fakes.FakeStep(),
}


def members(protocol: str) -> list[str]:
    """The names that a protocol asks for."""
    return [name for name in vars(getattr(engine_types, protocol)) if not name.startswith("_")]


@pytest.mark.parametrize("protocol", list(FAKES))
def test_real_objects_and_fakes_have_what_is_read(real: SimpleNamespace, protocol: str) -> None:
    """Every member that the connector reads of an object of vLLM is there, and in the fake as well."""
    assert members(protocol)
    for name in members(protocol):
        assert hasattr(real.objects[protocol], name), f"vLLM's {protocol} has no {name}"
        assert hasattr(FAKES[protocol], name), f"the fake {protocol} has no {name}"


def test_no_protocol_is_forgotten() -> None:
    """Each protocol of vLLM's objects is compared here."""
    defined = {name for name, value in vars(engine_types).items() if getattr(value, "__module__", "") == engine_types.__name__}
    assert defined == set(FAKES)


def test_values_have_the_same_form(real: SimpleNamespace) -> None:
    """Blocks come by group, sets are sets, and what is parallel is a list: in vLLM's objects as in the fakes."""
    for objects in (real.objects, FAKES):
        assert [list(group) for group in objects["Blocks"].get_block_ids()] == [[3, 4]]
        assert [list(group) for group in objects["NewRequest"].block_ids] == [[3, 4]]
        assert objects["CachedRequests"].resumed_req_ids == set()
        assert objects["CachedRequests"].new_block_ids == objects["CachedRequests"].req_ids == []
        assert objects["Step"].preempted_req_ids in (None, set())
        assert objects["Step"].num_scheduled_tokens == {}
    assert real.objects["Request"].kv_transfer_params == {"do_remote_decode": True}
    assert real.objects["Request"].num_prompt_tokens == 3


def test_statuses_exist(real: SimpleNamespace) -> None:
    """The ends of requests that the connector tells apart by name are ends that vLLM knows."""
    assert set(STATUSES) <= real.statuses


def test_hooks_have_the_signatures_of_the_base_class(real: SimpleNamespace) -> None:
    """Whatever vLLM calls takes what vLLM gives, by the same names; nothing is left abstract."""
    assert not inspect.isabstract(real.connector)
    overridden = [name for name in vars(real.connector) if name in vars(real.base) and callable(getattr(real.base, name))]
    assert "get_finished" in overridden
    for name in overridden:
        assert parameters(getattr(real.connector, name)) == parameters(getattr(real.base, name)), name


def test_the_connector_asks_for_no_hybrid_cache(real: SimpleNamespace) -> None:
    """It serves one group of blocks, and says so by not being a kind of ``SupportsHMA``."""
    assert "SupportsHMA" not in {kind.__name__ for kind in real.connector.__mro__}


@pytest.mark.parametrize("engine", [DecodeEngine, PrefillEngine])
def test_the_fake_half_has_the_commands_of_the_real_one(engine: type) -> None:
    """Each command of the fake that the real half has takes its first arguments by the same names."""
    shared = [name for name in vars(fakes.FakeHalf) if name in vars(engine) and not name.startswith("_")]
    assert "wait_room" in shared
    for name in shared:
        wanted, given = parameters(getattr(fakes.FakeHalf, name)), parameters(getattr(engine, name))
        assert given[: len(wanted)] == wanted, name


def test_other_versions_are_refused(real: SimpleNamespace) -> None:
    """The installed vLLM is the one that the connector is made for; an older or a newer one is refused with advice."""
    assert version_problem(real.version) is None
    for other in ("0.31.4", "0.33.0", "1.0.0rc1"):
        problem = version_problem(other)
        assert problem is not None
        assert other in problem
        assert "allow_other_vllm" in problem


def parameters(function: Callable[..., Any]) -> list[str]:
    """Names of what may be given by name or by place."""
    return [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind not in WORDS and name not in {"self", "cls"}
    ]
