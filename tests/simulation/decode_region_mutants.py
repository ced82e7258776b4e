"""Decode ranks that lack one rule about replaced regions."""

import pytest

from decode_service.grants import GrantState
from decode_service.replacing import Replacing
from decode_service.state import DecodeState
from tests.simulation.mutants import Register, nothing

regions = Register()


@regions.without("what stays pinned without proof costs the region")
def pinned_for_ever(patch: pytest.MonkeyPatch) -> None:
    """Quarantine never ends."""
    patch.setattr(Replacing, "quarantine_over", nothing)


@regions.without("what hangs on proof that cannot come fails, if there is no other memory")
def waits_for_memory_in_silence(patch: pytest.MonkeyPatch) -> None:
    """Its rooms wait for their last deadline."""

    def wait(self: Replacing, reason: str) -> None:
        self.state.stuck_reason = reason
        for grant in self.state.grants:
            if grant.state is GrantState.CLOSED:
                self.closing.watch_quarantine(grant)

    patch.setattr(Replacing, "_wait_for_proof", wait)


@regions.without("a scatter that has begun ends as consumed, also across a new region")
def scatter_dies_with_the_region(patch: pytest.MonkeyPatch) -> None:
    """Its chunk is granted again while it runs."""

    def leave(self: Replacing, epoch: int) -> None:
        for grant in self.state.grants:
            grant.retired_epoch = epoch
            self.state.retired_grants[grant.alloc_id] = grant
            self.closing._detach(grant)

    patch.setattr(Replacing, "_leave_grants", leave)


@regions.without("every session subscribes again when the region is replaced")
def sessions_survive_the_region(patch: pytest.MonkeyPatch) -> None:
    """They go on writing into the former one."""
    patch.setattr(Replacing, "_leave_sessions", nothing)


@regions.without("former regions are kept while a copy of ours runs in them or a writer can reach them")
def former_region_is_given_back(patch: pytest.MonkeyPatch) -> None:
    """Memory goes back to the host while it is in use."""
    patch.setattr(DecodeState, "has_retired_grants", lambda *_: False)
    patch.setattr(Replacing, "_is_reachable", lambda *_: False)


@regions.without("former regions are bounded")
def regions_without_end(patch: pytest.MonkeyPatch) -> None:
    """Each death costs a ring."""
    shipped = Replacing.quarantine_over

    def over(self: Replacing, alloc_id: int) -> None:
        retired, self._retired = self._retired, set()
        shipped(self, alloc_id)
        self._retired = retired

    patch.setattr(Replacing, "quarantine_over", over)
