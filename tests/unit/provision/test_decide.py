"""The next step for a claim for which we make a volume, until it is bound."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from unit.binding.objects import claim, storage_class, volume
from unit.deciding import DRIVER, GIB, decide_claim, decided, disk, fast, read, state_with, told
from volplane.assets import Asset, VolumeSource
from volplane.controller.actions import Create, LiveReads, Patch, Read, Run, Settled
from volplane.drivers.driver import DriverView
from volplane.intents.record import settle
from volplane.kube.kinds import CLAIMS, VOLUMES
from volplane.kube.objects import Claim, KubeObject, Node, Volume
from volplane.provision.decide import awaits_recognition
from volplane.state.cluster_state import ClusterState
from volplane.state.progress import Discarded, Discarding, Full, LongCall, Made, Pending, Planned
from volplane.state.records import INTENT_VERSION, ClaimIntent

DYING = "2026-01-01T00:00:00Z"
INTENT = "volplane.dev/intent"
HELD = "volplane.dev/provisioning"
SELECTED = "volume.kubernetes.io/selected-node"
ASKED = {
    "volume.kubernetes.io/storage-provisioner": DRIVER,
    "volume.beta.kubernetes.io/storage-provisioner": DRIVER,
}
DONE = {"pv.kubernetes.io/bind-completed": "yes"}
MADE: dict[str, Any] = {"pv.kubernetes.io/provisioned-by": DRIVER, "volplane.dev/handle": "h"}


# --- ours --------------------------------------------------------------------------------------------------------


def declared(item: Claim, *others: KubeObject, **more: Any) -> tuple[dict[str, Any], ClaimIntent]:
    """The patch that declares an intent, and the intent."""
    made = state_with(item, *others, **more)
    step = decide_claim(item.key, made, LiveReads())
    assert isinstance(step, Patch), step
    intent = made.sealer.open(item.uid, step.body["metadata"]["annotations"][INTENT])
    assert intent is not None
    return dict(step.body["metadata"]), intent


def test_the_intent_comes_before_everything_in_one_write() -> None:
    metadata, intent = declared(fast(finalizers=["example.com/x"]), storage_class(), drivers=(disk(),))
    assert metadata["finalizers"] == ["example.com/x", HELD]
    assert {k: v for k, v in metadata["annotations"].items() if k != INTENT} == ASKED
    assert intent == ClaimIntent(v=INTENT_VERSION, driver=DRIVER, size=GIB)


def with_intent(made: ClusterState, item: Claim, **intent: Any) -> Claim:
    """The claim as it is once its intent is declared."""
    sealed = made.sealer.seal(item.uid, ClaimIntent(v=INTENT_VERSION, driver=DRIVER, **intent))
    body = msgspec.to_builtins(item)
    body["metadata"]["annotations"] = {**(item.metadata.annotations or {}), **ASKED, INTENT: sealed}
    body["metadata"]["finalizers"] = [HELD]
    body["metadata"]["resourceVersion"] = "2"
    return msgspec.convert(body, Claim)


def prepared(
    *others: KubeObject, item: Claim | None = None, driver: DriverView | None = None, **intent: Any
) -> ClusterState:
    made = state_with(storage_class(), *others, drivers=(driver or disk(),))
    made.claims.observe(with_intent(made, item or fast(), **intent))
    return made


CALL = {"key": "default/c", "uid": "uid-c", "driver": DRIVER, "asset": "pvc-uid-c"}
PROVISION = Run(verb="provision", group="provision fast", **CALL)
DISCARD = Run(verb="discard", group="discard", **CALL)


def next_step(made: ClusterState) -> Any:
    return decide_claim("default/c", made, LiveReads())


def test_with_its_intent_on_the_claim_the_hook_runs() -> None:
    assert next_step(prepared()) == PROVISION
    assert PROVISION.name == "provision-default/c[uid-c]"


PLANNING = disk(plans_first=True)
PLAN = ClaimIntent(v=INTENT_VERSION, driver=DRIVER, size=GIB)


def planned(item: Claim, *others: KubeObject) -> ClusterState:
    """The driver has said what it will do for a claim of 1 GiB, and nothing is written yet."""
    made = state_with(item, storage_class(), *others, drivers=(PLANNING,))
    made.progress.claims.track("uid-c").reached(Planned(msgspec.structs.replace(PLAN, state={"send": "it"})))
    return made


def test_a_driver_that_plans_is_asked_before_the_intent_and_one_write_keeps_both() -> None:
    made = state_with(fast(), storage_class(), drivers=(PLANNING,))
    assert next_step(made) == msgspec.structs.replace(PROVISION, planned=PLAN)
    step = next_step(planned(fast()))
    assert {k: v for k, v in step.body["metadata"]["annotations"].items() if k != INTENT} == ASKED
    assert step.body["metadata"]["finalizers"] == [HELD]
    written = json.loads(step.body["metadata"]["annotations"][INTENT])["intent"]
    assert (written["state"], written["size"]) == ({"send": "it"}, GIB)


def test_a_claim_that_changed_since_it_was_planned_is_planned_anew() -> None:
    larger = fast(resources={"requests": {"storage": "2Gi"}})
    assert next_step(planned(larger)) == msgspec.structs.replace(
        PROVISION, planned=msgspec.structs.replace(PLAN, size=2 * GIB)
    )


def test_what_was_planned_is_done_once_it_is_recorded() -> None:
    made = prepared(driver=PLANNING, size=GIB, state={"send": "it"})
    made.progress.claims.track("uid-c").reached(Planned(msgspec.structs.replace(PLAN, state={"send": "it"})))
    assert next_step(made) == PROVISION


def test_the_next_asset_of_a_driver_that_plans_is_recorded_before_it_is_planned() -> None:
    """What was proven absent is known to this process alone until then."""
    made = prepared(driver=PLANNING, size=GIB, state={"send": "it"})
    made.progress.claims.track("uid-c").reached(Discarded())
    step = next_step(made)
    intent = made.sealer.open("uid-c", step.body["metadata"]["annotations"][INTENT])
    assert intent == ClaimIntent(v=INTENT_VERSION, driver=DRIVER, generation=2, size=GIB)


CLAIMS_TO_BE_BOUND: dict[str, Any] = {"volumeName": "pvc-uid-c", "annotations": DONE, "status": {"phase": "Bound"}}


def test_a_claim_that_says_of_itself_that_it_is_bound_keeps_its_record_until_the_volume_is_seen() -> None:
    """A tenant can write that. If the record ended by it, nothing would count or delete the asset any more."""
    made = prepared(item=fast(**CLAIMS_TO_BE_BOUND))
    item = made.claims.get("default/c")
    assert item is not None
    assert settle(item, made) is None
    made.volumes.observe(volume("pvc-uid-c", claim=item, annotations=MADE))
    ended = settle(item, made)
    assert isinstance(ended, Patch)
    assert ended.body["metadata"]["annotations"] == {INTENT: None}


def test_the_asset_of_such_a_claim_is_deleted_with_it() -> None:
    dying = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    made = prepared(item=fast(**CLAIMS_TO_BE_BOUND, **dying))
    item = made.claims.get("default/c")
    assert item is not None
    assert settle(item, made) == DISCARD


@pytest.mark.parametrize("damage", ["intent", "finalizer"])
def test_a_damaged_declaration_is_repaired_before_the_hook_runs(damage: str) -> None:
    made = prepared()
    body = msgspec.to_builtins(made.claims.get("default/c"))
    if damage == "intent":
        body["metadata"]["annotations"][INTENT] = '{"intent":{"driver":"disk.example.com","v":1},"seal":"00"}'
    else:
        body["metadata"]["finalizers"] = []
    body["metadata"]["resourceVersion"] = "3"
    made.claims.observe(msgspec.convert(body, Claim))
    step = next_step(made)
    assert isinstance(step, Patch)
    assert step.why == "declare the intent to provision"


ASSET = Asset(handle="h", source=VolumeSource(kind="hostPath", fields={"path": "/a"}), capacity_bytes=2 * 2**30)


def test_the_asset_becomes_a_volume_that_is_reserved_for_the_claim() -> None:
    made = prepared()
    made.progress.claims.track("uid-c").step = Made(ASSET)
    step = next_step(made)
    assert isinstance(step, Create)
    meta, spec = step.body["metadata"], step.body["spec"]
    assert meta["name"] == "pvc-uid-c"
    assert meta["finalizers"] == ["volplane.dev/reclaim"]
    assert meta["annotations"] == {
        "pv.kubernetes.io/provisioned-by": DRIVER,
        "pv.kubernetes.io/bound-by-controller": "yes",
        "volplane.dev/driver": DRIVER,
        "volplane.dev/handle": "h",
        "volplane.dev/generation": "1",
        "volplane.dev/schema-version": "1",
    }
    assert (spec["claimRef"]["name"], spec["claimRef"]["uid"]) == ("c", "uid-c")
    assert spec["capacity"] == {"storage": "2Gi"}
    assert spec["hostPath"] == {"path": "/a"}
    assert step.failure_event is not None


@pytest.mark.parametrize(("handle", "noted"), [("/a", {}), ("h", {"volplane.dev/handle": "h"})])
def test_a_volume_of_an_in_tree_name_looks_as_stock_tools_know_it(handle: str, noted: dict[str, str]) -> None:
    name = "kubernetes.io/disk"
    made = state_with(storage_class(provisioner=name), drivers=(disk(name),))
    item = fast()
    sealed = made.sealer.seal(item.uid, ClaimIntent(v=INTENT_VERSION, driver=name))
    marks = {"volume.kubernetes.io/storage-provisioner": name, INTENT: sealed}
    made.claims.observe(fast(annotations=marks, finalizers=[HELD]))
    made.progress.claims.track("uid-c").step = Made(Asset(handle=handle, source=ASSET.source, capacity_bytes=2**30))
    step = next_step(made)
    assert step.body["metadata"]["finalizers"] == ["kubernetes.io/pv-controller"]
    assert step.body["metadata"]["annotations"] == {
        "pv.kubernetes.io/provisioned-by": name,
        "pv.kubernetes.io/bound-by-controller": "yes",
        **noted,
    }


def test_long_work_is_written_down_and_waited_for() -> None:
    made = prepared()
    made.progress.claims.track("uid-c").step = Pending({"job": 1}, due=1005.0)
    kept = next_step(made)
    assert isinstance(kept, Patch)
    assert json.loads(kept.body["metadata"]["annotations"][INTENT])["intent"]["state"] == {"job": 1}
    noted = prepared(state={"job": 1})
    noted.progress.claims.track("uid-c").step = Pending({"job": 1}, due=1005.0)
    assert next_step(noted).seconds == 5.0
    noted.progress.claims.track("uid-c").step = Pending({"job": 1}, due=999.0)
    assert next_step(noted) == PROVISION


def test_a_discard_that_was_begun_is_written_down_and_goes_on() -> None:
    """Though the class asks for the very driver that made the asset, no volume is made for it any more."""
    made = prepared()
    made.progress.claims.track("uid-c").reached(Discarding(ASSET, LongCall({"job": 1}, 1005.0)))
    kept = next_step(made)
    assert isinstance(kept, Patch)
    assert json.loads(kept.body["metadata"]["annotations"][INTENT])["intent"]["discard"] == {"job": 1}
    noted = prepared(discard={"job": 1})
    noted.progress.claims.track("uid-c").reached(Discarding(ASSET, LongCall({"job": 1}, 1005.0)))
    assert next_step(noted).seconds == 5.0
    noted.progress.claims.track("uid-c").reached(Discarding(ASSET, LongCall({"job": 1}, 999.0)))
    assert next_step(noted) == DISCARD
    assert next_step(prepared(discard={"job": 1})) == DISCARD, "another process goes on with it"


def test_a_state_that_another_process_wrote_meanwhile_stays_and_goes_into_the_next_call() -> None:
    """Found by the simulation: two leaders wrote their states over each other's, forty times a second."""
    made = prepared(state={"step": 2})
    made.progress.claims.track("uid-c").reached(Pending({"step": 1}, 1005.0), 1000.0)
    assert next_step(made).seconds == 5.0
    gone = prepared(discard={"step": 2})
    gone.progress.claims.track("uid-c").reached(Discarding(ASSET, LongCall({"step": 1}, 1005.0, {})))
    assert next_step(gone).seconds == 5.0


def test_after_a_discard_the_next_asset_is_another_one() -> None:
    made = prepared(discard={"job": 1}, generation=2)
    made.progress.claims.track("uid-c").reached(Discarded())
    step = next_step(made)
    intent = made.sealer.open("uid-c", step.body["metadata"]["annotations"][INTENT])
    assert intent == ClaimIntent(v=INTENT_VERSION, driver=DRIVER, generation=3, size=GIB)


def test_a_full_place_gives_the_claim_back_and_forgets_the_place() -> None:
    made = prepared(item=fast(annotations={SELECTED: "n"}), segment={"zone": "a"})
    made.progress.claims.track("uid-c").step = Full()
    step = next_step(made)
    annotations = step.body["metadata"]["annotations"]
    assert annotations[SELECTED] is None
    reopened = made.sealer.open("uid-c", annotations[INTENT])
    assert reopened is not None
    assert reopened.segment is None


def _node(name: str, **labels: str) -> Node:
    return msgspec.convert({"metadata": {"name": name, "uid": name, "resourceVersion": "1", "labels": labels}}, Node)


def test_the_selected_node_says_where_and_the_place_is_kept() -> None:
    zoned = disk(topology_keys=("zone",))
    item = fast(annotations={SELECTED: "n"})
    _, intent = declared(item, storage_class(), _node("n", zone="a"), drivers=(zoned,))
    assert intent.segment == {"zone": "a"}
    made = prepared(_node("n", zone="b"), item=item, driver=zoned, segment={"zone": "a"})
    assert next_step(made) == PROVISION, "an asset may be in zone a already"


def test_a_place_that_was_left_to_the_driver_stays_so_when_a_node_is_selected_later() -> None:
    """Found by the simulation: an asset was begun in one zone, and then another one in the zone of the node."""
    backend = disk(topology_keys=("zone",))
    metadata, intent = declared(fast(), storage_class(), drivers=(backend,))
    assert intent.segment == {}
    item = fast(annotations={**metadata["annotations"], SELECTED: "n"}, finalizers=metadata["finalizers"])
    made = state_with(item, storage_class(), _node("n", zone="b"), drivers=(backend,))
    assert next_step(made) == PROVISION


def test_a_selected_node_that_says_no_place_is_named() -> None:
    zoned = disk(topology_keys=("zone",))
    _, _, message = told(decided(fast(annotations={SELECTED: "n"}), storage_class(), _node("n"), drivers=(zoned,)))
    assert "lacks the label zone" in message


def test_a_selected_node_that_the_cache_does_not_hold_is_read_before_anything_follows_from_its_absence() -> None:
    zoned = disk(topology_keys=("zone",))
    action = decided(fast(annotations={SELECTED: "n"}), storage_class(), drivers=(zoned,))
    assert isinstance(action, Read)
    assert (action.kind.plural, action.key) == ("nodes", "n")


@pytest.mark.parametrize(
    ("fields", "info", "why"),
    [
        ({"volumeMode": "Block"}, {"volume_modes": frozenset({"Filesystem"})}, "volumeMode Block"),
        (
            {"accessModes": ["ReadWriteMany"]},
            {"access_modes": frozenset({"ReadWriteOnce"})},
            "access mode ReadWriteMany",
        ),
        ({"selector": {"matchLabels": {"a": "b"}}}, {}, "spec.selector"),
    ],
)
def test_what_the_driver_cannot_do_is_said_before_anything_is_begun(fields: Any, info: Any, why: str) -> None:
    named = decided(fast(**fields), storage_class(), drivers=(disk(**info),))
    assert isinstance(named, Patch)
    assert named.body == {"metadata": {"annotations": ASKED}}
    _, _, message = told(decided(fast(annotations=ASKED, **fields), storage_class(), drivers=(disk(**info),)))
    assert why in message


# --- the end of an intent ----------------------------------------------------------------------------------------


def test_the_bind_of_its_own_volume_ends_the_intent_with_the_same_write() -> None:
    made = prepared(
        volume("pvc-uid-c", annotations=MADE, claim=claim(), status={"phase": "Bound"}, storageClassName="fast")
    )
    step = next_step(made)
    assert step.body["spec"] == {"volumeName": "pvc-uid-c"}
    assert step.body["metadata"]["finalizers"] is None
    assert step.body["metadata"]["annotations"][INTENT] is None


def test_a_volume_of_that_name_that_belongs_to_somebody_else_is_in_the_way() -> None:
    """Item 21.10."""
    _, _, message = told(next_step(prepared(volume("pvc-uid-c", reserved="other"))))
    assert message == 'volume "pvc-uid-c" exists but does not belong to this claim; remove it or its claimRef'


def test_a_dying_claim_never_gets_a_volume_its_asset_goes_first() -> None:
    made = prepared(item=fast(deletionTimestamp=DYING))
    made.progress.claims.track("uid-c").step = Made(ASSET)
    run = next_step(made)
    assert run == DISCARD
    made.progress.claims.track("uid-c").reached(Discarded())
    freed = next_step(made)
    assert freed.body["metadata"] == {"annotations": {INTENT: None}, "finalizers": None}


def test_a_damaged_record_of_a_dying_claim_is_restored_before_its_asset_goes() -> None:
    """Found by the simulation: after a crash nobody knew any more in which place the asset was."""
    made = state_with(storage_class(), drivers=(disk(),))
    item = with_intent(made, fast(deletionTimestamp=DYING))
    made.progress.claims.track(item.uid).intent = ClaimIntent(
        v=INTENT_VERSION, driver=DRIVER, segment={"zone": "a"}, size=GIB
    )
    item.metadata.annotations = {**(item.metadata.annotations or {}), INTENT: "not an intent"}
    made.claims.observe(item)
    step = next_step(made)
    assert isinstance(step, Patch)
    assert list(step.body["metadata"]) == ["annotations"]
    restored = made.sealer.open(item.uid, step.body["metadata"]["annotations"][INTENT])
    assert restored == made.progress.claims.get(item.uid).intent


def test_a_record_that_nobody_knows_is_presumed_once_and_written_before_its_asset_is_looked_for() -> None:
    """Found by the simulation: the place was presumed anew at each look, and a node was selected in between."""
    made = state_with(storage_class(), _node("n", zone="b"), drivers=(disk(topology_keys=("zone",)),))
    item = with_intent(made, fast(deletionTimestamp=DYING))
    item.metadata.annotations = {SELECTED: "n"}
    made.claims.observe(item)
    step = next_step(made)
    assert isinstance(step, Patch)
    presumed = made.sealer.open(item.uid, step.body["metadata"]["annotations"][INTENT])
    assert presumed == ClaimIntent(v=INTENT_VERSION, driver=DRIVER, segment={"zone": "b"}, size=GIB)


def test_a_dying_claim_whose_volume_exists_is_let_go_and_the_volume_is_released() -> None:
    made = prepared(volume("pvc-uid-c", annotations=MADE, claim=claim()), item=fast(deletionTimestamp=DYING))
    assert next_step(made).body["metadata"]["finalizers"] is None


def test_a_dying_claim_without_anything_in_the_making_needs_nothing() -> None:
    assert decided(fast(deletionTimestamp=DYING), storage_class(), drivers=(disk(),)) == Settled()


def test_a_claim_bound_to_another_volume_has_its_asset_deleted() -> None:
    static = volume("static", claim=claim(), status={"phase": "Bound"})
    bound = {"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}}
    made = prepared(static, item=fast(volumeName="static", annotations=DONE, status=bound))
    assert next_step(made) == DISCARD


# --- bound -------------------------------------------------------------------------------------------------------


def test_a_claim_is_not_declared_lost_before_a_live_read_says_so() -> None:
    """A cache never proves absence."""
    item = claim(volumeName="v", annotations=DONE)
    assert decided(item) == Read(VOLUMES, "v", "is its volume really lost?")
    step = decided(item, reads=read(VOLUMES, "v"))
    assert step.body["status"]["phase"] == "Lost"


def test_a_bound_pair_at_rest_needs_nothing() -> None:
    status = {"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}}
    item = claim(volumeName="v", annotations=DONE, status=status)
    assert decided(item, volume(claim=claim(), status={"phase": "Bound"})) == Settled()


def test_a_claim_of_a_migrated_plugin_is_marked_first() -> None:
    step = decided(fast(annotations={"volume.kubernetes.io/storage-provisioner": "kubernetes.io/gce-pd"}))
    assert step.kind is CLAIMS
    assert step.body == {"metadata": {"annotations": {"pv.kubernetes.io/migrated-to": "pd.csi.storage.gke.io"}}}


# --- a webhook takes our annotations off the new volume -----------------------------------------------------------

STATED = {**MADE, "volplane.dev/driver": DRIVER, "volplane.dev/generation": "1", "volplane.dev/schema-version": "1"}


def after_create(
    annotations: dict[str, str] | None,
    *,
    reserved: str = "c",
    asset: Asset | None = ASSET,
    source: dict[str, str] | None = None,
    **more: Any,
) -> tuple[ClusterState, Volume]:
    """The claim's volume exists with these annotations. asset: what this process has just made, if anything. source: a
    `hostPath`; None = that of the asset.
    """
    more = {"drivers": (disk(),), "binder": True, **more}
    item = volume(
        "pvc-uid-c",
        annotations=annotations,
        claim=claim(reserved),
        storageClassName="fast",
        hostPath=source or {"path": "/a"},
    )
    made = state_with(storage_class(), item, **more)
    made.claims.observe(with_intent(made, fast()))
    if asset is not None:
        made.progress.claims.track("uid-c").reached(Made(asset), 1000.0)
    return made, item


@pytest.mark.parametrize("binder", [True, False], ids=["as the binder", "beside one"])
@pytest.mark.parametrize(
    ("left", "missing"),
    [
        (None, STATED),
        (
            {**MADE, "volplane.dev/generation": "7"},
            {k: STATED[k] for k in STATED.keys() - MADE.keys() - {"volplane.dev/generation"}},
        ),
    ],
    ids=["all", "some"],
)
def test_annotations_that_the_new_volume_lacks_are_put_on_it_before_anything_else(
    left: dict[str, str] | None, missing: dict[str, str], *, binder: bool
) -> None:
    made, item = after_create(left, binder=binder)
    assert decide_claim("default/c", made, LiveReads()) == Patch(
        kind=VOLUMES,
        target=item,
        body={"metadata": {"annotations": missing}},
        why="the volume lacks annotations that it was made with",
    )


def about_volumes(made: ClusterState) -> bool:
    """Whether annotations are put on a volume."""
    step = decide_claim("default/c", made, LiveReads())
    return isinstance(step, Patch) and step.kind is VOLUMES and "metadata" in step.body


@pytest.mark.parametrize(
    ("annotations", "more"),
    [
        (STATED, {}),
        (None, {"reserved": "other"}),
        (None, {"asset": None}),
        (None, {"drivers": ()}),
        (None, {"source": {"path": "/b"}}),
    ],
    ids=[
        "it has them",
        "it is another's",
        "nobody knows what was made",
        "the driver is gone",
        "it stands for something else",
    ],
)
def test_nothing_is_put_on_a_volume_where(annotations: dict[str, str] | None, more: dict[str, Any]) -> None:
    made, _ = after_create(annotations, binder=False, **more)
    assert not about_volumes(made)


def test_nothing_is_put_on_a_volume_once_the_record_of_its_making_is_ended() -> None:
    """Whoever takes annotations off later may want that."""
    made, _ = after_create(None, binder=False)
    made.progress.claims.track("uid-c").intent_seen(ClaimIntent(v=INTENT_VERSION, driver=DRIVER))
    assert about_volumes(made)
    made.claims.observe(fast(volumeName="pvc-uid-c", annotations=DONE, resourceVersion="3"))
    assert not about_volumes(made)


@pytest.mark.parametrize("kept", ["class", "volume"])
def test_nothing_is_put_on_a_volume_whose_class_or_which_itself_is_gone(kept: str) -> None:
    made, item = after_create(None, binder=False)
    if kept == "class":
        made.volumes.observe_deleted(item.key, item.uid)
    else:
        made.classes.observe_deleted("fast", "uid-fast")
    assert not about_volumes(made)


@pytest.mark.parametrize("binder", [True, False], ids=["as the binder", "beside one"])
@pytest.mark.parametrize("annotations", [None, {"pv.kubernetes.io/provisioned-by": DRIVER}], ids=["all", "some"])
@pytest.mark.parametrize(
    "state", [{}, {"volumeName": "pvc-uid-c"}, {"deletionTimestamp": DYING}], ids=["waiting", "bound", "dying"]
)
def test_the_driver_is_asked_for_what_a_volume_without_annotations_stands_for_if_that_is_forgotten(
    annotations: dict[str, str] | None, state: dict[str, Any], *, binder: bool
) -> None:
    made, _ = after_create(annotations, asset=None, binder=binder)
    item = with_intent(made, fast(**state))
    item.metadata.resource_version = "3"
    made.claims.observe(item)
    assert decide_claim("default/c", made, LiveReads()) == PROVISION


@pytest.mark.parametrize(
    ("annotations", "more"),
    [
        (MADE, {}),
        ({"pv.kubernetes.io/provisioned-by": "kubernetes.io/aws-ebs"}, {}),
        (None, {"reserved": "other"}),
        (None, {"drivers": ()}),
    ],
    ids=["it shows that", "it is of an in-tree plugin", "it is another's", "the driver is gone"],
)
def test_the_driver_is_not_asked_for_what_a_volume_stands_for_where(
    annotations: dict[str, str] | None, more: dict[str, Any]
) -> None:
    made, _ = after_create(annotations, asset=None, binder=False, **more)
    assert not isinstance(decide_claim("default/c", made, LiveReads()), Run)


def test_the_driver_is_asked_once_for_what_a_volume_stands_for() -> None:
    made, _ = after_create(None, asset=None, binder=False)
    made.progress.claims.track("uid-c").reached(Discarded())
    step = decide_claim("default/c", made, LiveReads())
    assert isinstance(step, Patch)
    assert step.body["metadata"]["finalizers"] is None, "nothing is there: nothing is left to be remembered"


def test_a_record_without_its_finalizer_is_no_reason_to_ask_what_a_volume_stands_for() -> None:
    """A tenant can write both; no operation would work on it."""
    made, _ = after_create(None, asset=None, binder=False)
    item = with_intent(made, fast(volumeName="pvc-uid-c"))
    item.metadata.resource_version, item.metadata.finalizers = "3", None
    made.claims.observe(item)
    assert not isinstance(decide_claim("default/c", made, LiveReads()), Run)


def test_only_a_claim_with_its_own_sealed_record_asks_what_its_own_volume_stands_for() -> None:
    made, item = after_create(None, asset=None, binder=False)
    worked_on = with_intent(made, fast(volumeName="pvc-uid-c"))
    assert awaits_recognition(worked_on, item, made)
    unsealed = fast(volumeName="pvc-uid-c", annotations={INTENT: "{}"}, finalizers=[HELD])
    assert not awaits_recognition(unsealed, item, made)
    of_another = volume("pvc-uid-c", claim=claim("other"), storageClassName="fast", hostPath={"path": "/a"})
    assert not awaits_recognition(worked_on, of_another, made)


@pytest.mark.parametrize(("name", "asks"), [("n", True), ("m", False)])
def test_the_process_of_a_node_asks_what_a_volume_stands_for_that_is_made_there(name: str, *, asks: bool) -> None:
    made, item = after_create(None, asset=None, binder=False, node_name=name)
    for each in "mn":
        made.nodes.observe(_node(each))
    worked_on = with_intent(made, fast(volumeName="pvc-uid-c", annotations={SELECTED: "n"}))
    assert awaits_recognition(worked_on, item, made) is asks
