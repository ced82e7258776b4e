"""A daemon starts engines for exactly the one-sided planes that it may use."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from prefill_service import plane_access
from prefill_service.plane_access import open_access
from runtime.errors import StartError
from runtime.one_sided import OneSidedError
from tests.unit.embedded import prefill_config


def test_planes_of_this_package_need_no_engine(tmp_path: Path) -> None:
    """With ``shm`` and ``zmq`` nothing is started, and the others have their reason."""
    with ExitStack() as undo:
        access = open_access(prefill_config(tmp_path, planes=("zmq", "shm")), 1, undo)
    assert access.selection.planes == ("zmq", "shm")
    assert set(access.selection.left_out) == {"nixl", "mooncake"}
    assert access.initiators == {}


def test_an_engine_that_does_not_start_is_a_start_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plane that was chosen and cannot work keeps the daemon from starting, with the reason."""

    def refuse() -> None:
        raise OneSidedError("no port is left")

    monkeypatch.setattr(plane_access, "MooncakeInitiator", refuse)
    config = prefill_config(tmp_path, planes=("zmq",))
    object.__setattr__(config, "planes", ("mooncake",))
    with ExitStack() as undo, pytest.raises(StartError, match="use the mooncake plane: no port is left"):
        open_access(config, 1, undo)
