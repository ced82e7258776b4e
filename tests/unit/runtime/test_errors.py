"""Errors before the start."""

from runtime.errors import StartError


def test_the_text_says_what_why_and_what_to_do() -> None:
    """Wanted, cause and advice are all in the one line that an operator sees."""
    error = StartError("listen on x", "it is in use", "stop the other one")
    assert str(error) == "listen on x: it is in use; stop the other one"
    assert (error.wanted, error.cause, error.advice) == ("listen on x", "it is in use", "stop the other one")
