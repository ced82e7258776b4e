"""``kv_connector_extra_config``: the settings of the embedded half by their own names, and a few of the connector's.

Everything that is wrong is reported at once, before anything starts.
"""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Generic, TypeVar, cast

from decode_service.config import DecodeServiceConfig
from prefill_service.config import PrefillServiceConfig
from runtime.setting_kinds import ENDPOINTS, NAME, NUMBER, SWITCH, TEXT
from runtime.settings import ConfigurationError, Problem, Settings, declarations, duration, load, setting

KEY: Final = "kv_connector_extra_config"
DECIDED_BY_VLLM: Final = {
    "ranks": "each tensor-parallel worker hosts its own rank",
    "attention_tp": "an engine is one group; data-parallel engines are not served",
}

S = TypeVar("S", bound=Settings)
O = TypeVar("O", bound=Settings)  # noqa: E741 - options


@dataclass(frozen=True)
class ConsumerOptions(Settings):
    """What a decode engine may decide beyond its ``DecodeServiceConfig``."""

    load_timeout_s: float = duration(120.0, help="How long a request waits for its KV before its load has failed.")
    prefill_group: str = setting("vllm-prefill", kind=NAME, help="Prefill group of requests that name a room but no group.")
    idle_wait_s: float = setting(
        0.002, kind=NUMBER, unit="s", minimum=0, maximum=1, help="How long a step without tokens may wait for a transfer."
    )
    allow_other_vllm: bool = setting(False, kind=SWITCH, help="Try a version of vLLM that the connector was not made for.")


@dataclass(frozen=True)
class ProducerOptions(Settings):
    """What a prefill engine may decide beyond its ``PrefillServiceConfig``."""

    decode_endpoints: tuple[str, ...] = setting(
        ("tcp://127.0.0.1:7600",), kind=ENDPOINTS, help="Control endpoints of the decode engine's ranks, in rank order."
    )
    save: str = setting("finish", kind=TEXT, choices=("finish", "layer"), help="When KV leaves: at the end, or layer by layer.")
    layer_wait_s: float = duration(30.0, help="How long a copy waits for the forward pass to save its layer.")
    preempt_wait_s: float = duration(30.0, help="How long a preemption waits for the copies of what it takes away.")
    idle_wait_s: float = setting(
        0.002, kind=NUMBER, unit="s", minimum=0, maximum=1, help="How long a step without tokens may wait for a transfer."
    )
    allow_other_vllm: bool = setting(False, kind=SWITCH, help="Try a version of vLLM that the connector was not made for.")

    def rule_problems(self) -> Iterator[Problem]:
        """Problems between settings."""
        if not self.decode_endpoints:
            yield Problem(("decode_endpoints",), "none", "one control endpoint for each rank of the decode engine")


COMMON_DEFAULTS: Final[Mapping[str, object]] = {
    "http_port": 0, "log_level": "warning", "drain_s": 2.0, "stall_warn_s": 30.0, "recorder_stall_s": 60.0,
}  # fmt: skip
"""A half inside an engine is quiet, opens no port that nobody asked for, and ends soon when the engine does."""
CONSUMER_DEFAULTS: Final[Mapping[str, object]] = {
    # Rooms of requests that wait in this engine's queue: they hold no ring memory, and the prefill's own deadline ends them.
    **COMMON_DEFAULTS, "decode_id": "vllm-decode", "park_s": 300.0, "max_parked_per_session": 65_536,
}  # fmt: skip
PRODUCER_DEFAULTS: Final[Mapping[str, object]] = {
    # Blocks of a request that no decode engine asks for come back after this.
    **COMMON_DEFAULTS, "prefill_id": "vllm-prefill", "room_deadline_s": 120.0,
}  # fmt: skip


@dataclass(frozen=True)
class ConnectorSettings(Generic[S, O]):
    """Both parts: the half's own settings, for tensor-parallel rank 0 of one, and the connector's."""

    service: S
    options: O


def read_consumer(extra: Mapping[str, object]) -> ConnectorSettings[DecodeServiceConfig, ConsumerOptions]:
    """Settings of a decode engine. Raises ``ConfigurationError``."""
    return _read(DecodeServiceConfig, ConsumerOptions, CONSUMER_DEFAULTS, extra)


def read_producer(extra: Mapping[str, object]) -> ConnectorSettings[PrefillServiceConfig, ProducerOptions]:
    """Settings of a prefill engine. Raises ``ConfigurationError``."""
    found = _read(PrefillServiceConfig, ProducerOptions, PRODUCER_DEFAULTS, extra)
    # Sessions exist before the first request, and a decode engine that does not fit is told of at start.
    peers = found.service.decode_peers or found.options.decode_endpoints
    return replace(found, service=replace(found.service, group=group_of(found.service), decode_peers=peers))


def group_of(service: PrefillServiceConfig) -> str:
    """The name of the prefill engine in rooms: of all its ranks together."""
    return service.group or service.prefill_id


def consumer_of_rank(service: DecodeServiceConfig, tp_rank: int, tp_size: int) -> DecodeServiceConfig:
    """The settings of one worker: names and the HTTP port of its own, ports by its rank."""
    return replace(
        service,
        ranks=(tp_rank,),
        decode_id=_of_rank(service.decode_id, tp_rank, tp_size),
        http_port=service.http_port and service.http_port + tp_rank,
    )


def producer_of_rank(service: PrefillServiceConfig, tp_rank: int, tp_size: int) -> PrefillServiceConfig:
    """The settings of one worker: a name and an HTTP port of its own, the group of all."""
    return replace(
        service,
        ranks=(tp_rank,),
        prefill_id=_of_rank(service.prefill_id, tp_rank, tp_size),
        http_port=service.http_port and service.http_port + tp_rank,
    )


def _of_rank(name: str, tp_rank: int, tp_size: int) -> str:
    return f"{name}.tp{tp_rank}" if tp_size > 1 else name


def _read(
    service: type[S], options: type[O], defaults: Mapping[str, object], extra: Mapping[str, object]
) -> ConnectorSettings[S, O]:
    problems = list(_unknown(service, options, extra))
    parts: list[Any] = []
    for part in (service, options):
        names = {field.name for field in fields(cast("Any", part))} - set(DECIDED_BY_VLLM)
        given = {name: value for name, value in {**defaults, **extra}.items() if name in names}
        try:
            parts.append(load(part, file=None, environ={}, flags=given).config)
        except ConfigurationError as error:
            problems += [_of_extra_config(part, problem) for problem in error.problems]
    if not problems:
        problems += parts[0].file_problems()
    if problems:
        raise ConfigurationError(problems)
    return ConnectorSettings(parts[0], parts[1])


def _unknown(service: type[Settings], options: type[Settings], extra: Mapping[str, object]) -> Iterator[Problem]:
    known = [declaration.name for part in (service, options) for declaration in declarations(part)]
    for name in extra:
        if name in DECIDED_BY_VLLM:
            yield Problem((name,), f"in {KEY}", "nothing", f"remove it: {DECIDED_BY_VLLM[name]}")
        elif name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            advice = f"did you mean {close[0]}?" if close else "remove it"
            yield Problem((name,), f"in {KEY}", f"a setting of {service.__name__} or of the connector", advice)


def _of_extra_config(part: type[Settings], problem: Problem) -> Problem:
    """The same problem, where the advice names the place in which vLLM's user writes a setting."""
    advice = problem.advice
    for declaration in sorted(declarations(part), key=lambda known: -len(known.flag)):
        advice = advice.replace(declaration.flag, f"{declaration.name} in {KEY}")
    return replace(problem, advice=advice)
