"""Which machines a simulated deployment runs: the shipped ones, unless a test puts a mutant in their place."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from decode_service.allocator import StagingAllocator
from decode_service.handler import DecodeStagingHandler
from decode_service.handler_settings import DecodeHandlerSettings
from prefill_service.handler import PrefillStagingHandler
from prefill_service.handler_settings import PrefillHandlerSettings


@dataclass(frozen=True, slots=True)
class Rules:
    """How the machines of both sides are made."""

    decode: Callable[[DecodeHandlerSettings, StagingAllocator, Random], DecodeStagingHandler] = DecodeStagingHandler
    prefill: Callable[[PrefillHandlerSettings, Random], PrefillStagingHandler] = PrefillStagingHandler
