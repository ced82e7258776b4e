"""What holds of NIXL's module without the package; ``tests/engines`` holds the real one to its promises."""

import os
from types import ModuleType

import pytest

from runtime import nixl_engine


def test_defaults_keep_to_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without devices UCX gets loopback alone and no copies by process id; what the operator has set stays."""
    for name in ("UCX_TLS", "UCX_NET_DEVICES", "UCX_LOG_LEVEL", "NIXL_LOG_LEVEL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("UCX_TLS", "tcp")
    nixl_engine.prepare_environment("")
    assert (os.environ["UCX_NET_DEVICES"], os.environ["UCX_TLS"]) == ("lo", "tcp")
    nixl_engine.prepare_environment("eth0")
    assert os.environ["UCX_NET_DEVICES"] == "eth0"


def test_the_reason_of_a_build_that_does_not_load_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing library of the system says more than that the other build is not installed."""

    def load(name: str) -> ModuleType:
        if name == nixl_engine.BINDINGS[0]:
            raise ImportError("libnuma.so.1: cannot open shared object file", name=f"{name}.inner")
        raise ModuleNotFoundError(f"No module named {name!r}", name=name.partition(".")[0])

    monkeypatch.setattr(nixl_engine, "import_module", load)
    with pytest.raises(ImportError, match=r"libnuma\.so\.1"):
        nixl_engine.load_bindings()


def test_no_build_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is that nothing is installed."""

    def load(name: str) -> ModuleType:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name.partition(".")[0])

    monkeypatch.setattr(nixl_engine, "import_module", load)
    with pytest.raises(ModuleNotFoundError, match="no build of NIXL"):
        nixl_engine.load_bindings()
