"""What is written and said while a volume is made for a claim, and why none is made."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from unit.binding.objects import claim, storage_class, volume
from unit.deciding import DRIVER, GIB, HOOKS, decide_provision, disk, fast, read, state_with
from volplane.assets import Asset, VolumeSource
from volplane.controller.actions import Create, EventRecord, LiveReads, Patch, Read, Run, Wait, warning
from volplane.intents.ownership import metadata_without_node
from volplane.kube.kinds import CLAIMS, NODES, VOLUMES
from volplane.kube.objects import Claim, Node, StorageClass
from volplane.placement.one_node import RaceTimes
from volplane.provision.decide import volume_body
from volplane.schemas import Parameter, ParameterSchema
from volplane.state.cluster_state import ClusterState
from volplane.state.naming import node_hash
from volplane.state.progress import Discarded, Discarding, Full, Made, Pending
from volplane.state.records import INTENT_VERSION, ClaimIntent

INTENT = "volplane.dev/intent"
HELD = "volplane.dev/provisioning"
SELECTED = "volume.kubernetes.io/selected-node"
OTHER = "other.example.com"
ASSET = Asset(handle="h", source=VolumeSource(kind="hostPath", fields={"path": "/a"}), capacity_bytes=2**30)
ZONED = disk(topology_keys=("zone",))
CALL = {"key": "default/c", "uid": "uid-c", "asset": "pvc-uid-c"}
PROVISION = Run(verb="provision", driver=DRIVER, group="provision fast", **CALL)
DISCARD = Run(verb="discard", driver=DRIVER, group="discard", **CALL)
ELSEWHERE = Run(verb="discard", driver=OTHER, group="discard", **CALL)


def asked(driver: str = DRIVER) -> dict[str, str]:
    """The annotations that name the provisioner."""
    return {
        "volume.kubernetes.io/storage-provisioner": driver,
        "volume.beta.kubernetes.io/storage-provisioner": driver,
    }


def cluster(*others: Any, **more: Any) -> ClusterState:
    return state_with(*others, **{"drivers": (disk(),), **more})


def step(made: ClusterState, item: Claim, of_class: StorageClass | None = None, reads: LiveReads | None = None) -> Any:
    """What is decided about a claim for which no volume fits."""
    return decide_provision(item, of_class or storage_class(), made, reads or LiveReads())


def begun(made: ClusterState, *, annotations: dict[str, str] | None = None, **intent: Any) -> Claim:
    """A claim with a declared intent."""
    sealed = made.sealer.seal("uid-c", ClaimIntent(**{"v": INTENT_VERSION, "driver": DRIVER, **intent}))
    return fast(annotations={**asked(), INTENT: sealed, **(annotations or {})}, finalizers=[HELD])


def declared(made: ClusterState, action: Any) -> ClaimIntent:
    """The intent that is written."""
    assert isinstance(action, Patch), action
    intent = made.sealer.open("uid-c", action.body["metadata"]["annotations"][INTENT])
    assert intent is not None
    return intent


def refused(item: Claim, message: str) -> Wait:
    return Wait(reason=message, events=(warning(CLAIMS, item, "ProvisioningFailed", message),))


# --- by whom ------------------------------------------------------------------------------------------------------


def names_provisioner(item: Claim, provisioner: str) -> Patch:
    body = {"metadata": {"annotations": asked(provisioner)}}
    return Patch(kind=CLAIMS, target=item, body=body, why=f"ask provisioner {provisioner}")


EXTERNAL = (
    "Waiting for a volume to be created either by the external provisioner '{}' or manually by the system "
    "administrator. If volume creation is delayed, please verify that the provisioner is running and correctly "
    "registered."
)


def test_a_provisioner_that_is_not_here_is_named_then_waited_for() -> None:
    item, made = fast(), cluster()
    assert step(made, item, storage_class(provisioner=OTHER)) == names_provisioner(item, OTHER)
    named = fast(annotations=asked(OTHER))
    message = EXTERNAL.format(OTHER)
    event = EventRecord(CLAIMS, named, "Normal", "ExternalProvisioning", message)
    assert step(made, named, storage_class(provisioner=OTHER)) == Wait(reason=message, events=(event,))


def test_a_provisioner_whose_name_was_another_one_is_named_anew() -> None:
    item = fast(annotations=asked("former.example.com"))
    assert step(cluster(), item, storage_class(provisioner=OTHER)) == names_provisioner(item, OTHER)


def test_where_another_is_the_binder_it_names_the_provisioner() -> None:
    made = cluster(binder=False)
    assert isinstance(step(made, fast(), storage_class(provisioner=OTHER)), Wait)
    action = step(made, fast())
    assert list(action.body["metadata"]["annotations"]) == [INTENT]


def test_a_plugin_that_a_csi_driver_serves_now_is_asked_by_the_name_of_that() -> None:
    item = fast()
    action = step(cluster(), item, storage_class(provisioner="kubernetes.io/gce-pd"))
    assert action == names_provisioner(item, "pd.csi.storage.gke.io")


def test_a_driver_that_starts_is_waited_for() -> None:
    made = cluster()
    made.drivers.starting = lambda name: name == OTHER  # type: ignore[method-assign]
    assert step(made, fast(), storage_class(provisioner=OTHER)) == Wait(reason=f'driver "{OTHER}" is starting')


def test_a_driver_that_cannot_work_is_said_to_be_so() -> None:
    item = fast()
    message = f'driver "{OTHER}" of class "fast" cannot work: no credentials'
    made = cluster(broken={OTHER: "no credentials"})
    assert step(made, item, storage_class(provisioner=OTHER)) == refused(item, message)


def test_an_in_tree_plugin_that_nobody_has_is_an_error() -> None:
    item, name = fast(), "kubernetes.io/nobody"
    message = f"no volume plugin matched name: {name}"
    assert step(cluster(), item, storage_class(provisioner=name)) == refused(item, message)


def test_a_class_without_provisioner_says_who_has_to_act() -> None:
    item, name = fast(), "kubernetes.io/no-provisioner"
    reason = 'class "fast" has no provisioner and no volume of it fits: an administrator must add one'
    event = warning(CLAIMS, item, "ProvisioningFailed", f"no volume plugin matched name: {name}")
    assert step(cluster(), item, storage_class(provisioner=name)) == Wait(reason=reason, events=(event,))


# --- what stands in the way ---------------------------------------------------------------------------------------

SELECTOR = (
    "spec.selector matches no available volume and cannot be met by provisioning a new one; remove the selector or add "
    "a volume with these labels"
)
KEYS = ParameterSchema(parameters=(Parameter(name="tier", doc="a tier"),))
MODIFIES = HOOKS | {"modify"}


@pytest.mark.parametrize(
    ("fields", "of_class", "driver", "message"),
    [
        (
            {},
            {"parameters": {"volplane.dev/on-release": "keep"}},
            disk(),
            'class "fast": parameter volplane.dev/on-release is "keep"; valid values are "delete" and "recycle"',
        ),
        (
            {},
            {
                "allowedTopologies": [
                    {
                        "matchLabelExpressions": [
                            {"key": f"k{n}", "values": [f"v{m}" for m in range(20)]} for n in range(8)
                        ]
                    }
                ]
            },
            disk(topology_keys=("k0",)),
            'class "fast": allowedTopologies stands for 25,600,000,000 places; at most 10,000 are supported',
        ),
        (
            {"volumeMode": "Block"},
            {},
            disk(volume_modes=frozenset({"Filesystem"})),
            f'driver "{DRIVER}" does not support volumeMode Block (it supports Filesystem)',
        ),
        (
            {"volumeMode": None},
            {},
            disk(volume_modes=frozenset({"Block"})),
            f'driver "{DRIVER}" does not support volumeMode Filesystem (it supports Block)',
        ),
        (
            {"accessModes": ["ReadWriteOnce", "ReadWriteMany"]},
            {},
            disk(access_modes=frozenset({"ReadWriteOnce", "ReadOnlyMany"})),
            f'driver "{DRIVER}" does not support access mode ReadWriteMany (it supports ReadOnlyMany, ReadWriteOnce)',
        ),
        (
            {},
            {"mountOptions": ["hard"]},
            disk(supports_mount_options=False),
            f'class "fast" has mountOptions, which driver "{DRIVER}" does not support',
        ),
        (
            {"selector": {"matchLabels": {"a": "b"}}},
            {},
            disk(),
            SELECTOR,
        ),
        (
            {"volumeAttributesClassName": "gold"},
            {},
            disk(hooks=MODIFIES),
            f'driver "{DRIVER}" knows no VolumeAttributesClass; remove spec.volumeAttributesClassName',
        ),
        (
            {"volumeAttributesClassName": "gold"},
            {},
            disk(csi_driver_name=DRIVER),
            f'driver "{DRIVER}" knows no VolumeAttributesClass; remove spec.volumeAttributesClassName',
        ),
    ],
)
def test_what_the_driver_cannot_make_is_said(fields: Any, of_class: Any, driver: Any, message: str) -> None:
    made = cluster(drivers=(driver,))
    item = fast(**fields)
    assert step(made, item, storage_class(**of_class)) == names_provisioner(item, DRIVER)
    named = fast(annotations=asked(), **fields)
    assert step(made, named, storage_class(**of_class)) == refused(named, message)


def test_a_parameter_that_the_driver_does_not_know_is_said_with_its_class() -> None:
    made, item = cluster(drivers=(disk(parameters=KEYS),)), fast(annotations=asked())
    action = step(made, item, storage_class(parameters={"teir": "gold"}))
    assert action.reason.startswith('class "fast": ')
    assert "teir" in action.reason


@pytest.mark.parametrize(
    ("fields", "of_class", "driver"),
    [
        ({"volumeMode": "Block"}, {}, disk()),
        ({"accessModes": None}, {}, disk()),
        ({}, {"mountOptions": ["hard"]}, disk(supports_mount_options=True)),
        ({}, {"mountOptions": []}, disk(supports_mount_options=False)),
        ({"volumeAttributesClassName": "gold"}, {}, disk(hooks=MODIFIES, csi_driver_name=DRIVER)),
        ({}, {"parameters": {"volplane.dev/on-release": "recycle", "tier": "gold"}}, disk(parameters=KEYS)),
    ],
)
def test_what_the_driver_can_make_is_declared(fields: Any, of_class: Any, driver: Any) -> None:
    made = cluster(drivers=(driver,))
    action = step(made, fast(**fields), storage_class(**of_class))
    assert declared(made, action) == ClaimIntent(v=INTENT_VERSION, driver=DRIVER, size=GIB)


# --- a volume of our name -----------------------------------------------------------------------------------------


def test_a_volume_that_is_the_claims_is_the_binders() -> None:
    own = volume("pvc-uid-c", claim=claim(), annotations={"pv.kubernetes.io/provisioned-by": DRIVER})
    waits = Wait(reason='volume "pvc-uid-c" exists, the binder must bind it')
    assert step(cluster(own), fast()) == waits
    made = cluster(own)
    ends = step(made, begun(made))
    assert ends.body == {"metadata": {"annotations": {INTENT: None}, "finalizers": None}}
    on_node = cluster(own, node_name="n", binder=False)
    assert step(on_node, begun(on_node)) == waits, "the write that binds it ends the intent"
    assert step(on_node, begun(on_node, generation=2)) == DISCARD, "the volume is of an earlier asset"


def test_a_volume_of_our_name_that_is_anothers_is_in_the_way() -> None:
    item = fast()
    message = 'volume "pvc-uid-c" exists but does not belong to this claim; remove it or its claimRef'
    marks = {"pv.kubernetes.io/provisioned-by": DRIVER}
    theirs = volume("pvc-uid-c", reserved="other", annotations=marks)
    assert step(cluster(theirs), item) == refused(item, message)
    assert step(cluster(theirs, node_name="n", binder=False), item) == refused(item, message)
    dying = volume("pvc-uid-c", reserved="other", annotations=marks, deletionTimestamp="2026-01-01T00:00:00Z")
    assert step(cluster(dying), item) == refused(item, message)


def test_of_a_volume_that_was_deleted_before_it_was_bound_another_generation_is_declared() -> None:
    marks = {"pv.kubernetes.io/provisioned-by": DRIVER, "volplane.dev/generation": "2"}
    gone = volume("pvc-uid-c", claim=claim(), annotations=marks, deletionTimestamp="2026-01-01T00:00:00Z")
    made = cluster(gone)
    assert declared(made, step(made, fast())).generation == 3


# --- the intent ---------------------------------------------------------------------------------------------------


def test_the_declaration_is_one_write() -> None:
    made, item = cluster(), fast(finalizers=["example.com/x"])
    made.fence = lambda: "3/us/lease-b"
    sealed = made.sealer.seal("uid-c", ClaimIntent(v=INTENT_VERSION, driver=DRIVER, fence="3/us/lease-b", size=GIB))
    body = {"metadata": {"annotations": {**asked(), INTENT: sealed}, "finalizers": ["example.com/x", HELD]}}
    expected = Patch(kind=CLAIMS, target=item, body=body, why="declare the intent to provision")
    assert step(made, item) == expected


def test_a_finalizer_that_is_there_is_not_written_again() -> None:
    action = step(cluster(), fast(finalizers=[HELD], annotations=asked()))
    assert list(action.body["metadata"]) == ["annotations"]
    assert list(action.body["metadata"]["annotations"]) == [INTENT]


def test_an_intent_without_a_place_gets_one_where_the_driver_has_places() -> None:
    made = cluster(drivers=(ZONED,))
    assert step(made, begun(made, segment={})) == PROVISION
    assert declared(made, step(made, begun(made, generation=2))) == ClaimIntent(
        v=INTENT_VERSION, driver=DRIVER, generation=2, segment={}, size=GIB
    )


def test_what_another_driver_began_is_discarded_before_this_one_begins() -> None:
    made = cluster(drivers=(disk(), disk(OTHER)))
    assert step(made, begun(made, driver=OTHER)) == ELSEWHERE
    made.progress.claims.track("uid-c").reached(Discarded())
    again = declared(made, step(made, begun(made, driver=OTHER, generation=4)))
    assert again == ClaimIntent(v=INTENT_VERSION, driver=DRIVER, generation=5, size=GIB)


def test_a_discard_that_has_begun_goes_on_with_its_driver_whatever_the_class_says() -> None:
    made = cluster(drivers=(disk(), disk(OTHER)))
    assert step(made, begun(made, driver=OTHER, discard={})) == ELSEWHERE
    made.progress.claims.track("uid-c").reached(Discarding(ASSET))
    assert step(made, fast()) == DISCARD, "the record is lost"


def test_a_discard_that_has_begun_ends_where_a_volume_holds_the_asset() -> None:
    made = cluster(volume("pvc-uid-c", claim=claim()))
    assert step(made, begun(made, discard={})).body["metadata"]["annotations"] == {INTENT: None}


def test_a_record_of_the_version_before_is_written_as_one_of_this_version() -> None:
    made = cluster()
    item = begun(made, v=INTENT_VERSION - 1, generation=2)
    item.metadata.finalizers = None
    assert declared(made, step(made, item)) == ClaimIntent(v=INTENT_VERSION, driver=DRIVER, generation=2, size=GIB)


def test_a_record_that_is_lost_is_written_as_this_process_knows_it() -> None:
    made = cluster()
    known = ClaimIntent(v=INTENT_VERSION, driver=DRIVER, generation=2, state={"job": 1}, size=GIB)
    made.progress.claims.track("uid-c").intent = known
    assert declared(made, step(made, fast(finalizers=[HELD]))) == known


# --- the node -----------------------------------------------------------------------------------------------------


def node(name: str = "n", **labels: str) -> Node:
    return msgspec.convert({"metadata": {"name": name, "uid": f"uid-{name}", "labels": labels}}, Node)


def test_a_claim_whose_node_is_gone_asks_for_another_one() -> None:
    item, made = fast(annotations={SELECTED: "n"}), cluster(drivers=(ZONED,))
    assert step(made, item) == Read(NODES, "n", "does the selected node exist?")
    message = 'selected node "n" does not exist; another one is asked for'
    events = (warning(CLAIMS, item, "ProvisioningFailed", message),)
    body = {"metadata": metadata_without_node()}
    given_back = Patch(kind=CLAIMS, target=item, body=body, why="ask for another node", events=events)
    assert step(made, item, reads=read(NODES, "n")) == given_back


def test_so_does_one_whose_record_is_lost_and_has_no_place() -> None:
    made = cluster(drivers=(ZONED,))
    made.progress.claims.track("uid-c").intent = ClaimIntent(v=INTENT_VERSION, driver=DRIVER)
    lost = fast(annotations={**asked(), SELECTED: "n"}, finalizers=[HELD])
    assert step(made, lost) == Read(NODES, "n", "does the selected node exist?")


def test_a_node_that_the_cache_does_not_show_yet_is_waited_for() -> None:
    item, made = fast(annotations={SELECTED: "n"}), cluster(drivers=(ZONED,))
    there = step(made, item, reads=read(NODES, "n", node(zone="a")))
    assert there == refused(item, 'selected node "n" does not exist')


def test_a_process_of_one_node_gives_back_what_is_not_of_that_node() -> None:
    made = cluster(drivers=(ZONED,), node_name="m", binder=False)
    action = step(made, fast(annotations={SELECTED: "n"}), reads=read(NODES, "n"))
    assert action.body == {
        "metadata": {
            "labels": {"volplane.dev/node": None},
            "annotations": {"volplane.dev/node-uid": None, SELECTED: None},
        }
    }


@pytest.mark.parametrize(
    ("driver", "marks", "segment", "nodes"),
    [
        (ZONED, {SELECTED: "n"}, {"zone": "a"}, ()),
        (disk(), {SELECTED: "n"}, None, ()),
        (ZONED, {}, {}, ()),
        (ZONED, {SELECTED: "n"}, {"zone": "a"}, (node(zone="a"),)),
    ],
)
def test_a_node_is_looked_for_only_where_the_place_depends_on_it(
    driver: Any, marks: dict[str, str], segment: dict[str, str] | None, nodes: tuple[Node, ...]
) -> None:
    made = cluster(*nodes, drivers=(driver,))
    item = begun(made, annotations=marks, segment=segment)
    assert step(made, item) == PROVISION
    unsealed = fast(annotations={**asked(), **marks}, finalizers=[HELD])
    made.progress.claims.track("uid-c").intent = ClaimIntent(v=INTENT_VERSION, driver=DRIVER, segment=segment)
    assert declared(made, step(made, unsealed)).segment == segment


# --- after the hook -----------------------------------------------------------------------------------------------


def made_volume(made: ClusterState, item: Claim) -> Any:
    made.progress.claims.track("uid-c").step = Made(ASSET)
    return step(made, item)


def body_for(item: Claim, *marks: str) -> dict[str, Any]:
    intent = ClaimIntent(v=INTENT_VERSION, driver=DRIVER)
    body = volume_body(item, storage_class(), disk(), intent, ASSET)
    body["metadata"]["annotations"] |= dict.fromkeys(marks, "yes")
    return body


BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"


def test_an_asset_gets_its_volume_and_the_claim_hears_of_it() -> None:
    made = cluster()
    item = begun(made)
    message = f"Successfully provisioned volume pvc-uid-c using {DRIVER}"
    failure = "Error creating provisioned PV object for claim default/c, whose asset is kept"
    assert made_volume(made, item) == Create(
        kind=VOLUMES,
        body=body_for(item, BY_CONTROLLER),
        why="volume for claim default/c",
        events=(EventRecord(CLAIMS, item, "Normal", "ProvisioningSucceeded", message),),
        failure_event=warning(CLAIMS, item, "ProvisioningFailed", failure),
    )


@pytest.mark.parametrize("recycled", [True, False])
def test_beside_another_binder_only_a_volume_of_a_warm_pool_is_marked_as_chosen(recycled: bool) -> None:
    made = cluster(binder=False)
    parameters = {"volplane.dev/on-release": "recycle"} if recycled else {}
    made.progress.claims.track("uid-c").step = Made(ASSET)
    body = step(made, begun(made), storage_class(parameters=parameters)).body
    assert (BY_CONTROLLER in body["metadata"]["annotations"]) is recycled


def test_a_process_of_one_node_says_on_the_volume_whose_it_is() -> None:
    made = cluster(node(), node_name="n", binder=False)
    body = made_volume(made, begun(made)).body
    assert body["metadata"]["labels"] == {"volplane.dev/node": node_hash("n")}
    assert body["metadata"]["annotations"]["volplane.dev/node-uid"] == "uid-n"
    assert "labels" not in made_volume(cluster(), fast()).body["metadata"]


def test_a_state_of_the_driver_replaces_the_one_before() -> None:
    made = cluster()
    item = begun(made, v=INTENT_VERSION - 1, state={"job": 1}, generation=2)
    made.progress.claims.track("uid-c").reached(Pending({"job": 2}, 1005.0, {"job": 1}), 1000.0)
    kept = step(made, item)
    assert declared(made, kept) == ClaimIntent(
        v=INTENT_VERSION, driver=DRIVER, generation=2, state={"job": 2}, size=GIB
    )
    assert kept.target is item


@pytest.mark.parametrize(("due", "waits"), [(1005.0, True), (1000.5, True), (1000.0, False), (999.0, False)])
def test_the_driver_is_called_again_when_it_is_due(due: float, waits: bool) -> None:
    made = cluster()
    made.progress.claims.track("uid-c").step = Pending({"job": 1}, due, {"job": 1})
    waiting = Wait(reason=f'driver "{DRIVER}" is making the volume', seconds=due - 1000.0)
    assert step(made, begun(made, state={"job": 1})) == (waiting if waits else PROVISION)


def test_a_full_place_is_forgotten_and_the_claim_given_back() -> None:
    made = cluster(drivers=(ZONED,))
    item = begun(made, segment={"zone": "a"}, generation=2, annotations={SELECTED: "n"})
    made.progress.claims.track("uid-c").step = Full()
    action = step(made, item)
    assert action.why == "ask for another node"
    assert action.body["metadata"]["annotations"][SELECTED] is None
    assert declared(made, action) == ClaimIntent(v=INTENT_VERSION, driver=DRIVER, generation=2, size=GIB)


def test_a_full_node_leaves_nothing_on_the_claim_that_its_process_would_have_to_end() -> None:
    made = cluster(node(zone="a"), drivers=(ZONED,), node_name="n", binder=False)
    item = begun(made, segment={"zone": "a"}, annotations={SELECTED: "n"})
    made.progress.claims.track("uid-c").step = Full()
    annotations = {"volplane.dev/node-uid": None, SELECTED: None, INTENT: None}
    metadata = {"labels": {"volplane.dev/node": None}, "annotations": annotations, "finalizers": None}
    expected = Patch(kind=CLAIMS, target=item, body={"metadata": metadata}, why="ask for another node")
    assert step(made, item) == expected


def test_a_full_node_leaves_to_the_assigner_what_an_earlier_node_may_still_have() -> None:
    made = cluster(node(zone="a"), drivers=(ZONED,), node_name="n", binder=False)
    item = begun(made, segment={"zone": "a"}, generation=2, annotations={SELECTED: "n"})
    made.progress.claims.track("uid-c").step = Full()
    action = step(made, item)
    assert declared(made, action) == ClaimIntent(v=INTENT_VERSION, driver=DRIVER, generation=2)
    metadata = action.body["metadata"]
    assert metadata["annotations"][SELECTED] is None
    assert metadata["annotations"]["volplane.dev/node-uid"] is None
    assert metadata["labels"] == {"volplane.dev/node": None}
    assert "finalizers" not in metadata


def test_a_full_node_that_competes_for_its_claims_leaves_nothing_for_an_assigner() -> None:
    made = cluster(node(zone="a"), drivers=(ZONED,), node_name="n", binder=False)
    made.race = RaceTimes("n", 20.0, 60.0, lambda: 0.0)
    item = begun(made, segment={"zone": "a"}, generation=2, annotations={SELECTED: "n"})
    made.progress.claims.track("uid-c").step = Full()
    metadata = step(made, item).body["metadata"]
    assert metadata["annotations"] == {"volplane.dev/node-uid": None, SELECTED: None, INTENT: None}
    assert metadata["finalizers"] is None
