"""The tests of external-snapshotter by their ids, and the test of ours or the difference that answers each.

Source: pkg/common-controller and pkg/sidecar-controller of kubernetes-csi/external-snapshotter, their `_test.go` files.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

REPOSITORY: Final = Path(__file__).resolve().parents[3]
DIFFERENCES: Final = (REPOSITORY / "docs" / "explanation" / "differences.md").read_text("utf-8")
TESTS: Final = {
    name
    for file in ("unit/snapshots/test_decide.py", "unit/snapshots/test_contents.py", "integration/test_snapshots.py")
    for name in re.findall(
        r"^(?:async )?def (test_\w+)", (REPOSITORY / "tests" / file).read_text("utf-8"), re.MULTILINE
    )
}

# What begins with "test_" is a test of ours, anything else words of differences.md.
SECRETS: Final = "secrets of the class are noted on the content"
REFUSED: Final = "a write was refused"
FIRST_STATUS: Final = "is shown as bound at once"
COPIED: Final = "test_the_status_is_copied_and_ready_is_told"
MISBOUND: Final = "test_a_content_of_another_snapshot_under_the_name_is_not_taken"
UNTOUCHED: Final = "test_a_content_that_names_another_snapshot_is_untouched"
GOES: Final = "test_the_content_is_marked_then_deleted_then_waited_for_then_the_snapshot_goes"
KEPT: Final = "test_a_content_that_is_retained_is_marked_and_stays"
SETTLED: Final = "test_a_snapshot_that_shows_everything_is_settled_whatever_became_of_class_and_claim"
NO_CLASS: Final = "test_a_class_that_does_not_exist_is_named"
NO_CLAIM: Final = "test_a_claim_that_does_not_exist_is_named"
LET_GO: Final = "test_a_content_that_is_retained_is_let_go_without_a_call"
DELETED: Final = "test_a_content_whose_snapshot_is_going_is_deleted_on_the_storage_then_let_go"
ERRORS: Final = "test_why_a_deletion_failed_is_shown"
UNBOUND: Final = "test_a_content_that_was_never_bound_may_go"
BINDS: Final = "test_a_content_is_bound_by_one_write_with_its_finalizer_and_class"
BY_HAND: Final = "test_a_content_that_is_deleted_by_hand_waits_for_its_snapshot"

ROWS: Final = {
    "create": {
        "6-1": "test_then_the_content_is_created_with_finalizer_and_intent",
        "6-2": SECRETS,
        "7-1": NO_CLASS,
        "7-3": "test_one_default_class_of_the_driver_is_needed",
        "7-4": NO_CLAIM,
        "7-5": "test_a_volume_that_does_not_exist_is_named",
        "7-6": "test_a_claim_that_is_not_bound_is_waited_for",
        "7-7": REFUSED,
        "7-9": "test_writes_that_fail_are_made_again",
        "7-10": SECRETS,
        "7-11": "test_a_content_that_cannot_be_created_is_told_on_the_snapshot",
    },
    "sync": {
        "2-1": "a ready VolumeSnapshot whose content vanished",
        "2-2": "test_a_content_that_names_another_snapshot_is_not_bound",
        "2-3": COPIED,
        "2-4": SETTLED,
        "2-5": "test_a_content_without_status_is_waited_for_without_a_write",
        "2-6": BINDS,
        "2-8": REFUSED,
        "2-9": NO_CLAIM,
        "2-10": "test_a_content_that_names_another_snapshot_is_not_bound",
        "2-11": BINDS,
        "2-12": REFUSED,
        "2-13": "test_a_content_that_a_person_wrote_under_the_name_is_not_taken",
        "2-14": SETTLED,
        "3-1": "a ready VolumeSnapshot whose content vanished",
        "3-2": "test_a_ready_snapshot_whose_content_is_gone_is_not_ready_any_more",
        "3-3": SETTLED,
        "3-4": "test_a_content_that_names_another_snapshot_is_not_bound",
        "3-5": SETTLED,
        "3-6": "test_a_ready_snapshot_whose_content_names_another_one_is_not_ready_any_more",
        "4-1": COPIED,
        "4-2": "test_an_error_of_the_content_is_copied_and_goes_with_it",
        "4-3": COPIED,
        "4-4": "test_then_the_snapshot_is_held_and_shows_what_the_content_shows",
        "5-1": "test_a_finalizer_that_somebody_removed_is_put_back",
        "5-2": REFUSED,
        "5-3": GOES,
        "5-4": REFUSED,
        "5-5": KEPT,
        "5-6": GOES,
        "5-7": REFUSED,
        "5-8": KEPT,
        "6-1": "test_an_error_of_the_content_is_copied_and_goes_with_it",
        "6-2": "test_an_error_of_the_content_is_copied_and_goes_with_it",
        "6-3": "test_an_error_of_the_content_is_copied_and_goes_with_it",
        "6-4": FIRST_STATUS,
        "7-1": NO_CLASS,
        "8-1": "test_then_the_content_is_created_with_finalizer_and_intent",
        "8-2": "test_then_the_content_is_created_with_finalizer_and_intent",
        "8-3": "test_a_snapshot_waits_for_its_claim_and_its_class",
        "9-1": SETTLED,
    },
    "delete": {
        "1-1": UNTOUCHED,
        "1-2": GOES,
        "1-3": UNTOUCHED,
        "3-1": GOES,
        "3-1a": "test_a_pending_claim_that_is_made_of_it_holds_it",
        "3-2": REFUSED,
        "3-3": KEPT,
        "3-4": GOES,
        "3-5": UNTOUCHED,
        "3-6": UNTOUCHED,
        "3-7": "test_a_content_that_a_person_wrote_is_bound_and_its_snapshot_is_deleted_with_it",
        "3-8": REFUSED,
        "3-9": KEPT,
        "3-10": GOES,
        "3-11": UNTOUCHED,
        "3-12": UNTOUCHED,
    },
    "class": {
        "1-1": "test_class_and_finalizers_are_written_first_and_together",
        "1-2": "test_then_the_claim_is_held",
        "1-3": NO_CLASS,
        "1-5": NO_CLAIM,
    },
    "finalizers": {
        "1-1": "test_then_the_claim_is_held",
        "1-2": "test_then_the_content_is_created_with_finalizer_and_intent",
        "1-3": "test_a_claim_is_released_once_all_its_snapshots_are_cut_although_none_is_ready",
        "1-4": "test_a_claim_is_released_once_all_its_snapshots_are_cut_although_none_is_ready",
        "1-5": "until it is cut",
        "2-1": "test_class_and_finalizers_are_written_first_and_together",
        "2-2": "test_then_the_snapshot_is_held_and_shows_what_the_content_shows",
        "2-3": GOES,
    },
    "sidecar sync": {
        "1-1": "`find_snapshot`, when the backend said",
        "1-2": "test_a_content_of_ours_needs_no_write_before_the_hook",
        "1-3": SECRETS,
        "1-4": SECRETS,
        "1-5": SECRETS,
        "1-6": "test_without_its_class_a_content_of_another_controller_cannot_be_cut",
        "1-7": "test_what_is_cut_and_not_ready_is_shown_and_looked_for_again_without_another_cut",
        "1-8": "test_what_is_cut_and_not_ready_is_shown_and_looked_for_again_without_another_cut",
        "1-9": "test_a_snapshot_that_became_ready_is_shown_with_what_was_set_before",
    },
    "sidecar delete": {
        "1-1": DELETED,
        "1-2": LET_GO,
        "1-3": ERRORS,
        "1-4": SECRETS,
        "1-5": ERRORS,
        "1-6": "test_a_deleted_snapshot_is_deleted_on_the_storage_without_class_and_claim",
        "1-7": "test_a_content_that_a_person_wrote_is_looked_up_once_it_is_bound",
        "1-8": "a content of policy Retain that was not cut",
        "1-9": DELETED,
        "1-10": LET_GO,
        "1-11": DELETED,
        "1-12": LET_GO,
        "1-13": UNBOUND,
        "1-14": UNBOUND,
        "1-15": DELETED,
        "1-16": "test_a_member_of_a_group_is_let_go_without_a_call",
        "1-17": "test_a_member_of_a_group_is_let_go_without_a_call",
    },
    "should delete": {
        "not terminating": "test_a_content_that_a_person_wrote_is_looked_up_once_it_is_bound",
        "pre-provisioned, unbound": UNBOUND,
        "being deleted": DELETED,
        "else": BY_HAND,
    },
    "parameters": {
        "none, one": "test_then_the_content_is_created_with_finalizer_and_intent",
        "known prefixed": SECRETS,
        "unknown prefixed": "test_parameters_of_the_class_that_the_driver_does_not_know_are_named",
    },
}


@pytest.mark.parametrize(("table", "row"), [(table, row) for table, rows in ROWS.items() for row in rows])
def test_a_row_of_the_stock_tests_is_tested_here_or_listed_as_a_difference(table: str, row: str) -> None:
    answer = ROWS[table][row]
    assert answer in (TESTS if answer.startswith("test_") else DIFFERENCES)
