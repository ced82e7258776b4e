"""A world runs the machines that its rules make."""

from random import Random

from decode_service.allocator import StagingAllocator
from decode_service.handler import DecodeStagingHandler
from decode_service.handler_settings import DecodeHandlerSettings
from lab.simulator.options import Options
from lab.simulator.rules import Rules
from lab.simulator.world import World


class Other(DecodeStagingHandler):
    """Another decode machine."""


def test_rules_choose_the_machines() -> None:
    """The shipped ones, unless a test says otherwise."""

    def make(settings: DecodeHandlerSettings, allocator: StagingAllocator, random: Random) -> DecodeStagingHandler:
        return Other(settings, allocator, random)

    world = World(Options(), Rules(decode=make))
    world.start()
    assert isinstance(world.decodes["d0"].handler, Other)
    assert type(Rules().decode) is type(DecodeStagingHandler)
