"""Errors a daemon reports to its operator before it has started."""


class StartError(Exception):
    """A daemon cannot start: what was wanted, the likely cause, and what to do. Nothing was left behind."""

    def __init__(self, wanted: str, cause: str, advice: str) -> None:
        super().__init__(f"{wanted}: {cause}; {advice}")
        self.wanted = wanted
        self.cause = cause
        self.advice = advice
