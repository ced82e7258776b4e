"""A seed draws one world, and can say which."""

from dataclasses import fields

from lab.simulator.options import Faults, Options, draw_options


def test_a_seed_always_draws_the_same() -> None:
    """Equal seeds, equal options; other seeds, others."""
    assert draw_options(3) == draw_options(3)
    assert draw_options(3) != draw_options(4)


def test_every_option_is_described() -> None:
    """What is printed names every field once."""
    names = [line.split(" = ")[0] for line in draw_options(1).describe().splitlines()]
    own = [field.name for field in fields(Options) if field.name != "faults"]
    assert names == own + [f"faults.{field.name}" for field in fields(Faults)]


def test_lost_messages_are_not_a_reason_to_fail() -> None:
    """Faults of messages only are told from all others."""
    assert Faults(loss=0.3, duplication=0.2, send_full=0.1).only_messages
    assert not Faults(loss=0.3, pauses=1).only_messages
    assert any(draw_options(seed).faults.only_messages for seed in range(50))
