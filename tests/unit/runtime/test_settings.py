"""Settings are merged in order, checked as a whole, and every problem is told at once."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from runtime.setting_kinds import INTEGER, NAMES, SIZE, SWITCH, TEXT
from runtime.settings import ConfigurationError, Problem, Settings, declarations, duration, load, render_toml, setting


@dataclass(frozen=True)
class Kettle(Settings):
    """A service small enough to read its whole configuration."""

    name: str = setting("kettle", kind=TEXT, help="What it is called.")
    water_bytes: int = setting(1 << 20, kind=SIZE, minimum=1, maximum=1 << 30, help="How much fits.")
    cups: int = setting(2, kind=INTEGER, minimum=1, help="How many cups.")
    whistle: bool = setting(True, kind=SWITCH, help="Whether it whistles.")
    teas: tuple[str, ...] = setting(("green",), kind=NAMES, choices=("green", "black"), help="What it makes.")
    boil_s: float = duration(3.0, help="How long it boils.")
    wait_s: float = duration(1.0, help="How long it waits.")
    rank: int = setting(kind=INTEGER, default_factory=lambda: 7, help="Depends on the machine.")

    def rule_problems(self) -> Iterator[Problem]:
        """It must not wait longer than it boils."""
        if self.wait_s > self.boil_s:
            yield Problem(
                ("wait_s", "boil_s"), f"{self.wait_s:g} s and {self.boil_s:g} s", "a wait below the boil", "wait less"
            )


def problems_of(file: Path | None = None, environ: Mapping[str, str] | None = None, **flags: object) -> list[str]:
    """The problems of one configuration, as text."""
    with pytest.raises(ConfigurationError) as caught:
        load(Kettle, file=file, environ=environ or {}, flags=flags)
    return [str(problem) for problem in caught.value.problems]


def written(folder: Path, text: str) -> Path:
    """A configuration file with this text."""
    path = folder / "kettle.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults_stand_alone() -> None:
    """Without any source every setting has its default."""
    loaded = load(Kettle, file=None, environ={}, flags={})
    assert (loaded.config, loaded.origins, loaded.config.rank) == (Kettle(), {}, 7)


def test_later_sources_win(tmp_path: Path) -> None:
    """A flag beats the environment, which beats the file, which beats the default; each setting knows its origin."""
    file = written(tmp_path, 'name = "file"\ncups = 3\nwater_bytes = "2MiB"\n')
    environ = {"PD_STAGING_NAME": "environment", "PD_STAGING_CUPS": "4"}
    loaded = load(Kettle, file=file, environ=environ, flags={"name": "flag", "cups": None, "whistle": False})
    config = loaded.config
    assert (config.name, config.cups, config.water_bytes, config.whistle) == ("flag", 4, 2 << 20, False)
    assert loaded.origins == {
        "name": "--name", "cups": "PD_STAGING_CUPS", "water_bytes": str(file), "whistle": "--whistle",
    }  # fmt: skip


def test_every_problem_is_told_at_once(tmp_path: Path) -> None:
    """One start tells of a misspelt key, an unreadable value, a broken bound and a wrong choice, and where to correct each."""
    file = written(tmp_path, "cupz = 1\ncups = 0\n")
    assert problems_of(file, {"PD_STAGING_TEAS": "mint"}, water_bytes="12X") == [
        f"cupz: found in {file}; expected the name of a setting of this service; did you mean cups?",
        f"water_bytes: found '12X'; expected {SIZE.expected}; correct --water-bytes",
        f"cups: found 0; expected at least 1; correct {file}",
        "teas: found ['mint']; expected any of green, black; correct PD_STAGING_TEAS",
    ]


def test_rules_between_settings_name_both() -> None:
    """A rule that is broken names every setting it is about, and the sources of those that were given."""
    assert problems_of(wait_s="5") == [
        "wait_s, boil_s: found 5 s and 3 s; expected a wait below the boil; wait less; correct --wait-s"
    ]


def test_rules_wait_for_their_settings() -> None:
    """A rule says nothing about a setting that could not be read or is out of bounds: that would be noise."""
    assert len(problems_of(wait_s="soon", boil_s="0.5")) == 1
    assert problems_of(wait_s="100000") == ["wait_s: found 100000.0; expected 0.001 to 86400 s; correct --wait-s"]


def test_an_engine_cannot_embed_a_wrong_configuration() -> None:
    """The constructor itself refuses, with every problem."""
    with pytest.raises(ConfigurationError) as caught:
        Kettle(cups=0, wait_s=-1.0)
    assert [problem.fields for problem in caught.value.problems] == [("cups",), ("wait_s",)]


@pytest.mark.parametrize(
    ("text", "part"),
    [("cups = ", "a file in TOML"), ("[table]\nx = 1\n", "table: found in"), ("cups = 2.5", "expected a whole number")],
)
def test_files_that_cannot_be_used(tmp_path: Path, text: str, part: str) -> None:
    """Text that is not TOML, a table where a setting belongs and a value of another type are problems."""
    assert [part in problem for problem in problems_of(written(tmp_path, text))] == [True]


def test_missing_and_binary_files_are_problems(tmp_path: Path) -> None:
    """A file that is missing or no text is named."""
    missing = tmp_path / "missing.toml"
    assert problems_of(missing) == [f"{missing}: found No such file or directory; expected a readable file; correct --config"]
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    assert [problem.startswith(f"{binary}: ") for problem in problems_of(binary)] == [True]


def test_variables_of_nobody_are_told() -> None:
    """A variable with our prefix that names no setting is reported, not used in silence; others are none of our business."""
    loaded = load(Kettle, file=None, environ={"PD_STAGING_CUPZ": "1", "PD_STAGING_CONFIG": "x", "HOME": "/"}, flags={})
    assert loaded.ignored_variables == ("PD_STAGING_CUPZ",)


def test_printed_configuration_reads_back(tmp_path: Path) -> None:
    """``--print-config`` writes TOML that ``--config`` reads as the same configuration, whatever a text contains."""
    flags = {"name": 'a "quoted" \\ \x7f\té', "cups": "5", "teas": "black,green", "wait_s": "0.001", "whistle": False}
    loaded = load(Kettle, file=None, environ={}, flags=flags)
    text = render_toml(loaded)
    assert set(tomllib.loads(text)) == {declaration.name for declaration in declarations(Kettle)}
    assert load(Kettle, file=written(tmp_path, text), environ={}, flags={}).config == loaded.config
    assert "cups = 5  # from --cups" in text
    assert "# How much fits. (1B to 1GiB)" in text
