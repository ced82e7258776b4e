"""A daemon that lets everybody in keeps saying so."""

from structlog.testing import capture_logs

from runtime.insecurity import InsecurityWarning


def test_it_is_said_at_once_and_every_minute() -> None:
    """The first line comes with the first tick, the next ones a minute apart, each with the addresses."""
    warning = InsecurityWarning(("0.0.0.0",), lambda: 100.0)
    with capture_logs() as lines:
        for _ in range(3):
            due = warning.next_deadline()
            assert due is not None
            warning.tick(due)
    assert warning.next_deadline() == 280.0
    assert [(line["event"], line["log_level"], line["addresses"]) for line in lines] == [
        ("insecure_sockets_open", "warning", ["0.0.0.0"])
    ] * 3
