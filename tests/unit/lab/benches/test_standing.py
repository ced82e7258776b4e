"""Processor time of daemons."""

import os

from lab.benches.standing import cpu_s


def test_processor_time_is_read_from_the_kernel() -> None:
    """This process has used some."""
    assert cpu_s(os.getpid()) > 0
