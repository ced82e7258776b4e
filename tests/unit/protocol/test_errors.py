"""Whose fault it is shows in the type, and an error says everything its receiver must know."""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from protocol.errors import Fault, LayoutError, LocalProtocolError, RemoteProtocolError


@contextmanager
def _passing_through() -> Iterator[None]:
    yield


def test_neither_fault_is_the_other() -> None:
    """A loop that catches the peer's faults never catches our own, and the other way round."""
    assert not issubclass(RemoteProtocolError, LocalProtocolError)
    assert not issubclass(LocalProtocolError, RemoteProtocolError)


def test_a_remote_error_reads_as_one_line() -> None:
    """Code, field and what was expected stand in its text."""
    error = RemoteProtocolError(Fault.WRONG_TYPE, "chunk", "an integer", "s-1")
    assert str(error) == "wrong_type: chunk: expected an integer"
    assert (error.code, error.field, error.expected, error.session) == ("wrong_type", "chunk", "an integer", "s-1")


def test_a_remote_error_passes_context_managers() -> None:
    """It travels like any exception, also through code that writes its traceback or adds a note."""
    with pytest.raises(RemoteProtocolError) as caught, _passing_through():
        raise RemoteProtocolError(Fault.BAD_FORMAT, "room", "an id")
    caught.value.add_note("while reading frame 2")
    assert caught.value.session is None


def test_a_remote_error_crosses_processes() -> None:
    """A copy from another process says the same."""
    error = pickle.loads(pickle.dumps(RemoteProtocolError(Fault.BAD_FORMAT, "room", "an id", "s")))
    assert (error.code, error.field, error.expected, error.session) == (Fault.BAD_FORMAT, "room", "an id", "s")


def test_a_layout_error_lists_every_problem() -> None:
    """All problems are told at once."""
    error = LayoutError(("heads: 0", "width: -1"))
    assert error.problems == ("heads: 0", "width: -1")
    assert str(error) == "heads: 0; width: -1"
    assert isinstance(error, ValueError)


def test_fault_codes_can_be_metric_labels() -> None:
    """Each code is a short lower-case word."""
    assert all(fault.value.isidentifier() and fault.value == fault.value.lower() for fault in Fault)
