"""The message classes: frozen values, each with a wire form, each going the way its union says."""

import dataclasses
from typing import get_args

import pytest

from protocol.messages import Abort, AbortAck, Message, ToDecode, ToPrefill, WatermarkUpdate
from protocol.watermark import Watermark
from protocol.wire_tables import BY_KIND, TO_DECODE, TO_PREFILL


@pytest.mark.parametrize("kind", get_args(Message))
def test_every_message_is_a_frozen_value(kind: type) -> None:
    """No message can be changed after it was built, and equal ones are equal."""
    assert dataclasses.is_dataclass(kind)
    parameters = vars(kind)["__dataclass_params__"]
    assert parameters.frozen
    assert parameters.eq
    assert "__slots__" in vars(kind)


def test_the_unions_say_which_way_each_message_goes() -> None:
    """The wire tables know exactly the messages of the unions; only the watermark has its own frames."""
    assert {record.kind for record in TO_DECODE.values()} == set(get_args(ToDecode))
    assert {record.kind for record in TO_PREFILL.values()} == set(get_args(ToPrefill)) - {WatermarkUpdate}
    assert set(BY_KIND) == set(get_args(Message)) - {WatermarkUpdate}


def test_only_aborts_go_both_ways() -> None:
    """Every other message has one sender."""
    assert set(get_args(ToDecode)) & set(get_args(ToPrefill)) == {Abort, AbortAck}


def test_a_watermark_update_is_what_the_gate_compares() -> None:
    """The update's pair is the watermark."""
    assert WatermarkUpdate(3, 40, "s").watermark == Watermark(3, 40)
