"""``kv_transfer_params`` of clients: what is understood, and that nothing malformed passes or breaks anything."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from integrations.vllm.params import Fetch, Save, TransferParamsError, answer, read_fetch, read_save

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
KEYS = ("do_remote_decode", "do_remote_prefill", "staging_room", "staging_group", "remote_num_tokens", "decode_endpoints")


def test_what_the_prefill_answers_is_what_the_decode_reads() -> None:
    """A proxy that copies the answer as it is connects the two; it survives JSON."""
    params = answer(engine="e", request="r", blocks=[4, 2], tp_size=2, num_tokens=9, room="room", group="group")
    copied = json.loads(json.dumps(params))
    assert read_fetch(copied) == Fetch("room", "group", 9)
    assert read_save(copied) is None
    conventional = {"remote_engine_id", "remote_request_id", "remote_block_ids", "remote_host", "remote_port", "tp_size"}
    assert conventional <= copied.keys()


def test_usual_request_of_a_proxy() -> None:
    """Proxies send every key, most of them null."""
    params = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None}
    assert read_save(params) == Save(None, None)
    assert read_fetch(params) is None


def test_client_may_choose() -> None:
    """A room's name and the decode ranks may come with the request."""
    params = {"do_remote_decode": True, "staging_room": "mine", "decode_endpoints": ["tcp://10.0.0.1:7600", "tcp://[::1]:7601"]}
    assert read_save(params) == Save("mine", ("tcp://10.0.0.1:7600", "tcp://[::1]:7601"))
    assert read_fetch({"do_remote_prefill": True, "staging_room": "mine"}) == Fetch("mine", None, None)


def test_every_problem_is_told() -> None:
    """All fields that are wrong, in one error."""
    with pytest.raises(TransferParamsError) as caught:
        read_fetch({"do_remote_prefill": True, "staging_room": "ä", "staging_group": [], "remote_num_tokens": True})
    assert [problem.partition(":")[0] for problem in caught.value.problems] == [
        "staging_room",
        "staging_group",
        "remote_num_tokens",
    ]


@pytest.mark.parametrize(
    "endpoints",
    [[], "tcp://127.0.0.1:7600", ["127.0.0.1:7600"], ["tcp://127.0.0.1:0"], ["tcp://127.0.0.1:65536"], ["tcp://a:1"] * 2, [7]],
)
def test_endpoints_that_are_none(endpoints: Any) -> None:
    """Distinct TCP addresses with a port, in a list."""
    with pytest.raises(TransferParamsError, match="decode_endpoints"):
        read_save({"do_remote_decode": True, "decode_endpoints": endpoints})


@given(JSON | st.dictionaries(st.sampled_from(KEYS), JSON))
def test_nothing_else_than_an_error_comes_of_garbage(params: Any) -> None:
    """Whatever JSON a client sends: a wish that is well-formed, none, or the one error that is caught."""
    for read in (read_save, read_fetch):
        with suppress(TransferParamsError):
            assert isinstance(read(params), Save | Fetch | None)
