"""Which planes are offered: what works, in order, with a reason for each that is not; and errors that say what to install."""

from collections.abc import Callable, Mapping

import pytest

from runtime import planes
from runtime.planes import PLANES, plane_obstacle, plane_problems, select_planes


def installed() -> object:
    """A package that loads."""
    return object()


def absent() -> object:
    """A package that is not installed."""
    raise ModuleNotFoundError("No module named 'engine'", name="engine")


def without_library() -> object:
    """A package whose system library is missing."""
    raise ImportError("libibverbs.so.1: cannot open shared object file: No such file or directory", name="engine")


def broken() -> object:
    """A package that does not fit this Python."""
    raise ImportError("undefined symbol: _ZN3foo", name="engine")


def have(monkeypatch: pytest.MonkeyPatch, nixl: Callable[[], object], mooncake: Callable[[], object]) -> None:
    """Pretend that the packages are in this state."""
    libraries: Mapping[str, Callable[[], object]] = {"nixl": nixl, "mooncake": mooncake}
    monkeypatch.setattr(planes, "_LIBRARIES", libraries)


def test_auto_takes_what_works_in_the_order_of_preference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything but mooncake, which must be named because of where it listens."""
    have(monkeypatch, installed, installed)
    selection = select_planes(("auto",))
    assert selection.planes == ("shm", "nixl", "zmq")
    assert set(selection.left_out) == {"mooncake"}
    assert "must be named" in selection.left_out["mooncake"]


def test_auto_says_why_a_plane_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """An absent package is no error there, and its reason says how to get it."""
    have(monkeypatch, absent, absent)
    selection = select_planes(("auto",))
    assert selection.planes == ("shm", "zmq")
    assert "pd-staging[nixl]" in selection.left_out["nixl"]


def test_named_planes_keep_their_order_and_exclude_the_others() -> None:
    """What the operator has written is what is offered."""
    selection = select_planes(("zmq", "shm"))
    assert selection.planes == ("zmq", "shm")
    assert set(selection.left_out) == set(PLANES) - {"zmq", "shm"}


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (absent, "pip install 'pd-staging[mooncake]'"),
        (without_library, "libibverbs.so.1 is missing: apt-get install libibverbs1"),
        (broken, "does not load: undefined symbol"),
    ],
)
def test_a_named_plane_that_cannot_work_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, state: Callable[[], object], words: str
) -> None:
    """The problem says which package of Python or of Debian is missing."""
    have(monkeypatch, installed, state)
    (problem,) = plane_problems(("shm", "nixl", "mooncake"))
    assert problem.found == "mooncake"
    assert words in problem.advice


def test_auto_stands_alone() -> None:
    """It cannot be mixed with names: then nobody could say whether a name is an order."""
    assert [problem.fields for problem in plane_problems(("auto", "shm"))] == [("planes",)]


def test_planes_of_this_package_need_nothing() -> None:
    """``shm`` and ``zmq`` have no obstacle anywhere."""
    assert [plane_obstacle(plane) for plane in ("shm", "zmq")] == [None, None]
