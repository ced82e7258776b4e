"""The house keeps its shape: imports run one way, machines are pure, every module has its test.

Read with the standard library's ``ast``, so a rule holds for code that no test runs. A new module of a service counts as a pure
machine until it is named here as a shell.
"""

import ast
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("protocol", "decode_service", "prefill_service", "runtime", "lab")
OUTSIDE = ("integrations", "examples")
TREES = (*PRODUCT, *(name for name in OUTSIDE if (ROOT / name).is_dir()))

SHELLS = {
    "decode_service": (
        *("server", "rank", "performing", "commands", "engine", "config", "guard", "__main__"),
        *("observing", "metrics", "telling"),
        *("surroundings", "region", "regions", "scatter", "scatter_job"),
    ),
    "prefill_service": (
        *("client", "rank", "performing", "commands", "engine", "config", "__main__"),
        *("observing", "metrics", "telling", "openings", "plane_access"),
        *("surroundings", "peer_link", "session_plane", "writers", "gather"),
    ),
}
"""First parts of the module names that may touch the outside world."""

PURE_IMPORTS = {
    "abc", "bisect", "collections", "contextlib", "copy", "dataclasses", "enum", "functools", "heapq", "itertools", "math",
    "operator", "re", "string", "struct", "types", "typing",
}  # fmt: skip
"""What a pure module may import of the standard library: nothing with a clock, a thread, a file, a log or an environment."""
PURE_EXCEPTIONS = {
    ("protocol.codec", "msgpack"): "the peer wire's map encoding lives there and nowhere else",
}
CLOCKS = {"clock", "monotonic", "time", "perf_counter"}
IMPURE_BUILTINS = {"print", "open", "input", "exec", "eval", "breakpoint", "__import__"}

MAY_IMPORT = {
    "protocol": {"protocol"},
    "decode_service": {"protocol", "runtime", "decode_service"},
    "prefill_service": {"protocol", "runtime", "prefill_service"},
    "runtime": {"protocol", "runtime"},
    "lab": {"protocol", "runtime", "decode_service", "prefill_service", "lab"},
    "integrations": {"protocol", "runtime", "decode_service", "prefill_service", "integrations"},
    "examples": {"protocol", "runtime", "decode_service", "prefill_service", "examples"},
}

EXTRAS = {"opentelemetry": "otel", "numba": "fast", "llvmlite": "fast"}
"""Packages that the product imports only where the extra of that name is installed."""

MSGPACK_HOMES = {"protocol.codec", "runtime.engine_protocol", "runtime.packing"}
ZMQ_HOMES = {
    "runtime.dealer_endpoint",
    "runtime.endpoint",
    "runtime.engine_client",
    "runtime.engine_endpoint",
    "runtime.key_files",
    "runtime.loop",
    "runtime.monitor",
    "runtime.security",
    "runtime.zap",
    "decode_service.regions.zmq",
    "prefill_service.writers.base",
    "prefill_service.writers.buffers",
    "prefill_service.writers.zmq",
}
"""Control sockets are opened in the first two alone; the others wait for sockets, command a daemon or move payload."""

WITHOUT_UNIT_TEST = {
    "__init__": "holds a docstring",
    "__main__": "one call; tests/integration starts it as a process",
    "base": "an interface; tests/conformance holds its implementations to it",
    "outputs": "frozen data; every test of its machine compares with it",
    "messages": "frozen data; tests of the codec build each message",
    "engine_types": "protocols; tests/vllm compares them with the engine's own classes",
}
"""By the last part of the module's name."""

ENGINES = {"vllm", "torch"}
"""Only ``integrations`` imports them, each behind as thin a module as can be."""

IGNORED_FOLDERS = {
    ".git", ".venv", "__pycache__", "build", "dist", "artifacts",
    ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis",
}  # fmt: skip
# Written in pieces, since this file is searched as well.
FORBIDDEN_WORDS = tuple(
    "".join(parts)
    for parts in (
        ("..", "/shared"),
        ("/work", "/main"),
        ("/work", "/shared"),
        ("pypi", ".org"),
        ("python", "hosted.org"),
        ("registry.", "npmjs"),
        ("deb.", "debian.org"),
        ("extra-", "index-url"),
    )
)
LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical"}
EVENT_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)+")


def modules(*trees: str) -> Iterator[tuple[str, ast.Module]]:
    """Dotted name and syntax tree of every module of these top-level packages."""
    for tree in trees:
        for path in sorted((ROOT / tree).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            yield name, ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imports(name: str, module: ast.Module) -> Iterator[str]:
    """Dotted names that a module imports anywhere, relative ones resolved, with the imported member where there is one."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(name.split(".")[: -node.level]) if node.level else ""
            target = ".".join(part for part in (base, node.module) if part)
            yield from (f"{target}.{alias.name}" for alias in node.names)


def top(dotted: str) -> str:
    """``decode_service`` of ``decode_service.rooms.Room``."""
    return dotted.partition(".")[0]


def is_shell(dotted: str) -> bool:
    """Whether a module of a service, or a member of one, belongs to its shell."""
    package, _, rest = dotted.partition(".")
    return top(rest) in SHELLS.get(package, ())


def pure_modules() -> Iterator[tuple[str, ast.Module]]:
    """The protocol and both machines."""
    return ((name, module) for name, module in modules("protocol", *SHELLS) if not is_shell(name))


def wrong_directions(name: str, module: ast.Module) -> list[str]:
    """Imports of our own packages that run against the one way."""
    own = (imported for imported in imports(name, module) if top(imported) in (*PRODUCT, *OUTSIDE, "tests"))
    return [f"{name} imports {imported}" for imported in own if top(imported) not in MAY_IMPORT[top(name)]]


def impurities(name: str, module: ast.Module) -> list[str]:
    """What a pure module imports or calls that it must not."""
    found = []
    for imported in imports(name, module):
        package = top(imported)
        if package in PRODUCT:
            wrong = package == "runtime" or is_shell(imported)
        else:
            wrong = package not in PURE_IMPORTS and imported != "random.Random" and (name, package) not in PURE_EXCEPTIONS
        if wrong:
            found.append(f"{name} imports {imported}")
    calls = (node.func for node in ast.walk(module) if isinstance(node, ast.Call))
    called = (func.id for func in calls if isinstance(func, ast.Name) and func.id in IMPURE_BUILTINS)
    return found + [f"{name} calls {builtin}" for builtin in called]


def event_names(module: ast.Module) -> Iterator[ast.expr]:
    """The first argument of every call on something called ``log`` or ``_log``."""
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOG_METHODS:
            receiver = node.func.value
            word = receiver.attr if isinstance(receiver, ast.Attribute) else getattr(receiver, "id", "")
            if word.strip("_") in {"log", "logger"} and node.args:
                yield node.args[0]


def receding_deadlines(name: str, module: ast.Module) -> list[str]:
    """Every ``next_deadline`` that reads a clock."""
    found = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef) and node.name == "next_deadline"]
    calls = [node.func for function in found for node in ast.walk(function) if isinstance(node, ast.Call)]
    clocks = [func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "") for func in calls]
    return [f"{name}.next_deadline calls {clock}" for clock in clocks if clock in CLOCKS]


def imports_an_engine(path: Path) -> bool:
    """Whether a module works only inside an engine that is not there when unit tests run; it is tested with that engine."""
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return any(top(used) in ENGINES for used in imports(name, ast.parse(path.read_text(encoding="utf-8"))))


def texts() -> Iterator[tuple[Path, str]]:
    """Every text file of the repository with its content."""
    for place, folders, files in os.walk(ROOT):
        folder = Path(place)
        folders[:] = [name for name in folders if name not in IGNORED_FOLDERS and not name.startswith(".venv")]
        for name in files:
            try:
                yield folder / name, (folder / name).read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue


def test_imports_run_one_way() -> None:
    """The protocol knows nobody, the services never import each other, and only the laboratory and tests import ``lab``."""
    assert [wrong for name, module in modules(*TREES) for wrong in wrong_directions(name, module)] == []


def test_machines_are_pure() -> None:
    """The protocol and both machines import no socket, clock, thread, file, environment or log, and no shell that has them."""
    assert [wrong for name, module in pure_modules() for wrong in impurities(name, module)] == []


def test_no_deadline_recedes() -> None:
    """A deadline is a moment. One that is counted from the time of the question is never reached by whoever asks again."""
    assert [wrong for name, module in modules(*TREES) for wrong in receding_deadlines(name, module)] == []
    planted = "class A:\n    def next_deadline(self):\n        return self._loop.clock() + 1"
    assert receding_deadlines("a", ast.parse(planted)) == ["a.next_deadline calls clock"]


@pytest.mark.parametrize(
    ("name", "source", "expected"),
    [
        ("protocol.x", "from decode_service import rooms", ["protocol.x imports decode_service.rooms"]),
        ("decode_service.x", "import prefill_service.gate", ["decode_service.x imports prefill_service.gate"]),
        ("runtime.x", "def f():\n    import lab.demo", ["runtime.x imports lab.demo"]),
        ("decode_service.x", "from .rooms import Room\nfrom runtime import loop", []),
    ],
)
def test_wrong_direction_is_seen(name: str, source: str, expected: list[str]) -> None:
    """The check of directions finds a planted import, at any depth, and lets the right ones pass."""
    assert wrong_directions(name, ast.parse(source)) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import time", ["decode_service.rooms imports time"]),
        ("from threading import Lock", ["decode_service.rooms imports threading.Lock"]),
        ("import random", ["decode_service.rooms imports random"]),
        ("from random import Random", []),
        ("from .server import DecodeStagingServer", ["decode_service.rooms imports decode_service.server.DecodeStagingServer"]),
        ("from decode_service import scatter", ["decode_service.rooms imports decode_service.scatter"]),
        ("from runtime import loop", ["decode_service.rooms imports runtime.loop"]),
        ("import msgpack", ["decode_service.rooms imports msgpack"]),
        ("print(1)", ["decode_service.rooms calls print"]),
    ],
)
def test_impurity_is_seen(source: str, expected: list[str]) -> None:
    """The check of purity finds a planted clock, lock, generator, shell, codec or print."""
    assert impurities("decode_service.rooms", ast.parse(source)) == expected


@pytest.mark.parametrize(("package", "homes"), [("msgpack", MSGPACK_HOMES), ("zmq", ZMQ_HOMES)])
def test_wire_libraries_have_known_homes(package: str, homes: set[str]) -> None:
    """Bytes of the wire are made and read in the few modules named here, and in no other one outside the laboratory."""
    users = {name for name, module in modules(*TREES) if package in {top(used) for used in imports(name, module)}}
    assert {name for name in users if top(name) != "lab"} - homes == set()


@pytest.mark.parametrize("package", [*(name for name in PRODUCT if name != "lab"), "integrations"])
def test_every_module_has_its_unit_test(package: str) -> None:
    """``a/b.py`` has ``tests/unit/a/test_b.py``, unless its kind is listed with the reason why not."""
    missing = []
    for path in sorted((ROOT / package).rglob("*.py")):
        test = ROOT / "tests" / "unit" / path.relative_to(ROOT).with_name(f"test_{path.name}")
        if path.stem not in WITHOUT_UNIT_TEST and not test.is_file() and not imports_an_engine(path):
            missing.append(str(test.relative_to(ROOT)))
    assert missing == []


def test_every_unit_test_has_its_module() -> None:
    """No unit test outlives its module: ``test_codec.py`` and ``test_codec_fuzz.py`` both stand beside ``codec.py``."""
    orphans = []
    for path in sorted((ROOT / "tests" / "unit").rglob("test_*.py")):
        folder = ROOT / path.parent.relative_to(ROOT / "tests" / "unit")
        about = path.stem.removeprefix("test_")
        if not any(about == module.stem or about.startswith(f"{module.stem}_") for module in folder.glob("*.py")):
            orphans.append(str(path.relative_to(ROOT)))
    assert orphans == []


def test_dependencies_are_declared_and_used() -> None:
    """The list of dependencies is what the shipped packages import: nothing is missing, nothing is carried along."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {re.split(r"[<>=!~\[ ]", requirement)[0] for requirement in project["dependencies"]}
    imported = {top(used) for name, module in modules(*PRODUCT) for used in imports(name, module)}
    outside = {name for name in imported if name not in {*PRODUCT, *sys.stdlib_module_names}}
    assert {extra for name, extra in EXTRAS.items() if name in outside} <= set(project["optional-dependencies"])
    outside -= {*EXTRAS, "_typeshed"}  # the latter is there for type checkers alone
    assert {{"zmq": "pyzmq", "prometheus_client": "prometheus-client"}.get(name, name) for name in outside} == declared


@pytest.mark.parametrize("service", list(SHELLS))
def test_every_setting_is_read(service: str) -> None:
    """No setting is a promise that nobody keeps: each is read by a shell or handed to its machine by name."""
    config = ast.parse((ROOT / service / "config.py").read_text(encoding="utf-8"))
    shared = ast.parse((ROOT / "runtime" / "service_settings.py").read_text(encoding="utf-8"))
    settings = {
        node.target.id
        for node in (*ast.walk(config), *ast.walk(shared))
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(node.value, ast.Call)
    }
    # The machine's own reading of its settings does not count for the shell, but their declaration does.
    machine = ast.parse((ROOT / service / "handler_settings.py").read_text(encoding="utf-8"))
    read = {
        node.target.id for node in ast.walk(machine) if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    base = ast.parse((ROOT / "runtime" / "staging_service.py").read_text(encoding="utf-8"))
    shells = [config, shared, base, *(module for name, module in modules(service) if is_shell(name))]
    read |= {node.attr for module in shells for node in ast.walk(module) if isinstance(node, ast.Attribute)}
    assert settings - read - {"log_level"} == set()


def test_log_events_have_static_names() -> None:
    """Every log event is a literal in snake case, so that it can be searched for and counted; what varies is a key."""
    wrong = [
        f"{name}:{argument.lineno}"
        for name, module in modules(*PRODUCT, "integrations")
        for argument in event_names(module)
        if not (isinstance(argument, ast.Constant) and EVENT_NAME.fullmatch(str(argument.value)))
    ]
    assert wrong == []


def test_no_file_names_what_ties_it_to_one_machine() -> None:
    """No file names a registry's host or a folder that exists on one machine only."""
    found = [f"{path.relative_to(ROOT)}: {word}" for path, text in texts() for word in FORBIDDEN_WORDS if word in text]
    assert found == []
