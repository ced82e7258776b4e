"""A trace is read exactly, and a wrong line is named."""

from pathlib import Path

import pytest

from lab.trace import TraceError, TraceRequest, read_trace, scaled_tokens


def write(tmp_path: Path, *lines: str) -> Path:
    """A trace file of these lines."""
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_lengths_are_divided_rounded_up_and_never_cut_off(tmp_path: Path) -> None:
    """Tokens are ceil(input_length / scale) and at least one; times count in seconds from the first request."""
    path = write(
        tmp_path,
        '{"timestamp": 1000, "input_length": 6758, "output_length": 500, "hash_ids": [0]}',
        "",
        '{"timestamp": 2500, "input_length": 64}',
        '{"timestamp": 2500.5, "input_length": 65}',
        '{"timestamp": 4000, "input_length": 0}',
    )
    assert read_trace(path, scale=64) == (
        TraceRequest(0.0, 106),
        TraceRequest(1.5, 1),
        TraceRequest(1.5005, 2),
        TraceRequest(3.0, 1),
    )


def test_limit_takes_the_first_requests(tmp_path: Path) -> None:
    """With a limit the rest of the file is not even looked at."""
    path = write(tmp_path, '{"timestamp": 0, "input_length": 3}', "not json")
    assert read_trace(path, limit=1) == (TraceRequest(0.0, 3),)


@pytest.mark.parametrize(
    ("text", "field", "expected"),
    [
        ('{"timestamp": 0}', "input_length", "a whole number of tokens"),
        ('{"input_length": 5}', "timestamp", "a number of milliseconds"),
        ('{"timestamp": "0", "input_length": 5}', "timestamp", "a number of milliseconds"),
        ('{"timestamp": -1, "input_length": 5}', "timestamp", "not negative"),
        ('{"timestamp": NaN, "input_length": 5}', "timestamp", "a number of milliseconds"),
        ('{"timestamp": true, "input_length": 5}', "timestamp", "a number of milliseconds"),
        ('{"timestamp": 0, "input_length": 5.5}', "input_length", "a whole number of tokens"),
        ('{"timestamp": 0, "input_length": -5}', "input_length", "a whole number of tokens"),
        ('{"timestamp": 0, "input_length": 99999999999999}', "input_length", "a whole number of tokens"),
        ('{"timestamp": 0, "input_length": false}', "input_length", "a whole number of tokens"),
        ("[1, 2]", "", "one JSON object"),
        ("GET / HTTP/1.1", "", "one JSON object"),
        ("[" * 100_000, "", "one JSON object"),
    ],
)
def test_a_wrong_line_is_named_with_field_and_expectation(tmp_path: Path, text: str, field: str, expected: str) -> None:
    """The error says which line, which field, what was expected; the message carries all three."""
    path = write(tmp_path, '{"timestamp": 0, "input_length": 5}', text)
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert (caught.value.line, caught.value.field) == (2, field)
    assert expected in caught.value.expected
    assert f"{path}, line 2" in str(caught.value)
    assert caught.value.expected in str(caught.value)


def test_bytes_that_are_no_text_are_an_error(tmp_path: Path) -> None:
    """A binary file is refused as one, not with a decoding traceback."""
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"\xff\xfe\n")
    with pytest.raises(TraceError, match="line 1: expected UTF-8 text"):
        read_trace(path)


def test_a_short_trace_is_an_error(tmp_path: Path) -> None:
    """A trace that ends before the asked-for number of requests is not played as if it were whole."""
    with pytest.raises(TraceError, match=r"expected 2 request\(s\), found the end after 1"):
        read_trace(write(tmp_path, '{"timestamp": 0, "input_length": 5}'), limit=2)
    with pytest.raises(TraceError, match="at least one"):
        read_trace(write(tmp_path))


def test_scaled_tokens_is_a_ceiling() -> None:
    """One token too many is one token more."""
    assert [scaled_tokens(length, 64) for length in (0, 1, 64, 65, 126_195)] == [1, 1, 1, 2, 1972]
