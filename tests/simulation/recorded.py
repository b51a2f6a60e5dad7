"""Seeds that were found once: `python -m simulation.search` finds them anew when schedules have changed."""

from __future__ import annotations

from collections.abc import Mapping

CAUGHT: Mapping[str, tuple[int, str]] = {
    "skip_the_live_reread": (290, "policy-ignored"),
    "write_over_conflicts": (7, "records-follow-the-leader"),
    "remember_intents_only": (46, "no-leak"),
    "share_the_scrub_pod": (40, "what-can-proceed-does"),
    "release_before_it_is_erased": (57, "unscrubbed"),
    "lift_the_gate_without_a_permit": (40, "permit"),
    "delete_under_any_policy": (415, "policy-ignored"),
    "save_a_volume_for_a_dying_claim": (37, "nothing-for-the-dying"),
    "forget_to_settle": (0, "no-leak"),
    "accept_forged_intents": (9, "one-asset-per-generation"),
    "believe_the_cache_that_a_claim_is_gone": (64, "bound-stays-bound"),
    "take_absent_for_proof": (152, "no-leak"),
    "choose_a_place_anew": (448, "one-asset-per-generation"),
    "hold_what_is_gone": (2, "no-stuck-finalizer"),
    "say_nothing_of_a_release": (2, "no-stuck-finalizer"),
    "leave_the_scrubber_pod": (40, "nothing-left-over"),
    "poll_what_is_kept": (4, "comes-to-rest"),
    "delete_without_preconditions": (276, "policy-ignored"),
    "keep_the_first_credentials": (9, "watches-go-on"),
    "give_up_a_watch_that_is_refused": (10, "comes-to-rest"),
    "drop_what_is_refused": (744, "what-can-proceed-does"),
    "wait_for_bookmarks": (0, "watches-go-on"),
    "resume_after_a_restore": (233, "what-can-proceed-does"),
    "discard_what_is_wanted": (154, "still-wanted"),
    "place_each_try_anew": (248, "place-is-kept"),
    "adopt_any_scrub_pod": (5, "unscrubbed"),
    "believe_the_cache_about_pods": (207, "asset-in-use"),
    "break_promises": (202, "never-used"),
    "scrub_what_pods_use": (114, "asset-in-use"),
    "scrub_for_a_living_claim": (2, "asset-in-use"),
    "step_after_a_pause": (52, "lease-over"),
    "lead_after_a_suspension": (49, "lease-over"),
    "provision_after_a_pause": (24, "lease-over"),
    "delete_after_a_pause": (286, "lease-over"),
    "recycle_after_a_pause": (108, "lease-over"),
    "expand_after_a_pause": (86, "lease-over"),
    "follow_a_former_leader": (7, "records-follow-the-leader"),
    "wait_for_an_epoch": (242, "what-can-proceed-does"),
    "call_again_what_hangs": (24, "one-thread-hangs"),
    "start_again_what_hangs": (0, "one-thread-hangs"),
    "believe_the_proxy": (35, "no-stuck-finalizer"),
}
"""Planted bug -> a seed that shows it, and the invariant that breaks."""

CAUGHT_ATTACHING: Mapping[str, tuple[int, str]] = {
    "detach_what_is_in_use": (1, "mounted-stays-attached"),
    "force_at_once": (1, "mounted-stays-attached"),
    "attach_to_two_nodes": (2, "one-node"),
    "forget_to_detach": (4, "comes-to-rest"),
    "keep_what_nobody_wants": (2, "attachments-have-a-reason"),
    "tell_no_node": (4, "pods-run"),
    "attach_after_a_pause": (5, "lease-over"),
    "detach_after_a_pause": (55, "lease-over"),
    "modify_after_a_pause": (158, "lease-over"),
    "leave_what_is_left_over": (324, "attachments-have-a-reason"),
    "compare_nothing": (324, "attachments-have-a-reason"),
}
"""Planted bug -> a seed of the scenario `attach` that shows it, and the invariant that breaks."""

CAUGHT_CHANGING: Mapping[str, tuple[int, str]] = {
    "tell_the_claim_first": (1, "no-more-than-there-is"),
    "grow_without_the_backend": (1, "no-more-than-there-is"),
    "insist_on_what_was_refused": (15, "comes-to-rest"),
    "write_down_what_is_asked_for": (20, "no-more-than-there-is"),
    "change_without_the_backend": (10, "what-is-asked-for-comes"),
    "delete_what_is_attached": (1, "nothing-attached-is-deleted"),
}
"""Planted bug of changes -> a seed of the scenario `attach` that shows it, and the invariant that breaks."""

CAUGHT_REUSED: Mapping[str, tuple[int, str]] = {
    "take_every_registration_for_another_machine": (65, "mounted-stays-attached"),
    "believe_an_empty_list": (65, "mounted-stays-attached"),
    "know_a_volume_by_its_name": (14, "attachments-have-a-reason"),
    "detach_under_the_other_attachment": (4, "no-late-detach"),
    "take_an_unknown_attach_for_none": (47, "one-node"),
}
"""Planted bug -> a seed of the scenario `reused` that shows it, and the invariant that breaks."""

CAUGHT_PARTED: Mapping[str, tuple[int, str]] = {
    "lead_while_cut_off": (0, "lease-over"),
    "count_from_the_lease_alone": (142, "no-stuck-finalizer"),
}
"""Planted bug -> a seed of the scenario `parted` that shows it, and the invariant that breaks."""

CAUGHT_TWICE: Mapping[str, tuple[int, str]] = {
    "write_over_others": (5, "no-hot-loop"),
    "leave_records_to_others_for_good": (3, "comes-to-rest"),
}
"""Planted bug -> a seed of the scenario `twice` that shows it, and the invariant that breaks."""

CAUGHT_INTERRUPTED: Mapping[str, tuple[int, str]] = {
    "kill_scrubber_pods": (15, "asset-in-use"),
}
"""Planted bug -> a seed of the scenario `interrupted` that shows it, and the invariant that breaks."""

CAUGHT_TWINS: Mapping[str, tuple[int, str]] = {
    "compare_sources_by_their_text": (2, "asset-in-use"),
}
"""Planted bug -> a seed of the scenario `twins` that shows it, and the invariant that breaks."""

CAUGHT_DAMAGED: Mapping[str, tuple[int, str]] = {
    "take_any_count_for_a_later_term": (1, "somebody-leads"),
    "count_terms_without_end": (17, "somebody-leads"),
}
"""Planted bug -> a seed of the scenario `damaged` that shows it, and the invariant that breaks."""

CAUGHT_HOSTILE: Mapping[str, tuple[int, str]] = {
    "forget_what_was_begun": (35, "quota"),
    "trust_where_a_claim_points": (23, "no-stuck-finalizer"),
    "let_cancellations_through": (9, "hooks-end-nothing"),
}
"""Planted bug -> a seed of the scenario `hostile` that shows it, and the invariant that breaks."""

CAUGHT_ON_NODES: Mapping[str, tuple[int, str]] = {
    "forget_what_was_given_up_and_deleted": (13, "no-stuck-finalizer"),
    "leave_labels_as_they_are": (13, "labels-tell-the-truth"),
    "delete_by_the_label_alone": (0, "deleted-before-it-goes"),
    "take_a_node_made_again_for_the_old_one": (120, "deleted-before-it-goes"),
    "move_claims_on_at_once": (12, "given-up-in-time"),
    "go_on_with_the_same_generation": (3, "one-asset-per-generation"),
    "promise_room_twice": (17, "no-more-is-promised-than-there-is"),
    "keep_claims_on_a_full_node": (13, "what-can-proceed-does"),
    "take_claims_from_the_scheduler": (17, "what-can-proceed-does"),
    "forget_generations_on_a_full_node": (1663, "one-asset-per-generation"),
    "take_the_time_from_ones_own_clock": (4118, "no-more-is-promised-than-there-is"),
    "publish_for_a_node_that_is_gone": (20, "no-hot-loop"),
}
"""Planted bug of storage on nodes -> a seed that shows it, and the invariant that breaks."""

CAUGHT_TRASH: Mapping[str, tuple[int, str]] = {
    "forget_the_trash": (3, "purged-early"),
    "trust_our_clock": (3, "purged-early"),
    "give_to_whoever_asks": (5, "trash-is-nobodys"),
    "offer_what_lost_its_reference": (75, "trash-is-nobodys"),
    "forget_the_choice": (3, "purged-early"),
}
"""Planted bug of the trash -> a seed of the scenario `trash` that shows it, and the invariant that breaks."""

CAUGHT_SNAPSHOTS: Mapping[str, tuple[int, str]] = {
    "cut_again_when_the_content_is_lost": (7, "one-cut"),
    "release_the_claim_before_the_cut": (2, "held-until-cut"),
    "forget_the_snapshot_of_a_lost_content": (6, "no-leak"),
    "delete_under_retain": (7, "policy-ignored"),
    "bind_a_claim_with_a_source_to_any_volume": (0, "made-for-it"),
    "restore_from_an_unready_snapshot": (7, "restored-as-cut"),
    "take_no_answer_for_none": (36, "no-leak"),
    "hold_the_source_for_ever": (2, "no-stuck-finalizer"),
    "begin_a_run_while_the_last_one_is_under_way": (27, "one-run-at-a-time"),
    "count_snapshots_that_are_not_ready": (2, "last-good-one-stays"),
    "delete_the_last_good_one_by_its_age": (20, "last-good-one-stays"),
    "take_a_snapshot_again_that_is_gone": (2, "one-snapshot-a-run"),
}
"""Planted bug of snapshots -> a seed of the scenario `snapshots` that shows it, and the invariant that breaks."""

CAUGHT_GROUPS: Mapping[str, tuple[int, str]] = {
    "show_a_group_whose_first_member_is_ready": (6, "whole-group"),
    "make_no_objects_for_the_last_member": (6, "whole-group"),
    "let_members_go_before_their_group": (0, "members-stay-with-their-group"),
    "forget_the_snapshots_of_a_deleted_group": (4, "no-leak"),
    "cut_the_members_one_after_another": (6, "one-moment"),
    "keep_no_claims_for_a_group": (436, "held-until-cut"),
}
"""Planted bug of groups -> a seed of the scenario `groups` that shows it, and the invariant that breaks."""

CAUGHT_FOLLOWED: Mapping[str, tuple[int, str]] = {
    "leave_what_was_left": (0, "no-stuck-finalizer"),
    "believe_what_was_followed": (4, "bound-stays-bound"),
}
"""Planted bug of followers -> a seed of the scenario `followed` that shows it, and the invariant that breaks."""

ALL_CAUGHT = (
    CAUGHT,
    CAUGHT_ATTACHING,
    CAUGHT_CHANGING,
    CAUGHT_REUSED,
    CAUGHT_PARTED,
    CAUGHT_TWICE,
    CAUGHT_INTERRUPTED,
    CAUGHT_TWINS,
    CAUGHT_DAMAGED,
    CAUGHT_HOSTILE,
    CAUGHT_ON_NODES,
    CAUGHT_TRASH,
    CAUGHT_SNAPSHOTS,
    CAUGHT_GROUPS,
    CAUGHT_FOLLOWED,
)
"""All tables above, in the order of docs/design/simulation.md."""

COVERING = (6, 359, 388, 421, 18, 380, 438, 327, 638, 1015, 9, 296, 5, 10, 201, 169, 245, 102, 68)
"""Seeds in which, together, every kind of trouble comes."""
