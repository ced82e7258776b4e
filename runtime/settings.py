"""Settings of a service: one frozen dataclass, filled from a TOML file, then the environment, then flags; later ones win.

A service derives its dataclass from ``Settings`` and declares each field with ``setting(...)``. An instance that breaks a bound
or a rule cannot be made: the constructor raises ``ConfigurationError`` with *every* problem, whether the values came from an
operator or from an engine that embeds the service.
"""

import dataclasses
import difflib
import json
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from protocol.limits import MAX_DURATION_S
from runtime.setting_kinds import NUMBER, SIZE, Kind, render_size

ENVIRONMENT_PREFIX = "PD_STAGING_"
CONFIG_VARIABLE = "PD_STAGING_CONFIG"
_KEY = "pd_staging_setting"

T = TypeVar("T")
S = TypeVar("S", bound="Settings")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a configuration: which fields, what was found, what was expected, what to do.

    ``because``: further fields that it rests on. It means nothing while one of them cannot be read itself.
    """

    fields: tuple[str, ...]
    found: str
    expected: str
    advice: str = ""
    because: tuple[str, ...] = ()

    def rests_on(self, names: set[str]) -> bool:
        """Whether it says anything about one of these fields, or follows from one."""
        return not names.isdisjoint((*self.fields, *self.because))

    def __str__(self) -> str:
        advice = f"; {self.advice}" if self.advice else ""
        return f"{', '.join(self.fields)}: found {self.found}; expected {self.expected}{advice}"


class ConfigurationError(ValueError):
    """A configuration that cannot be used, with every problem that was found in it."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


@dataclass(frozen=True, slots=True)
class Declaration:
    """What is known of a setting besides its value: help text, kind, unit and bounds (inclusive)."""

    name: str
    help: str
    kind: Kind[Any]
    unit: str
    minimum: float | None
    maximum: float | None
    choices: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    """Other flags that mean the same."""

    @property
    def flag(self) -> str:
        """``ring_bytes`` is ``--ring-bytes``."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """``ring_bytes`` is ``PD_STAGING_RING_BYTES``."""
        return ENVIRONMENT_PREFIX + self.name.upper()

    @property
    def bounds(self) -> str:
        """The allowed values in words; empty if every value of the kind is allowed."""
        unit = f" {self.unit}" if self.unit else ""
        if self.choices:
            return "any of " + ", ".join(self.choices)
        low, high = (None if limit is None else self._limit_text(limit) for limit in (self.minimum, self.maximum))
        if low and high:
            return f"{low} to {high}{unit}"
        if low:
            return f"at least {low}{unit}"
        return f"at most {high}{unit}" if high else ""

    def _limit_text(self, limit: float) -> str:
        return render_size(int(limit)) if self.kind is SIZE else f"{limit:.16g}"

    def default_text(self, settings: type["Settings"]) -> str:
        """The default as a person would write it; "none" if it is empty."""
        field = next(field for field in dataclasses.fields(cast("Any", settings)) if field.name == self.name)
        value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        shown = self.kind.render(value)
        return (",".join(shown) if isinstance(shown, list) else str(shown)) or "none"

    def allows(self, value: Any) -> bool:  # noqa: ANN401 - the kind knows the type; the field's annotation holds it
        """Whether a value of the right kind is within the bounds."""
        if self.choices:
            chosen = value if isinstance(value, tuple) else (value,)
            return bool(chosen) and all(item in self.choices for item in chosen)
        above = self.minimum is None or value >= self.minimum
        return above and (self.maximum is None or value <= self.maximum)


def setting(
    default: T | None = None,
    *,
    help: str,  # noqa: A002 - the word of every command-line library
    kind: Kind[T],
    unit: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
    aliases: tuple[str, ...] = (),
    default_factory: Callable[[], T] | None = None,
) -> T:
    """Declare a field of a ``Settings`` dataclass. ``default_factory`` is for a default that depends on the machine."""
    # The field's name is not known here; ``declarations`` fills it in.
    metadata = {_KEY: Declaration("", help, kind, unit, minimum, maximum, choices, aliases)}
    if default_factory is not None:
        return dataclasses.field(default_factory=default_factory, metadata=metadata)
    return dataclasses.field(default=cast("T", default), metadata=metadata)


def duration(default: float, *, help: str) -> float:  # noqa: A002 - as in ``setting``
    """Declare a timer in seconds, of at least a millisecond and at most a day."""
    return setting(default, kind=NUMBER, unit="s", minimum=0.001, maximum=MAX_DURATION_S, help=help)


class Settings:
    """Base of a service's settings: a derived frozen dataclass whose fields are all declared with ``setting``."""

    __slots__ = ()

    def __post_init__(self) -> None:
        """Refuse to exist with a problem. Raises ``ConfigurationError``."""
        problems = tuple(self._bound_problems())
        # A rule between fields means nothing while one of them is out of bounds.
        wrong = {name for problem in problems for name in problem.fields}
        problems += tuple(problem for problem in self.rule_problems() if not problem.rests_on(wrong))
        if problems:
            raise ConfigurationError(problems)

    def rule_problems(self) -> Iterator[Problem]:
        """Problems between fields; a service overrides it. Every field is of its kind, but may be out of bounds."""
        yield from ()

    def file_problems(self) -> Iterator[Problem]:
        """Problems of the files that settings name, which are looked at only before a start and by ``--check``."""
        yield from ()

    def _bound_problems(self) -> Iterator[Problem]:
        for declaration in declarations(type(self)):
            value = getattr(self, declaration.name)
            if not declaration.allows(value):
                yield Problem((declaration.name,), repr(declaration.kind.render(value)), declaration.bounds)


def declarations(cls: type[Settings]) -> tuple[Declaration, ...]:
    """The declared settings of a service: first those that it declares itself, then those that it inherits."""
    places = {name: place for place, name in enumerate(vars(cls).get("__annotations__", {}))}
    fields = sorted(dataclasses.fields(cast("Any", cls)), key=lambda field: places.get(field.name, len(places)))
    return tuple(replace(cast("Declaration", field.metadata[_KEY]), name=field.name) for field in fields)


@dataclass(frozen=True, slots=True)
class Loaded(Generic[S]):
    """A valid configuration, where each setting came from, and the variables that name no setting of this service."""

    config: S
    origins: Mapping[str, str]
    ignored_variables: tuple[str, ...]


def load(cls: type[S], *, file: Path | None, environ: Mapping[str, str], flags: Mapping[str, object]) -> Loaded[S]:
    """Read, merge and check a configuration. Raises ``ConfigurationError`` with every problem of every source.

    ``flags`` maps field names to what was given on the command line; ``None`` means not given.
    """
    declared = {declaration.name: declaration for declaration in declarations(cls)}
    table, problems = _read_file(file, declared)
    raw: dict[str, tuple[object, str]] = {name: (value, f"{file}") for name, value in table.items()}
    for name, declaration in declared.items():
        if declaration.variable in environ:
            raw[name] = (environ[declaration.variable], declaration.variable)
        if flags.get(name) is not None:
            raw[name] = (flags[name], declaration.flag)
    values, unreadable = _parse(raw, declared)
    problems += unreadable
    problems += [_with_advice(problem, raw) for problem in _rule_problems(cls, values, unreadable)]
    if problems:
        raise ConfigurationError(problems)
    return Loaded(cls(**values), {name: origin for name, (_, origin) in raw.items()}, _ignored(environ, declared))


def render_toml(loaded: Loaded[S]) -> str:
    """The configuration as a TOML file that ``--config`` reads back, each setting with its meaning and its origin."""
    lines: list[str] = []
    for declaration in declarations(type(loaded.config)):
        bounds = f" ({declaration.bounds})" if declaration.bounds else f" ({declaration.unit})" if declaration.unit else ""
        value = declaration.kind.render(getattr(loaded.config, declaration.name))
        origin = loaded.origins.get(declaration.name, "default")
        # JSON's texts, numbers, booleans and lists are TOML's as well, but for one character that TOML wants escaped.
        written = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        lines += [f"# {declaration.help}{bounds}", f"{declaration.name} = {written}  # from {origin}", ""]
    return "\n".join(lines)


def _read_file(file: Path | None, declared: Mapping[str, Declaration]) -> tuple[dict[str, object], list[Problem]]:
    if file is None:
        return {}, []
    try:
        table: dict[str, object] = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        return {}, [Problem((f"{file}",), error.strerror or "an unreadable file", "a readable file", "correct --config")]
    except ValueError as error:  # tomllib.TOMLDecodeError and UnicodeDecodeError
        return {}, [Problem((f"{file}",), str(error), "a file in TOML", "--print-config shows the form")]
    unknown = [_unknown(key, file, declared) for key in table if key not in declared]
    return {key: value for key, value in table.items() if key in declared}, unknown


def _unknown(key: str, file: Path, declared: Mapping[str, Declaration]) -> Problem:
    close = difflib.get_close_matches(key, declared, n=1)
    advice = f"did you mean {close[0]}?" if close else "remove it; --print-config lists all settings"
    return Problem((key,), f"in {file}", "the name of a setting of this service", advice)


def _parse(
    raw: Mapping[str, tuple[object, str]], declared: Mapping[str, Declaration]
) -> tuple[dict[str, object], list[Problem]]:
    values: dict[str, object] = {}
    problems: list[Problem] = []
    for name, (value, origin) in raw.items():
        try:
            values[name] = declared[name].kind.parse(value)
        except ValueError:
            problems.append(Problem((name,), repr(value), declared[name].kind.expected, f"correct {origin}"))
    return values, problems


def _rule_problems(cls: type[S], values: Mapping[str, object], unreadable: Iterable[Problem]) -> list[Problem]:
    """Problems of the readable values, where those that cannot be read are taken to be the defaults."""
    wrong = {name for problem in unreadable for name in problem.fields}
    try:
        cls(**values)
    except ConfigurationError as error:
        return [problem for problem in error.problems if not problem.rests_on(wrong)]
    return []


def _with_advice(problem: Problem, raw: Mapping[str, tuple[object, str]]) -> Problem:
    """A problem that says where the values came from."""
    origins = ", ".join(dict.fromkeys(raw[name][1] for name in problem.fields if name in raw))
    if not origins:
        return problem
    return replace(problem, advice=f"{problem.advice}; correct {origins}" if problem.advice else f"correct {origins}")


def _ignored(environ: Mapping[str, str], declared: Mapping[str, Declaration]) -> tuple[str, ...]:
    known = {declaration.variable for declaration in declared.values()} | {CONFIG_VARIABLE}
    return tuple(sorted(name for name in environ if name.startswith(ENVIRONMENT_PREFIX) and name not in known))
