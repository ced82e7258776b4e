"""An altered daemon is the product's command line behind one more word."""

import pytest
from click.testing import CliRunner

from lab.altered_daemon import main


@pytest.mark.parametrize(
    ("side", "alterations"),
    [
        ("decode", ["--without", "restart", "--without", "snapshot", "--without", "repair"]),
        ("decode", ["--corrupt"]),
        ("prefill", ["--without", "repair"]),
        ("prefill", []),
    ],
)
def test_the_products_own_options_follow(side: str, alterations: list[str]) -> None:
    """Whatever is altered, the settings are read and checked as by the product."""
    result = CliRunner().invoke(main, [side, *alterations, "serve", "--chunk-tokens", "32", "--print-config"])
    assert result.exit_code == 0, result.output
    assert "chunk_tokens = 32" in result.output


def test_what_cannot_be_taken_away_is_refused() -> None:
    """Only known behaviour can be taken away, and the prefill side has no restart to lose."""
    for arguments in (["decode", "--without", "checksums", "serve"], ["prefill", "--without", "restart", "serve"]):
        assert CliRunner().invoke(main, arguments).exit_code == 2
