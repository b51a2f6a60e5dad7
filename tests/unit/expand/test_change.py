"""What growing and other attributes share: whose asset it is, a call that takes long, conditions of the claim."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest

from unit.binding.objects import claim, volume
from unit.deciding import DRIVER, HOOKS, disk, read, state_with
from volplane.controller.actions import EventRecord, LiveReads, Patch, Run, Settled, Wait
from volplane.drivers.owners import SourceOwner
from volplane.expand.modify import decide_modify, stages
from volplane.expand.resize import (
    RESIZE_CONDITIONS,
    RESIZING,
    conditions_with,
    conditions_without,
    resume_change,
)
from volplane.kube.kinds import CLAIMS, VOLUME_ATTRIBUTES_CLASSES
from volplane.kube.objects import Claim, Metadata, Volume, VolumeAttributesClass
from volplane.state.naming import asset_key
from volplane.state.progress import Changed, ChangeStep, Changing, Refused
from volplane.state.records import INTENT_VERSION, ChangeIntent, read_intent, write_intent

MARK = "example.com/expansion"
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
BEFORE = "2025-12-31T23:00:00Z"
OURS = disk(hooks=HOOKS | {"expand"})
ITEM = claim(volumeName="v", status={"phase": "Bound"})
WANTING = claim(volumeName="v", volumeAttributesClassName="fast", status={"phase": "Bound"})

# --- whose it is -------------------------------------------------------------------------------------------------


def its(**fields: Any) -> Volume:
    return volume(**{"claim": ITEM, "status": {"phase": "Bound"}, **fields})


def test_the_asset_is_that_of_the_volume_that_the_claim_is_bound_to() -> None:
    item = its()
    assert state_with(item).volume_of(ITEM) == item


@pytest.mark.parametrize(
    "item", [None, its(deletionTimestamp=BEFORE), its(claim=claim("another")), its(claim=claim("c", uid="former"))]
)
def test_nothing_is_changed_of_a_volume_that_is_gone_is_going_or_is_bound_to_another(item: Volume | None) -> None:
    cluster = state_with(*([item] if item is not None else []), drivers=(OURS,))
    cluster.claims.observe(WANTING)
    assert decide_modify(WANTING.key, cluster, LiveReads()) == Settled()


def changed(item: Volume, owner: SourceOwner) -> Any:
    """What is decided about a claim that asks for other attributes, with this answer of the drivers."""
    cluster = state_with(WANTING, item, drivers=(OURS,))
    cluster.drivers.owner_of = lambda _source: owner  # type: ignore[method-assign]
    return decide_modify(WANTING.key, cluster, LiveReads())


def test_drivers_are_asked_first_whose_a_static_volume_is() -> None:
    item = its()
    asked = Run(verb="identify", key="v", uid="uid-v", driver="", asset=asset_key(item))
    assert changed(item, SourceOwner(known=False)) == asked


def test_a_driver_that_cannot_work_is_waited_for_with_the_reason() -> None:
    reason = "its attributes cannot be changed: it is broken"
    assert changed(its(), SourceOwner(reason="it is broken")) == Wait(reason=reason)


# --- attributes ---------------------------------------------------------------------------------------------------

MODIFIES = disk(hooks=HOOKS | {"modify"})


def asking(wanted: str | None, target: str = "", state: str = "", **more: Any) -> Claim:
    """A claim that names this class. target, state: what its status says is being tried. more: of its status."""
    tried = {"modifyVolumeStatus": {"targetVolumeAttributesClassName": target, "status": state}} if target else {}
    named = {} if wanted is None else {"volumeAttributesClassName": wanted}
    return claim(
        size="1Gi", volumeName="v", status={"phase": "Bound", "capacity": {"storage": "1Gi"}, **tried, **more}, **named
    )


def of_class(item: Claim, step: ChangeStep | None) -> Any:
    """What is decided about the claim, whose class `fast` exists, once this has been done for it."""
    held = volume(claim=item, annotations={"pv.kubernetes.io/provisioned-by": DRIVER}, status={"phase": "Bound"})
    cluster = state_with(item, held, drivers=(MODIFIES,))
    if step is not None:
        cluster.progress.changes.track((held.uid, "modify")).step = step
    found = VolumeAttributesClass(metadata=Metadata(name="fast"), driver_name=DRIVER)
    return decide_modify(item.key, cluster, read(VOLUME_ATTRIBUTES_CLASSES, "fast", found))


def test_one_class_is_one_group_of_calls() -> None:
    action = of_class(asking("fast", "fast", "InProgress"), None)
    assert isinstance(action, Run)
    assert (action.verb, action.group) == ("modify", "modify fast")


def test_a_class_is_declared_with_the_condition_that_stock_tools_know() -> None:
    status = of_class(asking("fast"), None).body["status"]
    assert status["modifyVolumeStatus"] == {"targetVolumeAttributesClassName": "fast", "status": "InProgress"}
    assert [each["type"] for each in status["conditions"]] == ["ModifyingVolume"]


def test_a_class_that_is_refused_is_named_in_the_status() -> None:
    status = of_class(asking("fast", "fast", "InProgress"), Refused("fast", "no such tier")).body["status"]
    assert status["modifyVolumeStatus"] == {"targetVolumeAttributesClassName": "fast", "status": "Infeasible"}
    assert [(each["type"], each["message"]) for each in status["conditions"]] == [("ModifyVolumeError", "no such tier")]


def test_the_end_of_a_change_is_told_to_the_claim() -> None:
    item = asking("fast", "fast", "InProgress")
    action = of_class(item, Changed("fast"))
    told = EventRecord(CLAIMS, item, "Normal", "VolumeModifySuccessful", "modified volume v to fast")
    assert action.events == (told,)


def test_a_class_that_is_not_wanted_any_more_is_told_to_the_claim() -> None:
    item = asking(None, "fast", "Infeasible")
    action = of_class(item, None)
    assert action.body["status"]["modifyVolumeStatus"] is None
    assert action.events == (
        EventRecord(CLAIMS, item, "Normal", "VolumeModifyCancelled", "no change to fast any more"),
    )


@pytest.mark.parametrize(
    ("item", "told"),
    [
        (asking(None), []),
        (
            asking("fast"),
            ["it asks for the attributes of VolumeAttributesClass fast: nothing has been done towards it yet"],
        ),
        (
            asking("fast", "fast", "Pending"),
            ["it asks for the attributes of VolumeAttributesClass fast: that class does not exist yet"],
        ),
        (
            asking(None, "fast", "InProgress"),
            ["it asks for the attributes of VolumeAttributesClass none: they are being changed"],
        ),
        (
            asking(None, capacity={"storage": "1Mi"}),
            ["it asks for 1Gi and has 1Mi: nothing has been done towards it yet"],
        ),
    ],
)
def test_how_far_changes_are_can_be_told(item: Claim, told: list[str]) -> None:
    assert list(stages(item, expands=True)) == told
    elsewhere = "changing its volume is another controller's work: this process does not run the expander"
    assert list(stages(item, expands=False)) == [*told, *([elsewhere] if told else [])]


# --- a call that takes long --------------------------------------------------------------------------------------


def record(state: dict[str, Any] | None, target: str = "2") -> Volume:
    """The volume with what an earlier call for this target returned; None: no record."""
    marks = (
        {MARK: write_intent(ChangeIntent(v=INTENT_VERSION, target=target, state=state))} if state is not None else {}
    )
    return its(annotations={"pv.kubernetes.io/provisioned-by": DRIVER, **marks})


def step(state: dict[str, Any], *, given: dict[str, Any] | None = None, due: float = 1005.0) -> Changing:
    """An answer for target 2; the clock shows 1000."""
    return Changing(state, due, given, target="2")


def next_step(answer: Changing, item: Volume) -> Any:
    return resume_change(answer, item, MARK, state_with(item, drivers=(OURS,)), doing="it is growing")


WAITS = Wait(reason="it is growing", seconds=5.0)


@pytest.mark.parametrize(
    ("answer", "item"),
    [
        (step({"job": 1}), record(None)),
        (step({}), record(None)),
        (step({"job": 2}, given={"job": 1}), record({"job": 1})),
        (step({}, given={"job": 1}), record({"job": 1})),
        (step({"job": 1}), record({"job": 9}, target="another size")),
    ],
)
def test_what_the_driver_said_is_kept_where_the_next_process_finds_it(answer: Changing, item: Volume) -> None:
    action = next_step(answer, item)
    assert isinstance(action, Patch)
    assert action.target is item
    assert action.body.keys() == {"metadata"}
    kept = read_intent(ChangeIntent, action.body["metadata"]["annotations"][MARK])
    assert kept == ChangeIntent(v=INTENT_VERSION, target="2", state=dict(answer.state))


@pytest.mark.parametrize(
    ("answer", "item"),
    [
        (step({}), record({})),
        (step({"job": 1}, given={"job": 1}), record({"job": 1})),
        (step({"job": 2}, given={"job": 1}), record({"job": 3})),
    ],
    ids=["nothing", "the same", "of a call before that of another process"],
)
def test_what_is_nothing_new_is_not_written(answer: Changing, item: Volume) -> None:
    assert next_step(answer, item) == WAITS


def test_the_hook_is_called_again_once_it_is_due() -> None:
    assert next_step(step({}, due=1000.5), record({})) == Wait(reason="it is growing", seconds=0.5)
    assert next_step(step({}, due=1000.0), record({})) is None


# --- conditions --------------------------------------------------------------------------------------------------

OTHER = {"type": "Example", "status": "True", "lastTransitionTime": BEFORE}


def shown(*conditions: dict[str, Any]) -> Any:
    return msgspec.structs.replace(ITEM, status=msgspec.structs.replace(ITEM.status, conditions=list(conditions)))


def test_a_condition_takes_the_place_of_its_family_and_leaves_others() -> None:
    failed = {"type": "ControllerResizeError", "status": "True", "lastTransitionTime": BEFORE}
    assert conditions_with(shown(OTHER, failed), RESIZE_CONDITIONS, RESIZING, NOW, message="soon") == [
        OTHER,
        {"type": RESIZING, "status": "True", "lastTransitionTime": "2026-01-01T12:00:00Z", "message": "soon"},
    ]


def test_a_condition_that_was_there_keeps_its_time() -> None:
    there = {"type": RESIZING, "status": "True", "lastTransitionTime": BEFORE}
    late = {"type": "Example", "status": "True", "lastTransitionTime": "2025-01-01T00:00:00Z"}
    assert conditions_with(shown(late, there), RESIZE_CONDITIONS, RESIZING, NOW) == [late, there]


def test_times_are_told_in_utc() -> None:
    east = NOW.astimezone(timezone(timedelta(hours=5)))
    [made] = conditions_with(ITEM, RESIZE_CONDITIONS, RESIZING, east)
    assert made["lastTransitionTime"] == "2026-01-01T12:00:00Z"


def test_without_its_family_nothing_or_the_others_are_left() -> None:
    there = {"type": RESIZING, "status": "True", "lastTransitionTime": BEFORE}
    assert conditions_without(shown(OTHER, there), RESIZE_CONDITIONS) == [OTHER]
    assert conditions_without(shown(there), RESIZE_CONDITIONS) is None
    assert conditions_without(ITEM, RESIZE_CONDITIONS) is None
