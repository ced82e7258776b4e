"""A prefill's belief never falls and never exceeds the truth, and nothing is left of it that nobody needs."""

import pytest

from lab.simulator.memory import ViolationError
from lab.simulator.options import Options
from lab.simulator.prefill_checks import BelievedWatermarks, prefill_leaks
from lab.simulator.rules import Rules
from lab.simulator.world import World
from protocol.watermark import Watermark


def test_a_belief_beyond_the_truth_or_behind_itself_is_found() -> None:
    """Both are checked whenever a watermark is heard."""
    world = World(Options(seed=3, requests=1), Rules())
    world.start()
    world.play(30.0)
    prefill, decode, believed = world.prefills["p00"].handler, world.decodes["d0"].handler, BelievedWatermarks("p00")
    assert list(prefill_leaks(prefill)) == []
    believed.check(prefill, "d0", decode)
    session = prefill.state.peers["d0"].session
    assert session is not None
    session.gate._watermark = Watermark(99, 0)
    with pytest.raises(ViolationError, match="which is at"):
        believed.check(prefill, "d0", decode)
    session.gate._watermark = Watermark(0, 0)
    with pytest.raises(ViolationError, match="after"):
        believed.check(prefill, "d0", decode)
