"""Known bugs about groups of snapshots."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace as with_changes
from typing import Any

from simulation.planting import by_name, replace
from volplane import GroupSnapshotRequest
from volplane.controller.actions import Action
from volplane.drivers.driver import DriverView
from volplane.snapshots import decide, groups, groups_contents
from volplane.snapshots.groups_objects import VolumeGroupSnapshotContent
from volplane.snapshots.state import GroupCut, SnapshotState
from volplane_testing.simulation.cutting_backend import CutSnapshot
from volplane_testing.simulation.grouping_backend import GroupingBackend


def show_a_group_whose_first_member_is_ready(stack: ExitStack) -> None:
    """Take a group for ready as soon as one of its snapshots is."""
    status = groups_contents._status

    def shown(content: VolumeGroupSnapshotContent, cut: GroupCut) -> Any:
        if any(each.ready for each in cut.group.snapshots):
            ready = tuple(with_changes(each, ready=True) for each in cut.group.snapshots)
            cut = GroupCut(with_changes(cut.group, snapshots=ready), cut.created, cut.due)
        return status(content, cut)

    replace(stack, groups_contents, "_status", shown)


def make_no_objects_for_the_last_member(stack: ExitStack) -> None:
    """Take a group for whole before its last member has its objects."""
    step = groups._of_member

    def of_member(group: Any, content: VolumeGroupSnapshotContent, info: Any, state: SnapshotState) -> Any:
        last = len(content.members) > 1 and info == list(content.members)[-1]
        return None if last else step(group, content, info, state)

    replace(stack, groups, "_of_member", of_member)


def let_members_go_before_their_group(stack: ExitStack) -> None:
    """Delete a member that a user deletes."""
    replace(stack, decide, "_in_group", lambda *_: None)


def forget_the_snapshots_of_a_deleted_group(stack: ExitStack) -> None:
    """Let the content of a group go, and leave what was cut on the storage."""

    def deletion(content: VolumeGroupSnapshotContent, _driver: DriverView, *_: Any) -> Action:
        return groups_contents._release(content, why="nobody wants it")

    replace(stack, groups_contents, "_deletion", deletion)


def cut_the_members_one_after_another(stack: ExitStack) -> None:
    """Let a storage cut each volume of a group a second after the one before."""
    cut = GroupingBackend._cut_group

    def one_by_one(self: GroupingBackend, request: GroupSnapshotRequest) -> list[CutSnapshot]:
        made = [with_changes(each, created=each.created + at) for at, each in enumerate(cut(self, request))]
        self.snapshots.update({each.handle: each for each in made})
        return made

    replace(stack, GroupingBackend, "_cut_group", one_by_one)


def keep_no_claims_for_a_group(stack: ExitStack) -> None:
    """Let the claims of a group go before it is cut."""
    replace(stack, groups, "_hold_claims", lambda *_: None)


GROUP_PLANTS = by_name(
    show_a_group_whose_first_member_is_ready,
    make_no_objects_for_the_last_member,
    let_members_go_before_their_group,
    forget_the_snapshots_of_a_deleted_group,
    cut_the_members_one_after_another,
    keep_no_claims_for_a_group,
)
