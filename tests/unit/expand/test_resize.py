"""The size that the asset of a claim shall have, and the next step towards it."""

from __future__ import annotations

from typing import Any

import pytest

from unit.binding.objects import claim, volume
from unit.deciding import DRIVER, HOOKS, decide_resize, disk, state_with
from volplane.controller.actions import Patch, Run, Settled, Wait, warning
from volplane.expand.resize import expansion_target, growth, wants_more
from volplane.kube.kinds import CLAIMS
from volplane.kube.objects import Claim, Volume
from volplane.state.progress import Changed, Refused, Untouched

GIB = 2**30
GROWING = disk(hooks=HOOKS | {"expand"})
TRYING = "ControllerResizeInProgress"


def bound(asked: str, has: str = "1Gi", *, allocated: str = "", state: str = "", **fields: Any) -> Claim:
    """A bound claim. allocated, state: what its status says is being tried."""
    status: dict[str, Any] = {"phase": "Bound", "capacity": {"storage": has}}
    if allocated:
        status["allocatedResources"] = {"storage": allocated}
    if state:
        status["allocatedResourceStatuses"] = {"storage": state}
    return claim(size=asked, volumeName="v", status=status, **fields)


def its_volume(item: Claim, size: str) -> Volume:
    made_by = {"pv.kubernetes.io/provisioned-by": DRIVER}
    return volume(claim=item, size=size, annotations=made_by, status={"phase": "Bound"})


@pytest.mark.parametrize(
    ("asked", "volume_has", "allocated", "state", "target"),
    [
        ("2Gi", "1Gi", "", "", 2),
        ("2Gi", "1Gi", "2Gi", TRYING, 2),
        ("3Gi", "1Gi", "2Gi", TRYING, 2),
        ("2Gi", "1Gi", "9Gi", "ControllerResizeInfeasible", 2),
        ("3Gi", "2Gi", "2Gi", "", 3),
        ("2Gi", "2Gi", "2Gi", TRYING, 2),
        ("2Gi", "3Gi", "3Gi", TRYING, 3),
        ("2Gi", "2Gi", "2Gi", "NodeResizePending", None),
        ("2Gi", "2Gi", "2Gi", "NodeResizeInProgress", None),
        ("3Gi", "2Gi", "2Gi", "NodeResizePending", None),
        ("3Gi", "1Gi", "2Gi", "NodeResizePending", 2),
        ("2Gi", "2Gi", "2Gi", "NodeResizeInfeasible", None),
        ("3Gi", "2Gi", "2Gi", "NodeResizeInfeasible", 3),
        ("2Gi", "2Gi", "", "", 2),
        ("3Gi", "4Gi", "2Gi", "", 3),
    ],
)
def test_an_attempt_that_is_recorded_goes_on_unless_it_was_refused(
    asked: str, volume_has: str, allocated: str, state: str, target: int | None
) -> None:
    item = bound(asked, allocated=allocated, state=state)
    expected = None if target is None else target * GIB
    assert expansion_target(item, its_volume(item, volume_has)) == expected


@pytest.mark.parametrize(
    ("item", "wanted"),
    [
        (bound("2Gi"), True),
        (bound("1Gi"), False),
        (bound("1024Mi"), False),
        (claim(size="2Gi"), False),
        (bound("2Gi", deletionTimestamp="2026-01-01T00:00:00Z"), False),
    ],
)
def test_only_bound_living_claims_that_ask_for_more_grow(item: Claim, wanted: bool) -> None:
    assert wants_more(item) is wanted


def decided(item: Claim, held: Volume, step: Any = None, driver: Any = GROWING) -> Any:
    state = state_with(item, held, drivers=(driver,))
    if step is not None:
        state.progress.changes.track((held.uid, "expand")).step = step
    return decide_resize(item.key, state)


def test_what_is_tried_is_declared_before_the_hook_is_called() -> None:
    item = bound("2Gi")
    action = decided(item, its_volume(item, "1Gi"))
    assert isinstance(action, Patch)
    assert action.subresource == "status"
    status = action.body["status"]
    assert status["allocatedResources"] == {"storage": "2Gi"}
    assert status["allocatedResourceStatuses"] == {"storage": TRYING}
    assert [each["type"] for each in status["conditions"]] == ["Resizing"]
    assert [(event.reason, event.message) for event in action.events] == [("Resizing", "resizing volume v to 2Gi")]
    assert action.body.keys() == {"status"}, "kubelets were told nothing that is to be undone"


def test_the_hook_is_called_for_the_size_that_is_declared() -> None:
    item = bound("2Gi", allocated="2Gi", state=TRYING)
    run = Run(verb="expand", key=item.key, uid=item.uid, driver=DRIVER, asset="v", group="expand ")
    assert decided(item, its_volume(item, "1Gi")) == run


def test_the_volume_shows_the_size_before_the_claim_does() -> None:
    item = bound("2Gi", allocated="2Gi", state=TRYING)
    done = Changed(str(2 * GIB), 2 * GIB)
    action = decided(item, its_volume(item, "1Gi"), done)
    assert isinstance(action, Patch)
    assert action.body == {"spec": {"capacity": {"storage": "2Gi"}}}
    then = decided(item, its_volume(item, "2Gi"), done)
    assert isinstance(then, Patch)
    assert then.body["status"]["capacity"] == {"storage": "2Gi"}


def with_size_before(item: Claim, size: str, maker: str = DRIVER) -> Volume:
    noted = {"pv.kubernetes.io/provisioned-by": maker, "volume.alpha.kubernetes.io/pre-resize-capacity": "1Gi"}
    return volume(claim=item, size=size, annotations=noted, status={"phase": "Bound"})


def test_the_size_before_is_removed_once_the_claim_shows_that_of_its_volume() -> None:
    item = bound("2Gi", "2Gi")
    action = decided(item, with_size_before(item, "2Gi"))
    assert isinstance(action, Patch)
    annotations = {"volume.alpha.kubernetes.io/pre-resize-capacity": None}
    assert action.body == {"metadata": {"annotations": annotations}}
    given_up = bound("2Gi", "2Gi", allocated="9Gi", state="ControllerResizeInfeasible")
    assert decided(given_up, with_size_before(given_up, "2Gi")).body == action.body, "though a larger one was refused"
    less = bound("1Gi", "1Gi")
    assert isinstance(decided(less, with_size_before(less, "2Gi")), Settled), "its file system has yet to grow"
    foreign = with_size_before(item, "2Gi", maker="other.example.com")
    assert isinstance(decided(item, foreign), Settled), "it is another resizer's"


def test_conditions_of_others_are_kept() -> None:
    item = bound("2Gi")
    item.status.conditions = [{"type": "ModifyingVolume", "status": "True", "heartbeat": 1}]
    action = decided(item, its_volume(item, "1Gi"))
    assert action.body["status"]["conditions"][0] == {"type": "ModifyingVolume", "status": "True", "heartbeat": 1}
    assert action.body["status"]["conditions"][1]["type"] == "Resizing"


def test_a_refused_size_is_said_once_and_tried_on() -> None:
    refused = Refused(str(9 * GIB), "at most 4Gi")
    item = bound("9Gi", allocated="9Gi", state=TRYING)
    action = decided(item, its_volume(item, "1Gi"), refused)
    assert action.body["status"]["allocatedResourceStatuses"] == {"storage": "ControllerResizeInfeasible"}
    said = bound("9Gi", allocated="9Gi", state="ControllerResizeInfeasible")
    assert isinstance(decided(said, its_volume(said, "1Gi"), refused), Run)


def test_a_size_for_which_nothing_was_done_can_be_lowered_before_it_succeeds() -> None:
    item = bound("5Gi", allocated="9Gi", state=TRYING)
    assert decided(item, its_volume(item, "1Gi")).asset == "v", "it may have been done: it goes on"
    action = decided(item, its_volume(item, "1Gi"), Untouched(str(9 * GIB)))
    assert action.body["status"]["allocatedResources"] == {"storage": "5Gi"}
    assert action.body["status"]["allocatedResourceStatuses"] == {"storage": TRYING}
    of_before = decided(item, its_volume(item, "1Gi"), Untouched(str(7 * GIB)))
    assert isinstance(of_before, Run), "that was about another size"


def given_up(at: str) -> Claim:
    """A claim whose file system a kubelet cannot grow."""
    item = bound("2Gi", allocated="2Gi", state="NodeResizeInfeasible")
    item.status.conditions = [{"type": "NodeResizeError", "status": "True", "lastTransitionTime": at}]
    return item


def test_a_kubelet_that_gave_up_growing_is_asked_again_after_a_while() -> None:
    soon = given_up("2025-12-31T23:56:00Z")
    waits = decided(soon, its_volume(soon, "2Gi"))
    assert isinstance(waits, Wait)
    assert waits.seconds == 60.0
    late = given_up("2025-12-31T23:55:00Z")
    action = decided(late, its_volume(late, "2Gi"))
    assert action.body["status"]["allocatedResourceStatuses"] == {"storage": "NodeResizePending"}
    assert [each["type"] for each in action.body["status"]["conditions"]] == ["FileSystemResizePending"]


def test_a_refusal_that_a_node_dates_ahead_of_our_clock_delays_no_longer_than_any_other() -> None:
    ahead = given_up("2031-01-01T00:00:00Z")
    [refusal] = ahead.status.conditions or ()
    other = {"type": "Other", "status": "True", "lastTransitionTime": "2031-01-01T00:00:00Z"}
    ahead.status.conditions = [refusal | {"message": "no room"}, other]
    action = decided(ahead, its_volume(ahead, "2Gi"))
    assert action.subresource == "status"
    now = "2026-01-01T00:00:00Z"
    dated = [refusal | {"message": "no room", "lastTransitionTime": now}, other]
    assert action.body == {"status": {"conditions": dated}}
    ahead.status.conditions = dated
    waits = decided(ahead, its_volume(ahead, "2Gi"))
    assert isinstance(waits, Wait)
    assert waits.seconds == 300.0


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(None, id="a volume that is not in the cache"),
        pytest.param(volume(claim=claim("d"), status={"phase": "Bound"}), id="a volume of another claim"),
    ],
)
def test_nothing_grows_but_the_claims_own_volume(other: Volume | None) -> None:
    item = bound("2Gi")
    state = state_with(item, *([other] if other else []), drivers=(GROWING,))
    assert decide_resize(item.key, state) == Settled()


def test_a_claim_that_is_gone_asks_for_nothing() -> None:
    assert decide_resize("default/gone", state_with(drivers=(GROWING,))) == Settled()


def test_the_process_of_its_node_says_what_becomes_of_a_volume_there() -> None:
    item = bound("2Gi")
    local = volume(
        claim=item,
        size="1Gi",
        annotations={"pv.kubernetes.io/provisioned-by": "local.example.com"},
        status={"phase": "Bound"},
    )
    assert decide_resize(item.key, state_with(item, local, distributed=(disk("local.example.com"),))) == Settled()


CONTROLLER, NODE = "ControllerResizeError", "NodeResizeError"


@pytest.mark.parametrize(
    ("item", "condition", "stage"),
    [
        (bound("2Gi"), "", "nothing has been done towards it yet"),
        (bound("2Gi", allocated="2Gi", state=TRYING), "", "the asset is being grown to 2Gi"),
        (bound("2Gi", allocated="2Gi", state=TRYING), CONTROLLER, "the asset is being grown to 2Gi (no room)"),
        (
            bound("2Gi", allocated="9Gi", state="ControllerResizeInfeasible"),
            CONTROLLER,
            "the backend refuses 9Gi (no room); ask for less, yet more than it has",
        ),
        (
            bound("2Gi", allocated="2Gi", state="NodeResizePending"),
            NODE,
            "the asset has 2Gi; the node grows the file system when a pod uses the volume there",
        ),
        (
            bound("2Gi", allocated="2Gi", state="NodeResizeInProgress"),
            NODE,
            "the asset has 2Gi; the node is growing the file system (no room)",
        ),
        (
            bound("2Gi", state="NodeResizeInfeasible"),
            NODE,
            "the asset has the new size, but the node cannot grow the file system (no room)",
        ),
    ],
)
def test_how_far_a_growth_is_can_be_told(item: Claim, condition: str, stage: str) -> None:
    item.status.conditions = [{"type": condition, "status": "True", "message": "no room"}] if condition else None
    assert growth(item) == f"it asks for 2Gi and has 1Gi: {stage}"


def test_of_a_claim_that_has_what_it_asks_for_nothing_is_told() -> None:
    assert growth(bound("1Gi", allocated="2Gi", state="ControllerResizeInfeasible")) == ""


def test_while_its_driver_starts_nothing_is_said_to_have_failed() -> None:
    item = bound("2Gi")
    action = decide_resize(item.key, state_with(item, its_volume(item, "1Gi"), broken={DRIVER: "is starting"}))
    assert action == Wait(reason=f'driver "{DRIVER}" is starting')


def test_a_driver_that_cannot_work_now_is_waited_for() -> None:
    item = bound("2Gi")
    state = state_with(item, its_volume(item, "1Gi"), broken={DRIVER: "no root"})
    action = decide_resize(item.key, state)
    assert isinstance(action, Wait)
    assert action.reason == f'it cannot grow: driver "{DRIVER}" cannot work: no root'
    assert [(event.type, event.reason, event.message) for event in action.events] == [
        ("Warning", "VolumeResizeFailed", action.reason)
    ]


def test_a_volume_of_no_driver_here_is_said_to_wait_for_another_controller() -> None:
    """As by the expand controller of kube-controller-manager; beside that one it is its to say."""
    item = bound("2Gi")
    foreign = volume(
        claim=item,
        size="1Gi",
        annotations={"pv.kubernetes.io/provisioned-by": "other.example.com"},
        status={"phase": "Bound"},
    )
    action = decide_resize(item.key, state_with(item, foreign, drivers=(GROWING,)))
    assert isinstance(action, Wait)
    assert action.events == (warning(CLAIMS, item, "ExternalExpanding", action.reason),)
    beside = state_with(item, foreign, drivers=(GROWING,), binder=False)
    assert decide_resize(item.key, beside) == Settled()
