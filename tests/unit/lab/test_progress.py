"""Progress goes to its own console and never floods it."""

import io

from rich.console import Console

from lab.progress import LiveProgress, PlainProgress


def test_plain_progress_says_start_and_end_and_little_between() -> None:
    """A hundred steps within one interval make two lines, the start and the end."""
    text = io.StringIO()
    with PlainProgress(Console(file=text), interval_s=3600.0) as view:
        view.phase("requests", 100)
        for done in range(1, 101):
            view.advance(done, f"{done} done [of] 100")
    assert text.getvalue().splitlines() == ["requests: 100 to go", "requests: 100/100 (100 done [of] 100)"]


def test_plain_progress_speaks_again_after_the_interval() -> None:
    """With no interval every step is a line."""
    text = io.StringIO()
    with PlainProgress(Console(file=text), interval_s=0.0) as view:
        view.phase("requests", 3)
        view.advance(1)
        view.advance(2)
    assert text.getvalue().splitlines() == ["requests: 3 to go", "requests: 1/3", "requests: 2/3"]


def test_live_progress_draws_a_bar_per_phase_and_keeps_lines() -> None:
    """The finished drawing holds every phase's count and every line that was said."""
    text = io.StringIO()
    with LiveProgress(Console(file=text, force_terminal=True, width=120)) as view:
        view.phase("warm-up", 2)
        view.advance(2)
        view.phase("profile", 3)
        view.advance(1, "running")
        view.say("a daemon was restarted")
    drawn = text.getvalue()
    assert "2/2" in drawn
    assert "1/3" in drawn
    assert "a daemon was restarted" in drawn
