"""Seeds that were found once: `python -m simulation.search` finds them anew when schedules have changed."""

from __future__ import annotations

from collections.abc import Mapping

CAUGHT: Mapping[str, tuple[int, str]] = {
    "skip_the_live_reread": (110, "policy-ignored"),
    "write_over_conflicts": (251, "one-claim-per-volume"),
    "remember_intents_only": (3, "no-leak"),
    "share_the_scrub_pod": (217, "what-can-proceed-does"),
    "release_before_it_is_erased": (63, "unscrubbed"),
    "lift_the_gate_without_a_permit": (0, "permit"),
    "delete_under_any_policy": (110, "policy-ignored"),
    "save_a_volume_for_a_dying_claim": (4, "nothing-for-the-dying"),
    "forget_to_settle": (3, "no-leak"),
    "accept_forged_intents": (4, "one-asset-per-generation"),
    "believe_the_cache_that_a_claim_is_gone": (278, "bound-stays-bound"),
    "take_absent_for_proof": (14, "no-leak"),
    "choose_a_place_anew": (99, "one-asset-per-generation"),
    "kill_scrubber_pods": (2881, "asset-in-use"),
    "delete_without_preconditions": (1837, "policy-ignored"),
    "hold_what_is_gone": (3, "no-stuck-finalizer"),
    "say_nothing_of_a_release": (3, "phases-tell-the-truth"),
    "leave_the_scrubber_pod": (0, "nothing-left-over"),
    "poll_what_is_kept": (3, "comes-to-rest"),
    "keep_the_first_credentials": (9, "watches-go-on"),
    "give_up_a_watch_that_is_refused": (57, "comes-to-rest"),
    "drop_what_is_refused": (297, "what-can-proceed-does"),
    "wait_for_bookmarks": (5, "watches-go-on"),
    "resume_after_a_restore": (760, "no-stuck-finalizer"),
}
"""Planted bug -> the first seed that shows it, and the invariant that breaks."""

CAUGHT_ATTACHING: Mapping[str, tuple[int, str]] = {
    "detach_what_is_in_use": (15, "mounted-stays-attached"),
    "force_at_once": (15, "mounted-stays-attached"),
    "attach_to_two_nodes": (3, "one-node"),
    "forget_to_detach": (0, "attachments-have-a-reason"),
    "keep_what_nobody_wants": (0, "attachments-have-a-reason"),
    "tell_no_node": (3, "pods-run"),
}
"""Planted bug -> a seed of the scenario `attach` that shows it, and the invariant that breaks."""

CAUGHT_CHANGING: Mapping[str, tuple[int, str]] = {
    "tell_the_claim_first": (5, "no-more-than-there-is"),
    "grow_without_the_backend": (1, "no-more-than-there-is"),
    "insist_on_what_was_refused": (5, "comes-to-rest"),
    "write_down_what_is_asked_for": (11, "no-more-than-there-is"),
    "change_without_the_backend": (5, "what-is-asked-for-comes"),
    "delete_what_is_attached": (3, "nothing-attached-is-deleted"),
}
"""Planted bug of changes -> a seed of the scenario `attach` that shows it, and the invariant that breaks."""

COVERING = (64, 368, 1119, 599, 3, 735, 82, 280, 4, 9, 17, 21, 297, 314, 760, 886)
"""Seeds in which, together, every kind of trouble comes."""
