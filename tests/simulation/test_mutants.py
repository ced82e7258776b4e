"""Every rule earns its place: without it some seeded world breaks a promise, and with it the same world keeps all of them.

Three ways to be caught: by a seed in some climate, by one lost message that then costs too much, or not here. A rule of the
third kind makes nothing wrong in this world that another rule does not make good again; the table names the unit test that
holds it.
"""

import pytest

from lab.simulator.run import run_options
from tests.simulation.climates import complaint, weather
from tests.simulation.decode_end_mutants import ends
from tests.simulation.decode_region_mutants import regions
from tests.simulation.decode_request_mutants import requests
from tests.simulation.decode_subscription_mutants import subscriptions
from tests.simulation.decode_word_mutants import words
from tests.simulation.mutants import Mutant
from tests.simulation.prefill_mutants import prefill
from tests.simulation.ring_mutants import ring
from tests.simulation.test_lost_messages import caught_by_a_lost_message

KINDS = (ring, requests, words, ends, regions, subscriptions, prefill)
MUTANTS: dict[str, Mutant] = {name: mutant for kind in KINDS for name, mutant in kind.mutants.items()}
PATIENCE = 40
"""How many seeds from the listed one on may be tried: a change of the machines can shift what a seed shows."""
STEPS = 60_000
"""A mutant that goes round in circles is caught sooner than a shipped machine would be."""

CAUGHT_BY_SEED = {
    "ring_parks_its_head": ("calm", 2),
    "no_snapshot": ("calm", 1),
    "no_second_snapshot": ("lossy", 0),
    "whole_ring_is_oversized": ("calm", 15),
    "oversized_is_busy": ("small_ring", 1),
    "watermark_follows_the_head": ("calm", 3),
    "gate_forgets_the_end": ("calm", 3),
    "gate_is_open": ("calm", 3),
    "gate_takes_any_watermark": ("mixed", 7),
    "gate_is_a_queue": ("calm", 1),
    "foreign_watermarks_count": ("takeovers", 22),
    "watermark_outlives_its_session": ("takeovers", 1),
    "foreign_answers_count": ("takeovers", 2),
    "heartbeat_brings_no_watermark": ("calm", 1),
    "watermark_is_queued": ("calm", 1),
    "dead_subscribers_stay": ("deaths", 2),
    "closed_is_free": ("engines", 1),
    "one_proof_is_enough": ("engines", 1),
    "taint_is_forgiven": ("landings", 2),
    "lease_never_lapses": ("stalls", 4),
    "repeated_request_grants_anew": ("lossy", 1),
    "scattered_chunk_is_granted_again": ("relics", 49),
    "early_request_is_refused": ("calm", 0),
    "grants_before_all_have_asked": ("calm", 4),
    "joining_counts_as_opening": ("calm", 11),
    "any_index_is_taken": ("garbled", 1),
    "counts_writers_by_tensor_rank": ("stages", 1),
    "ids_are_taken_twice": ("engines", 1),
    "no_tombstones": ("lossy", 2),
    "arrivals_outlive_their_room": ("reuse", 14),
    "early_abort_is_forgotten": ("engines", 15),
    "one_word_is_enough": ("calm", 2),
    "words_are_counted": ("lossy", 4),
    "old_word_is_taken_for_new": ("damage", 2),
    "any_word_is_proof": ("relics", 245),
    "damage_is_ignored": ("pieces", 2),
    "rewrites_for_ever": ("ruin", 1),
    "verdicts_are_said_once": ("lossy", 3),
    "word_overtakes_copies": ("pieces", 2),
    "pieces_are_not_judged": ("pieces", 10),
    "pieces_of_closed_grants": ("pieces", 10),
    "closed_grant_is_scattered": ("engines", 16),
    "closed_grant_is_joined": ("torn", 8),
    "failed_writes_are_forgotten": ("one_landing", 2),
    "failed_room_keeps_its_grants": ("engines", 16),
    "late_success_wins": ("torn", 33),
    "engine_hears_too_early": ("slow_memory", 9),
    "lease_is_proof": ("torn", 2),
    "new_life_is_proof": ("takeovers", 7),
    "silence_is_endured": ("burials", 2),
    "kernel_is_not_asked": ("burials", 4),
    "rooms_outlive_their_prefill": ("deaths", 4),
    "no_deadline": ("mixed", 16),
    "clock_counts_queueing": ("queue", 9),
    "pinned_for_ever": ("landings", 1),
    "scatter_dies_with_the_region": ("slow_memory", 2),
    "sessions_survive_the_region": ("torn", 6),
    "former_region_is_given_back": ("slow_memory", 24),
    "regions_without_end": ("landings", 4),
    "new_life_gets_the_old_session": ("takeovers", 2),
    "old_life_is_taken_back": ("deaths", 4),
    "stopped_is_ignored": ("lossy", 6),
    "anybody_stops_anybody": ("takeovers", 7),
    "route_is_kept": ("partitions", 6),
    "fenced_sessions_are_obeyed": ("takeovers", 26),
    "accepted_words_are_rejected": ("lossy", 1),
    "subscribes_once": ("lossy", 1),
    "lease_runs_from_the_answer": ("stalls", 39),
    "heart_stands_still": ("calm", 2),
    "stopped_is_said_too_early": ("torn", 2),
    "any_complaint_ends_the_session": ("garbled", 2),
    "closed_plane_is_offered_again": ("closed_plane", 1),
    "superseded_life_goes_on": ("deaths", 4),
    "lost_chunks_stay_lost": ("lossy", 1),
    "asks_once": ("lossy", 1),
    "says_ready_once": ("lossy", 1),
    "one_request_at_a_time": ("calm", 5),
    "crowd_has_no_turns": ("calm", 23),
    "says_ready_too_early": ("calm", 1),
    "writes_again_unasked": ("lossy", 1),
    "any_rejection_counts": ("damage", 1),
    "stale_is_ignored": ("partitions", 13),
    "empty_slices_are_asked_for": ("halves", 1),
    "failed_write_is_tried_again": ("landings", 1),
    "acknowledges_at_once": ("torn", 5),
    "one_end_ends_all": ("torn", 29),
    "only_known_rooms_are_acknowledged": ("engines", 4),
    "failure_is_told_to_nobody": ("engines", 4),
    "pages_are_given_back_too_early": ("torn", 4),
    "no_deadline_here": ("forgotten", 3),
    "unasked_ranks_hear_nothing": ("engines", 74),
    "ids_return_while_aborted": ("unanswered", 4),
    "promises_despite_failed_writes": ("landing_aborts", 30),
    "waiting_is_proof": ("stuck", 0),
}
"""Climate and first seed."""

CAUGHT_BY_A_LOST_MESSAGE = {
    "never_probes": {"WATERMARK"},
    "abort_is_said_once": {"ABORT"},
    "aborts_once": {"ABORT"},
}
"""The kinds of message of which one is lost."""

HELD_ELSEWHERE = {
    "parked_for_ever": "tests/unit/decode_service/test_granting.py",  # the prefill's own deadline ends it a little later
    "judges_before_it_listens": "tests/unit/decode_service/test_watching.py",  # a lease of the prefill lapses first, by design
    "pieces_of_any_attempt": "tests/unit/decode_service/test_pieces.py",  # checksums find what it lets in
    "failure_is_kept_quiet": "tests/unit/decode_service/test_closing.py",  # the next answer says ``aborted``
    "new_offer_is_proof": "tests/unit/decode_service/test_subscribing.py",  # prefills change it only when they are quiet
    "offer_cannot_change": "tests/unit/decode_service/test_subscribing.py",  # ``stopped`` ends the former session first
    "proof_of_the_fenced_is_refused": "tests/unit/decode_service/test_hearing.py",  # other proofs follow, or a new region
    "strangers_are_ignored": "tests/unit/decode_service/test_hearing.py",  # their lease lapses a little later
    "answers_of_another_life_count": "tests/unit/prefill_service/test_subscribing.py",  # as below
    "any_answer_counts": "tests/unit/prefill_service/test_subscribing.py",  # a region that went is asked for once more
    "crowd_is_left_in_silence": "tests/unit/prefill_service/test_repeats.py",  # the place or the grant mostly comes
    "errors_are_ignored": "tests/unit/prefill_service/test_subscribing.py",  # as above
    "waits_for_memory_in_silence": "tests/unit/decode_service/test_replacing.py",  # rooms fail later, at their deadline
    "decode_restart_goes_unnoticed": "tests/unit/prefill_service/test_subscribing.py",  # ``unknown_room`` follows
}
"""Rules whose absence heals by itself here, and where they are tested."""


@pytest.mark.parametrize("name", CAUGHT_BY_SEED)
def test_a_world_breaks_without_the_rule_and_not_with_it(name: str) -> None:
    """The mutant is caught by a seed that the shipped machines pass."""
    climate, first = CAUGHT_BY_SEED[name]
    for seed in range(first, first + PATIENCE):
        with pytest.MonkeyPatch.context() as patch:
            MUTANTS[name].apply(patch)
            patch.setattr("lab.simulator.events.MAX_STEPS", STEPS)
            caught = complaint(climate, run_options(weather(climate, seed)))
        if caught:
            assert not complaint(climate, run_options(weather(climate, seed)))
            return
    pytest.fail(f"nobody misses the rule {MUTANTS[name].rule!r}: no seed from {first} on in climate {climate!r}")


@pytest.mark.parametrize("name", CAUGHT_BY_A_LOST_MESSAGE)
def test_a_lost_message_costs_too_much_without_the_rule(name: str) -> None:
    """What the shipped machines make up for in twice a timer takes the mutant longer, or for ever."""
    assert caught_by_a_lost_message(MUTANTS[name].apply, CAUGHT_BY_A_LOST_MESSAGE[name])


def test_every_mutant_has_its_place_in_the_table() -> None:
    """No rule is taken out without saying how that is noticed."""
    assert MUTANTS.keys() == {*CAUGHT_BY_SEED, *CAUGHT_BY_A_LOST_MESSAGE, *HELD_ELSEWHERE}
