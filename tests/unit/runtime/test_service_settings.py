"""What both services can be told, in one place, with the rules among it."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from decode_service.config import DecodeServiceConfig
from prefill_service.config import PrefillServiceConfig
from runtime.service_settings import ServiceSettings, http_port_setting
from runtime.setting_kinds import NAME
from runtime.settings import ConfigurationError, Settings, declarations, duration, setting


@dataclass(frozen=True)
class Service(ServiceSettings):
    """A service with a name and a timer of its own."""

    id_setting: ClassVar[str] = "name"
    first_waits: ClassVar[tuple[str, ...]] = ("abort_retry_s", "own_retry_s")

    name: str = setting("service", kind=NAME, help="Its name.")
    http_port: int = http_port_setting(7599)
    own_retry_s: float = duration(0.2, help="A first wait.")


def names(service: type[Settings]) -> list[str]:
    """Settings in the order of the command line's help."""
    return [declaration.name for declaration in declarations(service)]


def test_both_services_have_these_settings() -> None:
    """Each of them has all, and shows first what it declares itself, in the order in which it does."""
    shared = set(names(ServiceSettings))
    assert shared <= set(names(DecodeServiceConfig)) & set(names(PrefillServiceConfig))
    assert names(Service)[:4] == ["name", "http_port", "own_retry_s", "ranks"]


def test_the_port_is_a_service_s_own() -> None:
    """Both daemons run on one host without a word."""
    assert DecodeServiceConfig().http_port != PrefillServiceConfig().http_port


def test_every_broken_rule_is_named_at_once(tmp_path: Path) -> None:
    """The fields, what was found and what was expected; the socket's name is the service's own setting."""
    with pytest.raises(ConfigurationError) as caught:
        Service(
            own_retry_s=3.0,
            max_rooms=10,
            max_tombstones=5,
            runtime_dir=tmp_path / ("x" * 120),
            http_host="0.0.0.0",
        )
    fields = {problem.fields for problem in caught.value.problems}
    assert {("own_retry_s", "retry_limit_s"), ("max_tombstones", "max_rooms"), ("runtime_dir", "name")} <= fields
    assert any("http_host" in names for names in fields)


def test_the_socket_is_named_after_the_service(tmp_path: Path) -> None:
    """In the runtime directory, under the id of the daemon."""
    assert Service(name="a", runtime_dir=tmp_path).engine_socket.name.startswith("a.")
