"""What a volume is made of: the checks of the external provisioner in its order, the place, and what holds the source.

The rows are those of its `TestProvisionFromSnapshot` and `TestProvisionFromPVC`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import pytest

from unit.binding.objects import claim, storage_class, volume
from unit.deciding import DRIVER, HOOKS, decide_claim, disk, fast, put, state_with, told
from volplane.assets import Asset, VolumeSource
from volplane.controller.actions import Action, Create, LiveReads, Patch, Read, Run, Wait
from volplane.kube import names
from volplane.kube.kinds import CLAIMS, VOLUMES
from volplane.kube.objects import Claim, KubeObject, Node, StorageClass
from volplane.snapshots.objects import VOLUME_SNAPSHOT_CONTENTS, VOLUME_SNAPSHOTS, VolumeSnapshot, VolumeSnapshotContent
from volplane.snapshots.source import swept, unbound_of
from volplane.state.progress import Discarded, FoundSource, Full, Made, Pending
from volplane.state.records import INTENT_VERSION, ClaimIntent, SourceRecord

Json = dict[str, Any]
INTENT: Final = "volplane.dev/intent"
HELD: Final = "volplane.dev/provisioning"
SELECTED: Final = "volume.kubernetes.io/selected-node"
PROTECTION: Final = "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection"
CLONING: Final = "provisioner.storage.kubernetes.io/cloning-protection"
ASKED: Final = {
    "volume.kubernetes.io/storage-provisioner": DRIVER,
    "volume.beta.kubernetes.io/storage-provisioner": DRIVER,
}
SNAPSHOT: Final = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"}
PVC: Final = {"apiGroup": None, "kind": "PersistentVolumeClaim", "name": "origin"}
CUTS: Final = HOOKS | {"create_snapshot", "find_snapshot", "delete_snapshot", "find"}
ASSET: Final = Asset(handle="h", source=VolumeSource(kind="hostPath", fields={"path": "/a"}), capacity_bytes=2**30)
GI: Final = 2**30
OF_SNAPSHOT: Final = "error getting handle for DataSource Type VolumeSnapshot by Name s: "
OF_CLAIM: Final = "error getting handle for DataSource Type PersistentVolumeClaim by Name origin: "


def snapshot(**status: Any) -> VolumeSnapshot:
    """A VolumeSnapshot that is ready. status: of it, or `metadata`."""
    metadata = {
        "name": "s",
        "namespace": "default",
        "uid": "uid-s",
        "resourceVersion": "7",
        **status.pop("metadata", {}),
    }
    ready = {"boundVolumeSnapshotContentName": "content", "readyToUse": True, "restoreSize": "1Gi"}
    body = {"metadata": metadata, "status": {k: v for k, v in {**ready, **status}.items() if v is not None}}
    return msgspec.convert(body, VolumeSnapshot)


def content(
    *, annotations: Mapping[str, str] | None = None, handle: str = "snap-1", **spec: Any
) -> VolumeSnapshotContent:
    reference = {"namespace": "default", "name": "s", "uid": "uid-s", **spec.pop("ref", {})}
    return msgspec.convert(
        {
            "metadata": {"name": "content", "uid": "uid-content", "annotations": dict(annotations or {})},
            "spec": {"volumeSnapshotRef": reference, "driver": DRIVER, "deletionPolicy": "Delete", **spec},
            "status": {"snapshotHandle": handle, "readyToUse": True},
        },
        VolumeSnapshotContent,
    )


def restored(**fields: Any) -> Claim:
    return fast(annotations={**ASKED, **fields.pop("annotations", {})}, dataSource=SNAPSHOT, **fields)


def copied(**fields: Any) -> Claim:
    return fast(annotations={**ASKED, **fields.pop("annotations", {})}, dataSourceRef=PVC, **fields)


def origin(**fields: Any) -> Claim:
    return claim("origin", **{"storageClassName": "slow", "volumeName": "v", "status": {"phase": "Bound"}, **fields})


def of_origin(**fields: Any) -> KubeObject:
    made = {names.PROVISIONED_BY: DRIVER, names.HANDLE: "handle-v"}
    return volume("v", **{"claim": origin(), "annotations": made, "status": {"phase": "Bound"}, **fields})


def world(item: Claim, *others: KubeObject, of_class: StorageClass | None = None, **driver: Any) -> Any:
    view = disk(**{"hooks": CUTS, "clones": "in place", **driver})
    return state_with(item, of_class or storage_class(), *others, drivers=(view,))


def live(*objects: KubeObject | None) -> Json:
    """What the server has, by plural and key."""
    kinds = (VOLUME_SNAPSHOTS, VOLUME_SNAPSHOT_CONTENTS, CLAIMS, VOLUMES)
    return {(kind.plural, each.key): each for each in objects if each for kind in kinds if type(each) is kind.struct}


def decide(state: Any, server: Mapping[tuple[str, str], KubeObject], *, served: bool = True) -> Action:
    """The action that follows the live reads of a pass."""
    reads = LiveReads()
    for _ in range(10):
        action = decide_claim("default/c", state, reads)
        if not isinstance(action, Read):
            return action
        if action.kind.optional and not served:
            reads.unserved.add(action.kind.plural)
        else:
            reads.put(action.kind, action.key, server.get((action.kind.plural, action.key)))
    raise AssertionError("reads without end")


def intent_in(state: Any, action: Action) -> ClaimIntent:
    assert isinstance(action, Patch), action
    found = state.sealer.open("uid-c", action.body["metadata"]["annotations"][INTENT])
    assert found is not None
    return found


FIND: Final = Run(
    verb="find-source", key="default/c", uid="uid-c", driver=DRIVER, asset="pvc-uid-c", group="provision fast"
)
PROVISION: Final = Run(
    verb="provision", key="default/c", uid="uid-c", driver=DRIVER, asset="pvc-uid-c", group="provision fast"
)


def refused(item: Claim, *server: KubeObject | None, driver: Mapping[str, Any] | None = None) -> str:
    """Why the claim is not made, in the words of its event, without the common beginning."""
    action = decide(world(item, **(driver or {})), live(*server))
    kind, reason, message = told(action)
    assert (kind, reason) == ("Warning", "ProvisioningFailed")
    message = message.removeprefix('Failed to provision volume with StorageClass "fast": ')
    return message.removeprefix(OF_SNAPSHOT).removeprefix(OF_CLAIM)


# --- a VolumeSnapshot ---------------------------------------------------------------------------------------------


def test_a_ready_snapshot_is_looked_at_before_anything_is_written() -> None:
    assert decide(world(restored()), live(snapshot(), content())) == FIND


def test_then_its_handle_is_written_down_before_it_is_held_and_used() -> None:
    item = restored()
    state = world(item)
    state.progress.claims.track("uid-c").source = FoundSource("snap-1", ())
    server = live(snapshot(), content())
    intent = intent_in(state, decide(state, server))
    assert intent == ClaimIntent(v=INTENT_VERSION, driver=DRIVER, source=SourceRecord(snapshot="snap-1"), size=2**30)
    begin(state, item, source=intent.source)
    held = decide(state, server)
    assert isinstance(held, Patch)
    assert (held.kind, held.target, held.body) == (
        VOLUME_SNAPSHOTS,
        snapshot(),
        {"metadata": {"finalizers": [PROTECTION]}},
    )
    assert decide(state, live(snapshot(metadata={"finalizers": ["x", PROTECTION]}), content())) == PROVISION


def begin(cluster: Any, item: Claim, **intent: Any) -> Claim:
    """Put the declared intent on the claim."""
    sealed = cluster.sealer.seal("uid-c", ClaimIntent(**{"v": INTENT_VERSION, "driver": DRIVER, **intent}))
    body = msgspec.to_builtins(item)
    body["metadata"]["annotations"] = {**(item.metadata.annotations or {}), INTENT: sealed}
    body["metadata"]["finalizers"] = [HELD, *(item.metadata.finalizers or ())]
    body["metadata"]["resourceVersion"] = str(item.version + 1)
    begun: Claim = msgspec.convert(body, Claim)
    cluster.claims.observe(begun)
    return begun


def test_a_record_without_its_source_calls_no_hook() -> None:
    """Nothing is made empty that has a source."""
    item = restored()
    state = world(item)
    begin(state, item)
    assert decide(state, live(snapshot(), content())) == FIND


@pytest.mark.parametrize(
    ("server", "why"),
    [
        ((), 'error getting snapshot s from api server: volumesnapshots.snapshot.storage.k8s.io "s" not found'),
        (
            (snapshot(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}), content()),
            "snapshot s is currently being deleted",
        ),
        (
            (snapshot(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x"]}), content()),
            "snapshot s is currently being deleted",
        ),
        ((snapshot(boundVolumeSnapshotContentName=None), content()), "snapshot s not bound"),
        (
            (snapshot(boundVolumeSnapshotContentName=None, error={"message": "no room"}), content()),
            "snapshot s not bound: no room",
        ),
        (
            (snapshot(), None),
            (
                "error getting snapshotcontent content for snapshot default/s from api server: "
                'volumesnapshotcontents.snapshot.storage.k8s.io "content" not found'
            ),
        ),
        *(
            (
                (snapshot(), content(ref=ref)),
                "snapshotcontent content for snapshot default/s is bound to a different snapshot",
            )
            for ref in ({"uid": "other"}, {"namespace": "other"}, {"name": "other"}, {"uid": ""})
        ),
        (
            (snapshot(), content(driver="other.example.com")),
            (
                "snapshotcontent content for snapshot default/s is handled by a different CSI driver than requested by "
                f'StorageClass fast: by "other.example.com", not by "{DRIVER}"'
            ),
        ),
        ((snapshot(readyToUse=False), content()), "snapshot s is not Ready"),
        (
            (snapshot(readyToUse=None, error={"message": "no quota"}), content()),
            "snapshot s is not Ready: no quota",
        ),
        ((snapshot(), content(handle="")), "snapshot handle s is not available"),
        (
            (snapshot(restoreSize="2Gi"), content()),
            f"requested volume size {GI} is less than the size {2 * GI} for the source snapshot s",
        ),
        (
            (snapshot(), content(sourceVolumeMode="Block")),
            (
                "requested volume default/c modifies the mode of the source volume but does not have permission to do "
                "so "
                "(from Block to Filesystem). snapshot.storage.kubernetes.io/allow-volume-mode-change annotation is not "
                "present on snapshotcontent content"
            ),
        ),
    ],
)
def test_each_check_refuses_in_the_words_of_the_stock_provisioner(server: Any, why: str) -> None:
    assert refused(restored(), *server) == why


@pytest.mark.parametrize(
    ("server", "why"),
    [
        (
            (snapshot(readyToUse=False, restoreSize="9Gi"), content(driver="other.example.com")),
            "is handled by a different",
        ),
        ((snapshot(readyToUse=False, restoreSize="9Gi"), content(handle="")), "is not Ready"),
        ((snapshot(restoreSize="9Gi"), content(sourceVolumeMode="Block")), "is less than"),
    ],
)
def test_of_several_the_first_in_its_order_speaks(server: Any, why: str) -> None:
    assert why in refused(restored(), *server)


@pytest.mark.parametrize(
    ("allowed", "why"),
    [
        ("true", ""),
        ("1", ""),
        ("false", "is set to false on snapshotcontent content"),
        ("perhaps", 'annotation value "perhaps" to boolean'),
    ],
)
def test_the_mode_may_change_if_the_content_says_so(allowed: str, why: str) -> None:
    cut = content(sourceVolumeMode="Block", annotations={names.ALLOW_VOLUME_MODE_CHANGE: allowed})
    if why:
        assert why in refused(restored(), snapshot(), cut)
    else:
        assert decide(world(restored()), live(snapshot(), cut)) == FIND


@pytest.mark.parametrize(
    ("item", "server"),
    [
        (restored(size="2Gi"), (snapshot(), content())),
        (restored(), (snapshot(restoreSize=None), content())),
        (restored(), (snapshot(), content(sourceVolumeMode="Filesystem"))),
        (restored(volumeMode=None), (snapshot(), content(sourceVolumeMode="Block"))),
        (restored(accessModes=["ReadOnlyMany"]), (snapshot(), content())),
        (fast(annotations=ASKED, dataSourceRef={**SNAPSHOT, "namespace": "default"}), (snapshot(), content())),
        (
            restored(),
            (snapshot(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [PROTECTION]}), content()),
        ),
    ],
    ids=["larger", "size unknown", "mode", "mode unsaid", "read only", "own namespace", "a try had begun"],
)
def test_what_the_stock_provisioner_restores_is_restored(item: Claim, server: Any) -> None:
    assert decide(world(item), live(*server)) == FIND


def test_a_content_that_names_the_csi_driver_of_the_driver_is_of_it() -> None:
    state = world(restored(), csi_driver_name="ebs.csi.aws.com")
    assert decide(state, live(snapshot(), content(driver="ebs.csi.aws.com"))) == FIND


@pytest.mark.parametrize(
    ("fields", "driver", "why"),
    [
        (
            {"dataSource": {**SNAPSHOT, "apiGroup": "example.com"}},
            {},
            "the PVC source does not belong to the right APIGroup. Expected snapshot.storage.k8s.io, Got example.com",
        ),
        ({"dataSource": SNAPSHOT}, {"hooks": HOOKS}, f'driver "{DRIVER}" does not make volumes of snapshots'),
        ({"dataSource": PVC}, {"clones": ""}, f'driver "{DRIVER}" does not copy volumes'),
        (
            {"dataSource": PVC},
            {"clones": "", "why_no_sources": "a folder is nobody's copy"},
            f'driver "{DRIVER}" does not copy volumes: a folder is nobody\'s copy; remove spec.dataSource',
        ),
        ({"dataSource": SNAPSHOT, "selector": {"matchLabels": {"a": "b"}}}, {}, "spec.selector matches no available"),
        ({"dataSourceRef": {**SNAPSHOT, "namespace": "../x"}}, {}, '"../x" is the name of no namespace'),
    ],
)
def test_what_no_read_can_mend_is_refused_without_one(fields: Json, driver: Json, why: str) -> None:
    item = fast(annotations=ASKED, **fields)
    _, _, message = told(decide_claim("default/c", world(item, **driver), LiveReads()))
    assert message.startswith(why)


@pytest.mark.parametrize(
    "name", ["../../other/volumesnapshots/s", "x/../s", "..", "s?watch=1", "S", "s%2f", "s\n", "a" * 254]
)
@pytest.mark.parametrize("source", [SNAPSHOT, PVC])
def test_a_name_that_is_none_leads_to_no_path_of_another_namespace(source: Json, name: str) -> None:
    """The API server takes any text there."""
    item = fast(annotations=ASKED, dataSourceRef={**source, "name": name})
    _, _, message = told(decide_claim("default/c", world(item), LiveReads()))
    assert "is the name of no" in message


def test_where_the_kinds_are_not_served_the_claim_says_so_and_waits() -> None:
    waits = decide(world(restored()), {}, served=False)
    assert isinstance(waits, Wait)
    assert "does not serve volumesnapshots.snapshot.storage.k8s.io: its CRD is not installed" in waits.reason
    assert waits.seconds is not None
    reads = LiveReads()
    reads.put(VOLUME_SNAPSHOTS, "default/s", snapshot())
    reads.unserved.add(VOLUME_SNAPSHOT_CONTENTS.plural)
    half = decide_claim("default/c", world(restored()), reads)
    assert "does not serve volumesnapshotcontents" in half.reason  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("made", "seconds"), [("2026-01-01T00:00:00Z", 1.0), ("2025-12-31T23:59:50Z", 8.0), ("2025-01-01T00:00:00Z", 60.0)]
)
def test_a_snapshot_that_is_not_ready_is_looked_at_again_the_later_the_older_the_claim(
    made: str, seconds: float
) -> None:
    """There is no watch of snapshots in this process."""
    waits = decide(world(restored(creationTimestamp=made)), live(snapshot(readyToUse=False), content()))
    assert isinstance(waits, Wait)
    assert waits.seconds == seconds


def test_the_provisioner_is_named_on_a_claim_that_waits_for_its_source() -> None:
    """As by the stock binder, so that others see whose it is."""
    item = fast(dataSource=SNAPSHOT)
    named = decide(world(item), {})
    assert isinstance(named, Patch)
    assert named.body["metadata"]["annotations"] == ASKED


# --- a try that had begun goes on -----------------------------------------------------------------------------------


@pytest.mark.parametrize("server", [(), (snapshot(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}),)])
def test_a_source_that_vanishes_after_the_intent_is_asked_for_as_before(server: Any) -> None:
    item = restored()
    state = world(item)
    begin(state, item, source=SourceRecord(snapshot="snap-1"))
    assert decide(state, live(*server)) == PROVISION


def test_the_next_call_of_a_long_one_reads_no_snapshot() -> None:
    item = restored()
    state = world(item)
    begin(state, item, source=SourceRecord(snapshot="snap-1"), state={"job": 1})
    state.progress.claims.track("uid-c").step = Pending({"job": 1}, 0.0, {"job": 1})
    assert decide_claim("default/c", state, LiveReads()) == PROVISION


def test_the_next_asset_after_a_deleted_one_is_made_of_the_source_as_it_is_then() -> None:
    item = restored()
    state = world(item)
    begin(state, item, source=SourceRecord(snapshot="former"))
    progress = state.progress.claims.track("uid-c")
    progress.step, progress.source = Discarded(), FoundSource("snap-1", ())
    intent = intent_in(state, decide(state, live(snapshot(), content())))
    assert (intent.generation, intent.source) == (2, SourceRecord(snapshot="snap-1"))


# --- another claim --------------------------------------------------------------------------------------------------


def test_a_copy_is_asked_for_by_the_handle_of_the_source() -> None:
    state = world(copied())
    intent = intent_in(state, decide(state, live(origin(), of_origin())))
    assert intent.source == SourceRecord(volume="handle-v", of="v")


def test_the_source_of_a_copy_is_held_first() -> None:
    item = copied()
    state = world(item)
    begin(state, item, source=SourceRecord(volume="handle-v", of="v"))
    held = decide(state, live(origin(), of_origin()))
    assert isinstance(held, Patch)
    assert (held.kind, held.target, held.body) == (CLAIMS, origin(), {"metadata": {"finalizers": [CLONING]}})
    assert decide(state, live(origin(finalizers=[CLONING]), of_origin())) == PROVISION


OTHER_MODE: Final = "the source PVC and destination PVCs must have the same volume mode for cloning.  "
INVALID: Final = "claim in dataSource not bound or invalid: "


@pytest.mark.parametrize(
    ("item", "server", "why"),
    [
        (
            copied(),
            (),
            'error getting PVC origin (namespace "default") from api server: persistentvolumeclaims "origin" not found',
        ),
        *(
            (
                copied(),
                (origin(status={"phase": phase}), of_origin()),
                f"the PVC DataSource origin must have a status of Bound.  Got {phase}",
            )
            for phase in ("Pending", "Lost")
        ),
        (
            copied(),
            (origin(deletionTimestamp="2026-01-01T00:00:00Z"), of_origin()),
            "the PVC DataSource origin is currently being deleted",
        ),
        (
            copied(),
            (origin(storageClassName=None), of_origin()),
            "the source PVC (origin) storageclass cannot be empty",
        ),
        (
            copied(),
            (origin(size="2Gi"), of_origin()),
            (
                "error, new PVC request must be greater than or equal in size to the specified PVC data source, "
                f"requested {GI} but source is {2 * GI}"
            ),
        ),
        (
            copied(),
            (origin(), of_origin(size="3Gi")),
            (
                "error, new PVC request must be greater than or equal in size to the specified PVC data source, "
                f"requested {GI} but source is {3 * GI}"
            ),
        ),
        (copied(), (origin(volumeName=""), of_origin()), "volume name is empty in source PVC origin"),
        (copied(), (origin(),), INVALID + 'volume "v" does not exist'),
        (copied(), (origin(), of_origin(claim=claim("other"))), INVALID + 'volume "v" is bound to default/other'),
        (
            copied(),
            (origin(), of_origin(claim=claim("origin", uid="other"))),
            INVALID + 'volume "v" is bound to default/origin',
        ),
        (
            copied(),
            (origin(), of_origin(claim=claim("origin", namespace="other"))),
            INVALID + 'volume "v" is bound to other/origin',
        ),
        (copied(), (origin(), of_origin(claim=None)), INVALID + 'volume "v" is bound to nothing'),
        *(
            (copied(), (origin(), of_origin(status={"phase": phase})), INVALID + f'volume "v" is {phase}, not Bound')
            for phase in ("Available", "Pending", "Released", "Failed")
        ),
        (
            copied(),
            (origin(), of_origin(volumeMode="Block")),
            (OTHER_MODE + "Source is Block, but new PVC requested Filesystem"),
        ),
        (
            copied(volumeMode="Block"),
            (origin(), of_origin()),
            (OTHER_MODE + "Source is Filesystem, but new PVC requested Block"),
        ),
    ],
)
def test_each_check_of_a_copy_refuses_with_its_reason(item: Claim, server: Any, why: str) -> None:
    assert refused(item, *server) == why


def test_a_volume_of_another_driver_is_not_copied() -> None:
    other = disk("other.example.com")
    made = {names.PROVISIONED_BY: "other.example.com", names.HANDLE: "handle-v"}
    state = state_with(copied(), storage_class(), drivers=(disk(hooks=CUTS, clones="in place"), other))
    _, _, message = told(decide(state, live(origin(), of_origin(annotations=made))))
    assert message == 'Failed to provision volume with StorageClass "fast": ' + OF_CLAIM + INVALID + (
        f'the driver of volume "v" is "other.example.com", that of StorageClass fast is "{DRIVER}"'
    )


@pytest.mark.parametrize(
    ("item", "server"),
    [
        (copied(size="2Gi"), (origin(), of_origin())),
        (copied(), (origin(storageClassName="fast"), of_origin())),
        (copied(volumeMode="Block"), (origin(), of_origin(volumeMode="Block"))),
        (copied(volumeMode=None), (origin(), of_origin(volumeMode="Filesystem"))),
        (copied(), (origin(), of_origin(annotations={}))),
    ],
    ids=["larger", "same class", "blocks", "mode unsaid", "a static volume of the driver"],
)
def test_what_the_stock_provisioner_copies_is_copied(item: Claim, server: Any) -> None:
    state = world(item)
    source = intent_in(state, decide(state, live(*server))).source
    assert source is not None
    assert source.of == "v"


# --- the place ------------------------------------------------------------------------------------------------------


def node(name: str, zone: str) -> Node:
    body = {"metadata": {"name": name, "uid": name, "resourceVersion": "1", "labels": {"zone": zone}}}
    return msgspec.convert(body, Node)


def terms(*zones: str) -> Json:
    matches = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in zones]
    return {"nodeAffinity": {"required": {"nodeSelectorTerms": matches}}}


def zoned(item: Claim, *others: KubeObject, of_class: StorageClass | None = None, **driver: Any) -> Any:
    return world(item, *others, of_class=of_class, topology_keys=("zone",), **driver)


def allowing(*zones: str, **fields: Any) -> StorageClass:
    topologies = [{"matchLabelExpressions": [{"key": "zone", "values": list(zones)}]}]
    return storage_class(allowedTopologies=topologies, **fields)


def test_a_copy_in_place_goes_where_its_source_is() -> None:
    state = zoned(copied())
    assert intent_in(state, decide(state, live(origin(), of_origin(**terms("b"))))).segment == {"zone": "b"}


def test_a_copy_to_anywhere_goes_where_the_class_allows() -> None:
    state = zoned(copied(), of_class=allowing("a"), clones="anywhere")
    assert intent_in(state, decide(state, live(origin(), of_origin(**terms("b"))))).segment == {"zone": "a"}


def test_of_the_places_of_a_snapshot_one_is_chosen_that_the_class_allows() -> None:
    state = zoned(restored(), of_class=allowing("a", "c"))
    state.progress.claims.track("uid-c").source = FoundSource("snap-1", ({"zone": "b"}, {"zone": "c"}))
    assert intent_in(state, decide(state, live(snapshot(), content()))).segment == {"zone": "c"}


def test_without_places_a_snapshot_goes_anywhere() -> None:
    state = zoned(restored())
    state.progress.claims.track("uid-c").source = FoundSource("snap-1", ())
    assert intent_in(state, decide(state, live(snapshot(), content()))).segment == {}


def test_where_nothing_fits_the_reason_says_both_places() -> None:
    state = zoned(copied(), of_class=allowing("a"))
    _, _, message = told(decide(state, live(origin(), of_origin(**terms("b", "c")))))
    assert message == (
        'PersistentVolumeClaim "origin" can only be used at zone=b or zone=c, and class "fast" allows zone=a'
    )


def test_a_node_that_was_selected_elsewhere_is_given_back_with_the_place_of_the_source() -> None:
    waiting = storage_class(volumeBindingMode="WaitForFirstConsumer")
    state = zoned(copied(annotations={SELECTED: "n"}), node("n", "a"), of_class=waiting)
    given = decide(state, live(origin(), of_origin(**terms("b"))))
    assert isinstance(given, Patch)
    assert given.body["metadata"]["annotations"][SELECTED] is None
    [event] = given.events
    assert event.message == (
        'selected node "n" is at zone=a, and PersistentVolumeClaim "origin" can only be used at zone=b; another node '
        "is asked for"
    )


def test_a_scheduler_that_does_not_heed_that_is_bound_by_the_volume_which_is_made_where_it_can_be() -> None:
    """Otherwise the claim would be passed to and fro."""
    state = zoned(copied(annotations={SELECTED: "n"}), node("n", "a"))
    state.progress.claims.track("uid-c").given_back = True
    assert intent_in(state, decide(state, live(origin(), of_origin(**terms("b"))))).segment == {"zone": "b"}


def test_a_node_that_was_selected_at_the_place_of_the_source_is_taken() -> None:
    state = zoned(copied(annotations={SELECTED: "n"}), node("n", "b"))
    assert intent_in(state, decide(state, live(origin(), of_origin(**terms("b", "c"))))).segment == {"zone": "b"}


def test_a_class_that_excludes_the_source_asks_for_no_node_in_vain() -> None:
    state = zoned(copied(annotations={SELECTED: "n"}), node("n", "a"), of_class=allowing("a"))
    _, _, message = told(decide(state, live(origin(), of_origin(**terms("b")))))
    assert "can only be used at zone=b, and class" in message


def test_a_full_place_is_left_with_the_source_chosen_anew() -> None:
    item = copied(annotations={SELECTED: "n"})
    state = zoned(item, node("n", "b"))
    begin(state, item, source=SourceRecord(volume="handle-v", of="v"), segment={"zone": "b"})
    state.progress.claims.track("uid-c").reached(Full())
    left = intent_in(state, decide(state, {}))
    assert (left.segment, left.source) == (None, SourceRecord(volume="handle-v", of="v")), (
        "what is held is let go by it"
    )


# --- what holds it --------------------------------------------------------------------------------------------------


def over(state: Any, item: Claim) -> None:
    """The volume of the claim is made."""
    made = {names.PROVISIONED_BY: DRIVER, names.HANDLE: "h"}
    put(state, volume("pvc-uid-c", claim=item, annotations=made, storageClassName="fast"))


def test_a_snapshot_is_let_go_when_the_volume_is_made() -> None:
    item = restored()
    state = world(item)
    begin(state, item, source=SourceRecord(snapshot="snap-1"))
    over(state, item)
    kept = snapshot(metadata={"finalizers": ["x", PROTECTION]})
    released = decide(state, live(kept))
    assert isinstance(released, Patch)
    assert (released.target, released.body) == (kept, {"metadata": {"finalizers": ["x"]}})
    after = decide(state, live(snapshot()))
    assert isinstance(after, Patch)
    assert after.kind is VOLUMES, "it is bound"


@pytest.mark.parametrize("gone", [live, lambda: live(snapshot())])
def test_a_snapshot_that_is_gone_or_not_held_keeps_nothing_from_being_bound(gone: Callable[[], Json]) -> None:
    item = restored()
    state = world(item)
    begin(state, item, source=SourceRecord(snapshot="snap-1"))
    over(state, item)
    bound = decide(state, gone())
    assert isinstance(bound, Patch)
    assert bound.kind is VOLUMES


def test_a_snapshot_is_held_while_another_claim_is_made_of_it() -> None:
    item = restored()
    state = world(item)
    begin(state, item, source=SourceRecord(snapshot="snap-1"))
    over(state, item)
    other = claim("d", storageClassName="fast", dataSource=SNAPSHOT, finalizers=[HELD])
    sealed = ClaimIntent(v=INTENT_VERSION, driver=DRIVER, source=SourceRecord(snapshot="snap-1"))
    put(state, msgspec.structs.replace(other, metadata=_with_intent(other, state.sealer.seal("uid-d", sealed))))
    kept = snapshot(metadata={"finalizers": [PROTECTION]})
    assert decide(state, live(kept)).kind is VOLUMES  # type: ignore[union-attr]


def _with_intent(item: Claim, sealed: str) -> Any:
    return msgspec.structs.replace(item.metadata, annotations={INTENT: sealed})


def test_a_claim_that_merely_waits_does_not_hold_it() -> None:
    """As one does whose pod is never made."""
    item = restored()
    state = world(item)
    begin(state, item, source=SourceRecord(snapshot="snap-1"))
    over(state, item)
    put(state, claim("d", storageClassName="fast", dataSource=SNAPSHOT))
    kept = snapshot(metadata={"finalizers": [PROTECTION]})
    assert decide(state, live(kept)).kind is VOLUME_SNAPSHOTS  # type: ignore[union-attr]


def test_a_claim_that_is_deleted_lets_its_snapshot_go_before_its_record_ends() -> None:
    item = restored(deletionTimestamp="2026-01-01T00:00:00Z", finalizers=["x"])
    state = world(item)
    begin(state, item, source=SourceRecord(snapshot="snap-1"))
    kept = live(snapshot(metadata={"finalizers": [PROTECTION]}))
    assert decide(state, kept) == Run(
        verb="discard", key="default/c", uid="uid-c", driver=DRIVER, asset="pvc-uid-c", group="discard"
    )
    state.progress.claims.track("uid-c").reached(Discarded())
    released = decide(state, kept)
    assert isinstance(released, Patch)
    assert released.kind is VOLUME_SNAPSHOTS
    ended = decide(state, live(snapshot()))
    assert isinstance(ended, Patch)
    assert (ended.kind, ended.body["metadata"]["annotations"]) == (CLAIMS, {INTENT: None})


def test_nothing_is_read_for_a_claim_without_a_source() -> None:
    item = fast(annotations=ASKED)
    state = world(item)
    begin(state, item)
    state.progress.claims.track("uid-c").step = Made(ASSET)
    assert isinstance(decide_claim("default/c", state, LiveReads()), Create)
    over(state, item)
    assert isinstance(decide_claim("default/c", state, LiveReads()), Patch)


def deleted_origin(*others: KubeObject, **more: Any) -> Any:
    bound = {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}, "deletionTimestamp": "2026-01-01T00:00:00Z"}
    source = origin(finalizers=["kubernetes.io/pvc-protection", CLONING], **bound)
    state = state_with(source, of_origin(), *others, **{"drivers": (disk(),), **more})
    return decide_claim("default/origin", state, LiveReads())


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize(
    ("others", "released"),
    [
        ((), True),
        ((copied(status={"phase": "Bound"}),), True),
        ((copied(),), False),
        ((copied(status={"phase": "Bound"}), claim("d", dataSource=PVC)), False),
        ((claim("d", namespace="other", dataSource=PVC),), True),
        ((claim("d", dataSource={**PVC, "name": "another"}),), True),
        ((claim("d"),), True),
    ],
    ids=["nobody", "one bound", "one pending", "one of two pending", "other namespace", "other claim", "no source"],
)
def test_a_deleted_source_goes_once_no_claim_of_its_namespace_waits_for_a_copy(
    others: tuple[Claim, ...], *, released: bool, beside: bool
) -> None:
    action = deleted_origin(*others, without=("binder",) if beside else ())
    wanted = {"metadata": {"finalizers": ["kubernetes.io/pvc-protection"]}}
    assert (isinstance(action, Patch) and action.body == wanted) is released, action


def test_the_finalizer_of_other_drivers_is_theirs() -> None:
    action = deleted_origin(drivers=(disk("other.example.com"),))
    assert not (isinstance(action, Patch) and "finalizers" in action.body.get("metadata", {})), action


@pytest.mark.parametrize(
    ("others", "released"),
    [
        ((), True),
        ((claim("d", dataSource=SNAPSHOT, status={"phase": "Bound"}),), True),
        ((claim("d", dataSource=SNAPSHOT),), False),
        ((claim("d", dataSourceRef=SNAPSHOT),), False),
        ((claim("d", dataSource=SNAPSHOT, status={"phase": ""}),), False),
        ((claim("d", dataSource=SNAPSHOT, status={"phase": "Bound"}), claim("e", dataSource=SNAPSHOT)), False),
        ((claim("d", namespace="other", dataSource=SNAPSHOT),), True),
        ((claim("d", namespace="other", dataSourceRef={**SNAPSHOT, "namespace": "default"}),), True),  # refused
    ],
)
def test_a_finalizer_that_was_left_is_swept_once_no_pending_claim_names_the_snapshot(
    others: tuple[Claim, ...], *, released: bool
) -> None:
    left = snapshot(metadata={"finalizers": ["x", PROTECTION]})
    step = swept(left, state_with(*others))
    assert (step is not None) is released
    assert step is None or step.body == {"metadata": {"finalizers": ["x"]}}
    assert swept(snapshot(), state_with()) is None


def test_the_claims_that_wait_for_a_snapshot_are_found_by_either_field() -> None:
    named = [
        claim("a", dataSource=SNAPSHOT),
        claim("b", dataSourceRef=SNAPSHOT),
        claim("c", dataSource=SNAPSHOT, status={"phase": "Bound"}),
        claim("d", namespace="other", dataSource=SNAPSHOT),
        claim("e", namespace="other", dataSourceRef={**SNAPSHOT, "namespace": "default"}),
        claim("f", dataSource=PVC),
    ]
    found = unbound_of(VOLUME_SNAPSHOTS, "default/s", state_with(*named))
    assert sorted(each.name for each in found) == ["a", "b"]  # that of another namespace is refused


def test_claims_that_are_made_of_nothing_cost_nothing_when_a_snapshot_changes() -> None:
    """Tenants change the status of VolumeSnapshots as often as they like, in clusters with many claims."""

    def calls(others: int) -> int:
        state, made = state_with(*(claim(f"c{n}") for n in range(others)), claim("a", dataSource=SNAPSHOT)), []
        before = sys.getprofile()
        sys.setprofile(lambda _frame, event, _arg: made.append(event))
        try:
            assert [each.name for each in unbound_of(VOLUME_SNAPSHOTS, "default/s", state)] == ["a"]
        finally:
            sys.setprofile(before)
        return len(made)

    assert calls(200) == calls(2)


@pytest.mark.parametrize("source", [SNAPSHOT, PVC, {"apiGroup": "example.com", "kind": "Hello", "name": "h"}])
def test_the_process_of_a_node_takes_no_claim_with_a_source_and_leaves_it_to_the_assigner_to_say_so(
    source: Json,
) -> None:
    item = fast(annotations={**ASKED, SELECTED: "n"}, dataSourceRef=source)
    here = {"drivers": (disk(hooks=CUTS, clones="in place", topology_keys=("zone",)),), "node_name": "n"}
    waits = decide_claim(
        "default/c", state_with(item, storage_class(), node("n", "a"), **here, binder=False), LiveReads()
    )
    assert isinstance(waits, Wait)
    assert waits.events == ()


def test_beside_a_stock_binder_a_claim_is_made_of_its_source_and_lets_it_go_in_the_same_steps() -> None:
    item = restored()
    view = disk(hooks=CUTS)
    state = state_with(item, storage_class(), drivers=(view,), without=("binder",))
    server = live(snapshot(), content())
    assert decide(state, server) == FIND
    state.progress.claims.track("uid-c").source = FoundSource("snap-1", ())
    begin(state, item, source=intent_in(state, decide(state, server)).source)
    held = decide(state, server)
    assert isinstance(held, Patch)
    assert held.kind is VOLUME_SNAPSHOTS
    server = live(snapshot(metadata={"finalizers": [PROTECTION]}), content())
    assert decide(state, server) == PROVISION
    over(state, item)
    released = decide(state, server)
    assert isinstance(released, Patch)
    assert (released.kind, released.body) == (VOLUME_SNAPSHOTS, {"metadata": {"finalizers": None}})
