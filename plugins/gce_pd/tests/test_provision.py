"""Making, finding, listing, adopting and deleting disks."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from volplane import (
    Absent,
    AccessMode,
    AdoptRequest,
    AlreadyExists,
    Asset,
    Attachment,
    DeleteRequest,
    Done,
    ExpandRequest,
    Fence,
    InProgress,
    InvalidArgument,
    ListRequest,
    ModifyRequest,
    NodeIdentity,
    NotFound,
    Ownership,
    RecycleRequest,
    ResourceExhausted,
    Throttled,
    Unavailable,
    Unsupported,
    VolumeInUse,
    VolumeMode,
)
from volplane.cloud import LABELS
from volplane.drivers.parameters import check
from volplane_gce_pd import GcePdBackend
from volplane_gce_pd.parameters import PARAMETERS
from volplane_gce_pd.testing import Behaviour
from volplane_testing.cloud import FaultKind

GIB = 1 << 30
ATTACHED = Attachment(metadata={"disk-size": "10"})
ZONE = "topology.gke.io/zone"
A, B, C = (f"europe-test1-{letter}" for letter in "abc")
KEY = "projects/keys/locations/europe/keyRings/r/cryptoKeys/k"
POOL = f"projects/test-project/zones/{A}/storagePools/pool-1"
HB = {"type": "hyperdisk-balanced"}
REGIONAL = {"type": "pd-ssd", "replication-type": "regional-pd"}


# --- what is made -----------------------------------------------------------------------------------------------


def test_a_claim_gets_a_disk_of_its_zone_with_the_handle_of_the_official_driver(site: Any) -> None:
    asset = site.provision(size=5 * GIB + 1, parameters={"type": "pd-ssd", "csi.storage.k8s.io/fstype": "xfs"})
    assert asset.handle == f"projects/test-project/zones/{A}/disks/pvc-u1"
    assert asset.capacity_bytes == 6 * GIB
    assert asset.node_affinity == ({ZONE: A},)
    assert asset.source.fields == {
        "driver": "pd.csi.storage.gke.io",
        "volumeHandle": asset.handle,
        "fsType": "xfs",
    }
    assert asset.attributes == {"storage.kubernetes.io/csiProvisionerIdentity": "pd.volplane.dev"}
    assert (site.disk.kind, site.disk.size, site.disk.status) == ("pd-ssd", 6, "READY")
    assert json.loads(site.disk.wanted["description"])["kubernetes.io/created-for/pvc/name"] == "data-u1"


def test_the_marks_are_labels_and_are_there_from_the_first_moment(new_site: Any) -> None:
    site = new_site(labels={"team": "a"})
    demand = site.demand(parameters={"labels": "tier=gold"})
    assert isinstance(site.backend.provision(demand), InProgress)
    labels = site.disk.labels
    assert LABELS.owner(labels) == site.owner()
    assert (labels["team"], labels["tier"]) == ("a", "gold")


def test_a_block_volume_has_no_file_system(site: Any) -> None:
    assert "fsType" not in site.provision(volume_mode=VolumeMode.BLOCK).source.fields


def test_everything_a_class_can_ask_for_reaches_compute_engine(new_site: Any) -> None:
    site = new_site(Behaviour(kms_keys={KEY: True}, storage_pools=frozenset({POOL})))
    site.provision(
        parameters={
            **HB,
            "disk-encryption-kms-key": KEY,
            "provisioned-iops-on-create": "4000",
            "provisioned-throughput-on-create": "250Mi",
            "enable-confidential-storage": "true",
            "storage-pools": POOL,
            "resource-tags": "123456/environment/production",
        }
    )
    wanted = site.disk.wanted
    assert wanted["diskEncryptionKey"] == {"kmsKeyName": KEY}
    assert (wanted["provisionedIops"], wanted["provisionedThroughput"]) == ("4000", "250")
    assert wanted["enableConfidentialCompute"] is True
    assert wanted["storagePool"] == POOL
    assert wanted["params"] == {"resourceManagerTags": {"123456/environment": "production"}}


def test_a_regional_disk_can_be_reached_from_both_its_zones(site: Any) -> None:
    asset = site.provision(parameters={"type": "pd-balanced", "replication-type": "regional-pd"})
    assert asset.handle == "projects/test-project/regions/europe-test1/disks/pvc-u1"
    first, second = (segment[ZONE] for segment in asset.node_affinity)
    assert first == A, "the selected node's zone is one of them"
    assert second in (B, C)
    assert site.provision(parameters={"type": "pd-balanced", "replication-type": "regional-pd"}) == asset
    assert site.delete(asset) == Done()
    assert site.fake.disks == {}


def test_a_disk_that_nobody_placed_goes_where_nodes_are(site: Any) -> None:
    nodes = ({ZONE: C}, {ZONE: B})
    zones = {site.provision(uid, segment=None, node_segments=nodes).node_affinity[0][ZONE] for uid in "abcdefgh"}
    assert zones == {B, C}
    regional = {"type": "pd-balanced", "replication-type": "regional-pd"}
    asset = site.provision("r", segment=None, node_segments=({ZONE: C},), parameters=regional)
    places = {segment[ZONE] for segment in asset.node_affinity}
    assert C in places
    assert len(places) == 2, "the second one is without nodes, rather than nowhere"


def test_a_regional_disk_takes_the_zones_that_the_class_allows(site: Any) -> None:
    allowed = ({ZONE: A}, {ZONE: C})
    asset = site.provision(
        parameters={
            "type": "pd-ssd",
            "replication-type": "regional-pd",
            "availability-class": "regional-hard-failover",
        },
        segment={ZONE: C},
        allowed_segments=allowed,
    )
    assert {segment[ZONE] for segment in asset.node_affinity} == {A, C}
    assert asset.attributes["force-attach"] == "true"


@pytest.mark.parametrize(
    ("parameters", "least"),
    [({"type": "hyperdisk-throughput"}, 2_048), ({"replication-type": "regional-pd"}, 200)],
)
def test_a_claim_that_is_too_small_for_its_type_gets_no_larger_disk_unasked(
    site: Any, parameters: Any, least: int
) -> None:
    with pytest.raises(InvalidArgument, match=f"at least {least} GiB; ask for that"):
        site.provision(size=(least - 1) * GIB, parameters=parameters)
    assert site.fake.calls.total() == 1, "the zones"
    assert site.provision(size=least * GIB, parameters=parameters).capacity_bytes == least * GIB


def test_a_small_claim_gets_the_smallest_disk_of_its_type_where_that_is_small(site: Any) -> None:
    assert site.provision(size=1, parameters=HB).capacity_bytes == 4 * GIB


def test_a_shared_block_disk_has_an_access_mode_for_it(site: Any) -> None:
    modes = (AccessMode.READ_WRITE_MANY,)
    site.provision(parameters=HB, access_modes=modes, volume_mode=VolumeMode.BLOCK)
    assert site.disk.wanted["accessMode"] == "READ_WRITE_MANY"


def test_a_disk_can_be_made_from_a_snapshot_and_from_a_disk(site: Any) -> None:
    first = site.provision()
    snapshot = site.snapshot(first)
    assert snapshot.handle == "projects/test-project/global/snapshots/snap-a"
    site.clock.advance(20.0)
    site.provision("u2", source_snapshot=snapshot.handle)
    site.provision("u3", source_volume=first.handle)
    wanted = {disk.name: disk.wanted for disk in site.fake.disks.values()}
    assert wanted["pvc-u2"]["sourceSnapshot"] == snapshot.handle
    assert wanted["pvc-u3"]["sourceDisk"] == first.handle
    with pytest.raises(NotFound, match="snap-b"):
        site.provision("u4", source_snapshot="projects/test-project/global/snapshots/snap-b")


# --- what is refused --------------------------------------------------------------------------------------------

WRONG = [
    ({"type": "pd-standard", "provisioned-iops-on-create": "3000"}, "is 3000: disks of .* no IOPS to choose"),
    ({**HB, "provisioned-iops-on-create": "2999"}, "is 2999: .* 3000 to 160000"),
    ({**HB, "provisioned-throughput-on-create": "9Gi"}, "is 9216 MiB/s: .* 140 to 2400"),
    ({**HB, "provisioned-throughput-on-create": "250"}, "is 250 bytes/s: write 250Mi"),
    ({"type": "pd-extreme", "replication-type": "regional-pd"}, "no regional disks"),
    ({"type": "hyperdisk-balanced-high-availability"}, "needs replication-type"),
    ({"availability-class": "regional-hard-failover"}, "needs replication-type"),
    ({**HB, "enable-confidential-storage": "true"}, "disk-encryption-kms-key"),
    ({"storage-pools": POOL}, "can be in one"),
    ({**HB, "storage-pools": "pool-1"}, "full name"),
    ({**HB, "storage-pools": f"{POOL},{POOL}2"}, "two of zone"),
    ({"access-mode": "READ_WRITE_MANY"}, "is READ_WRITE_MANY: only hyperdisks"),
    ({**HB, "access-mode": "READ_ONLY_MANY"}, "do not have it"),
    ({"labels": "Team=a"}, "lower-case"),
    ({"labels": "team=A"}, "lower-case"),
    ({"labels": "volplane-cluster=x"}, "reserved"),
    ({"labels": "goog-gke-volume="}, "reserved"),
    ({"labels": ",".join(f"k{n}=v" for n in range(59))}, "at most 58"),
    ({"resource-tags": "environment=prod"}, "parent/key/value"),
    ({"resource-tags": "p/team/a,p/team/b"}, "'p/team' has the values 'a' and 'b', and can have one"),
]


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"type": "pd-fast"}, "'type' is 'pd-fast', expected one of pd-standard"),
        ({"replication-type": "three"}, "'replication-type' is 'three', expected one of"),
        ({"availability-class": "best"}, "'availability-class' is 'best', expected one of"),
        ({"disk-encryption-kms-key": "my-key"}, "'disk-encryption-kms-key' is 'my-key', expected text that matches"),
        ({**HB, "provisioned-iops-on-create": "many"}, "is 'many', expected a whole number"),
        ({**HB, "provisioned-throughput-on-create": "fast"}, "is 'fast', expected a size"),
        ({**HB, "enable-confidential-storage": "perhaps"}, "is 'perhaps', expected true or false"),
        ({"csi.storage.k8s.io/fstype": "zfs"}, "is 'zfs', expected one of"),
        ({"type": "pd-ssd", "data-cache-size": "100Gi"}, "unknown parameter 'data-cache-size'"),
        ({"enable-multi-zone-provisioning": "true"}, "unknown parameter 'enable-multi-zone-provisioning'"),
    ],
)
def test_a_parameter_of_the_wrong_kind_is_named_with_its_value_and_what_would_be_right(
    parameters: dict[str, str], told: str
) -> None:
    [flaw] = check(PARAMETERS, parameters, "parameter")[1]
    assert told in flaw


@pytest.mark.parametrize(("parameters", "told"), WRONG, ids=[str(row[0])[:60] for row in WRONG])
def test_a_wrong_parameter_is_refused_before_anything_is_made(site: Any, parameters: Any, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        site.validate(**parameters)
    with pytest.raises(InvalidArgument, match=told):
        site.provision(parameters=parameters)
    assert site.fake.calls["disks.insert"] == 0


def test_iops_must_fit_the_size(site: Any) -> None:
    with pytest.raises(InvalidArgument, match="at most 5000, or for a larger disk"):
        site.provision(size=10 * GIB, parameters={**HB, "provisioned-iops-on-create": "6000"})


def test_a_size_that_no_disk_has_is_refused(site: Any) -> None:
    with pytest.raises(InvalidArgument, match="at most 65536 GiB"):
        site.provision(size=1 << 50)
    with pytest.raises(InvalidArgument, match="more than the limit"):
        site.provision(size=GIB + 1, limit_bytes=GIB + 2)


def test_access_modes_that_no_disk_has_are_refused(site: Any) -> None:
    with pytest.raises(Unsupported, match="ReadWriteMany"):
        site.provision(access_modes=(AccessMode.READ_WRITE_MANY,))
    with pytest.raises(Unsupported, match="ReadOnlyMany"):
        site.provision(access_modes=(AccessMode.READ_ONLY_MANY,))


def test_a_zone_of_another_region_is_refused(site: Any) -> None:
    with pytest.raises(InvalidArgument, match="not in region"):
        site.provision(segment={ZONE: "us-test1-a"})


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"region": "mars-1"}, "has no zone in 'mars-1'"),
        ({"region": "europe-test1-b"}, "option region: 'europe-test1-b' is a zone; its region is 'europe-test1'"),
        ({"zones": ("europe-test1-z",)}, "is not one of"),
        ({"zones": ("us-test1-a",)}, "not in region"),
        ({"labels": {"Team": "x"}}, "lower-case"),
    ],
)
def test_a_wrong_option_is_told_at_the_start(new_site: Any, options: Any, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        new_site(**options)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"csi_driver_name": ""}, "'csi_driver_name' is '', expected text that matches"),
        ({"csi_driver_name": "pd.csi.Example.com"}, "is 'pd.csi.Example.com', expected text that matches"),
        ({"snapshot_projects": "test-project,Other"}, "'snapshot_projects' is 'test-project,Other', expected a comma"),
    ],
)
def test_an_option_of_the_wrong_form_is_named_with_its_value(options: dict[str, str], told: str) -> None:
    given = {"project": "test-project", "region": "europe-test1", **options}
    [flaw] = check(GcePdBackend.options_schema, given, "option")[1]
    assert told in flaw


def test_a_project_that_does_not_exist_is_told_at_the_start(new_site: Any) -> None:
    with pytest.raises(NotFound, match="projects/another-one"):
        new_site(project="another-one")


# --- once, whatever happens -------------------------------------------------------------------------------------


def test_the_operation_is_saved_and_a_new_process_goes_on_waiting_for_it(site: Any) -> None:
    demand = site.demand()
    result = site.backend.provision(demand)
    assert isinstance(result, InProgress)
    assert result.state["operation"].startswith(f"zones/{A}/operations/")
    site.again()
    site.clock.advance(2.0)
    resumed = replace(demand, context=replace(demand.context, state=dict(result.state)))
    assert isinstance(site.finish(site.backend.provision, resumed), Asset)
    assert site.fake.calls["disks.insert"] == 1


def test_an_operation_that_is_forgotten_is_replaced_by_a_look_at_the_disk(new_site: Any) -> None:
    site = new_site(Behaviour(operation_kept=1.0))
    result = site.backend.provision(site.demand())
    site.again()
    site.clock.advance(100.0)
    demand = site.demand()
    resumed = replace(demand, context=replace(demand.context, state=dict(result.state)))
    assert isinstance(site.finish(site.backend.provision, resumed), Asset)
    assert site.fake.calls["disks.insert"] == 1


@pytest.mark.parametrize("kind", [FaultKind.LOSE, FaultKind.DROP, FaultKind.LATE, FaultKind.CLOSE, FaultKind.LIE])
@pytest.mark.parametrize("crash", [False, True])
def test_an_insert_without_an_answer_makes_no_second_disk(site: Any, kind: FaultKind, crash: bool) -> None:
    site.fault("disks.insert", kind, seconds=20.0, code="backendError")
    with pytest.raises(Unavailable):
        site.provision()
    if crash:
        site.again()
    site.provision()
    site.clock.advance(120.0)
    assert len(site.fake.disks) == 1
    assert len({operation.target for operation in site.fake.operations if operation.method == "disks.insert"}) == 1
    assert len([operation for operation in site.fake.operations if operation.method == "disks.insert"]) == 1


def test_a_request_id_is_used_again_until_its_operation_has_failed(site: Any) -> None:
    ids: list[str] = []
    site.refuse("disks.insert", "backendError", when=lambda given: bool(ids.append(given["requestId"])) or True)
    site.fault("disks.insert", FaultKind.FAIL, code="INTERNAL_ERROR", skip=0, when=_noting(ids))
    for _ in range(2):
        with pytest.raises(Unavailable):
            site.provision(context=site.context(state=dict(site.states[-1]) if site.states else {}))
    site.fault("disks.insert", FaultKind.LOSE, when=_noting(ids, match=False))
    site.provision(context=site.context(state=dict(site.states[-1])))
    assert len(ids) == 3
    assert ids[0] == ids[1], "nothing was started by the first call"
    assert ids[2] != ids[1], "the operation of the second one has failed"


def _noting(ids: list[str], *, match: bool = True) -> Any:
    def note(given: Any) -> bool:
        if given["requestId"] not in ids[1:]:
            ids.append(given["requestId"])
        return match

    return note


def test_another_leader_makes_a_request_of_its_own(site: Any) -> None:
    """Its fence is a label of the disk, and a requestId that was used for another body is refused."""
    site.fail("disks.insert", "INTERNAL_ERROR")
    site.backend.provision(site.demand(context=site.context(fence="1/a/lease")))
    site.clock.advance(5.0)
    asset = site.again().provision(context=site.context(fence="2/b/lease"))
    assert isinstance(asset, Asset)
    assert LABELS.term(site.disk.labels) == Fence(2, "", "lease")


def test_a_failed_operation_is_told_and_the_next_attempt_makes_the_disk(site: Any) -> None:
    site.fail("disks.insert", "INTERNAL_ERROR", "it broke")
    with pytest.raises(Unavailable, match="it broke") as raised:
        site.provision()
    assert raised.value.nothing_done
    assert site.fake.disks == {}
    site.provision(context=site.context(state=dict(site.states[-1])))
    assert site.disk.status == "READY"
    assert {"attempt": 1} in site.states, "its number is saved before it is used"


def test_a_disk_that_is_there_is_taken_if_it_answers_the_demand(site: Any) -> None:
    asset = site.provision()
    assert site.again().provision() == asset
    assert site.fake.calls["disks.insert"] == 1
    with pytest.raises(AlreadyExists, match="size 10 instead of 20"):
        site.provision(size=20 * GIB)
    with pytest.raises(AlreadyExists, match=f"in {A}, but {B} is asked for"):
        site.provision(segment={ZONE: B})


def test_a_disk_of_another_cluster_under_our_name_is_not_touched(site: Any) -> None:
    site.provision()
    site.disk.labels[LABELS.cluster] = "cluster-2"
    with pytest.raises(AlreadyExists, match="cluster 'cluster-2'"):
        site.again().provision()
    with pytest.raises(AlreadyExists, match="cluster 'cluster-2'"):
        site.delete(f"projects/test-project/zones/{A}/disks/pvc-u1")
    site.disk.labels.clear()
    with pytest.raises(AlreadyExists, match="carries no marks"):
        site.again().provision()
    assert site.disk.status == "READY"


def test_a_name_that_is_taken_meanwhile_is_read_and_compared(site: Any) -> None:
    first = site.demand()
    assert isinstance(site.backend.provision(first), InProgress)
    site.fake.forget_operations()
    second = site.again()
    second.refuse("disks.aggregatedList", "rateLimitExceeded")
    with pytest.raises(Throttled):
        second.provision()
    assert isinstance(second.provision(), Asset)
    assert len(site.fake.disks) == 1


def test_a_disk_that_somebody_deletes_meanwhile_is_made_again(site: Any) -> None:
    result = site.backend.provision(site.demand())
    site.clock.advance(5.0)
    site.fake.remove_disk(f"zones/{A}", "pvc-u1")
    asset = site.provision(context=site.context(state=dict(result.state)))
    assert isinstance(asset, Asset)
    assert site.fake.calls["disks.insert"] == 2


def test_a_disk_that_stays_creating_is_told(site: Any) -> None:
    site.fault("disks.insert", FaultKind.STALL)
    demand = site.demand()
    result = site.backend.provision(demand)
    site.fake.forget_operations()
    with pytest.raises(Unavailable, match="has been making pvc-u1") as raised:
        site.provision(context=site.context(state=dict(result.state)))
    assert raised.value.code == "CREATING"


# --- places -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["operation", "http"])
def test_a_zone_without_room_lets_the_scheduler_choose_another_node(new_site: Any, shape: str) -> None:
    site = new_site(Behaviour(stock_outs=frozenset({A}), shape=shape))
    site.clock.advance(61.0)  # Calls of an earlier process have arrived.
    with pytest.raises(ResourceExhausted, match="does not have enough resources") as raised:
        site.provision()
    assert (raised.value.reschedule, raised.value.nothing_done, raised.value.scope) == (True, True, "zone")
    assert site.fake.disks == {}


@pytest.mark.parametrize("shape", ["operation", "http"])
def test_without_a_chosen_node_another_zone_is_tried_at_once(new_site: Any, shape: str) -> None:
    site = new_site(Behaviour(shape=shape))
    site.clock.advance(61.0)
    first = site.provision("u0", segment=None).node_affinity[0][ZONE]
    site.delete(f"projects/test-project/zones/{first}/disks/pvc-u0", "u0")
    site.fake.behave(stock_outs=frozenset({A, B}))
    asset = site.provision(segment=None)
    assert asset.node_affinity == ({ZONE: C},)
    assert len(site.fake.disks) == 1


DYNAMIC = {"type": "dynamic", "provisioned-iops-on-create": 3000, "use-allowed-disk-topology": True}


def taking(*types: str) -> NodeIdentity:
    return NodeIdentity(name="node-a", labels={f"disk-type.gke.io/{name}": "true" for name in types})


@pytest.mark.parametrize(
    ("node", "more", "kind"),
    [
        (taking("hyperdisk-balanced"), {}, "hyperdisk-balanced"),
        (taking("pd-balanced", "pd-ssd"), {}, "pd-balanced"),
        (taking("pd-balanced", "hyperdisk-balanced"), {}, "hyperdisk-balanced"),
        (taking("pd-balanced", "hyperdisk-balanced"), {"disk-type-preference": "pd-type"}, "pd-balanced"),
        (taking("pd-ssd"), {"pd-type": "pd-ssd"}, "pd-ssd"),
        (taking(), {"hyperdisk-type": "hyperdisk-balanced"}, "hyperdisk-balanced"),
        (None, {}, "hyperdisk-balanced"),
    ],
)
def test_a_dynamic_class_makes_the_type_that_the_selected_node_takes(
    site: Any, node: NodeIdentity | None, more: Any, kind: str
) -> None:
    asset = site.provision(parameters={**DYNAMIC, **more}, selected_node=node)
    assert (site.disk.kind, site.disk.iops) == (kind, 3000 if kind == "hyperdisk-balanced" else 0)
    assert asset.node_affinity == ({ZONE: A, f"disk-type.gke.io/{kind}": "true"},)
    again = site.provision(parameters={**DYNAMIC, **more}, selected_node=taking("pd-standard"))
    assert again == asset, "the type that was made stays, whatever the node's labels become"


def test_types_of_a_dynamic_class_need_one(site: Any) -> None:
    with pytest.raises(InvalidArgument, match="parameter pd-type is 'pd-ssd': it needs type: dynamic"):
        site.provision(parameters={"pd-type": "pd-ssd"})
    source = site.provision(parameters={"type": "pd-balanced"})
    assert site.provision("u2", source_volume=source.handle, parameters={"type": "dynamic"}).handle.endswith("pvc-u2")
    assert site.fake.disks[f"zones/{A}", "pvc-u2"].kind == "pd-balanced", "that of its source"


@pytest.mark.parametrize("key", ["topology.gke.io/zone", "topology.kubernetes.io/zone"])
def test_both_keys_of_the_official_drivers_topology_name_a_zone(site: Any, key: str) -> None:
    asset = site.provision(segment=None, allowed_segments=({key: B},))
    assert asset.node_affinity == ({ZONE: B},)


def test_a_zone_that_is_down_is_left_out_and_does_not_stop_the_driver(new_site: Any) -> None:
    site = new_site(Behaviour(zone_states={A: "DOWN"}, unreachable=frozenset({A})))
    zones = {site.provision(f"u{n}", segment=None).node_affinity[0][ZONE] for n in range(8)}
    assert zones == {B, C}


def test_nothing_is_made_in_a_zone_whose_disks_cannot_be_read(new_site: Any) -> None:
    for partial_lists in (True, False):
        site = new_site(Behaviour(unreachable=frozenset({A}), partial_lists=partial_lists))
        with pytest.raises(Unavailable, match="cannot be read now"):
            site.provision()
        assert site.fake.calls["disks.insert"] == 0


@pytest.mark.parametrize("partial_lists", [True, False])
def test_a_zone_that_does_not_answer_stops_no_other_one(new_site: Any, partial_lists: bool) -> None:
    site = new_site(Behaviour(partial_lists=partial_lists), attach=True)
    there = {uid: site.provision(uid, segment={ZONE: zone}) for uid, zone in (("u1", A), ("u2", B), ("u3", C))}
    grown = [
        ExpandRequest(context=site.context(), volume=site.identity(there[uid], uid), capacity_bytes=20 << 30)
        for uid in ("u3", "u1", "u2")
    ]
    site.fake.behave(unreachable=frozenset({C}))
    site.clock.advance(1.0)
    assert site.provision("u4", segment={ZONE: A}).handle.endswith(f"{A}/disks/pvc-u4")
    assert site.attach(there["u1"], site.node(site.vm())) == ATTACHED
    for _ in range(40):  # Callers of all three zones, one after another, as the core's threads.
        for number, request in enumerate(grown):
            try:
                result = site.backend.expand(request)
            except Unavailable:
                continue
            if isinstance(result, InProgress):
                state = dict(result.state)
                grown[number] = replace(request, context=replace(request.context, state=state))
        site.clock.advance(0.25)
    assert {disk.name: disk.size for disk in site.fake.disks.values()} == {
        "pvc-u1": 20,
        "pvc-u2": 20,
        "pvc-u3": 10,
        "pvc-u4": 10,
    }
    with pytest.raises(Unavailable):
        site.delete(there["u3"], "u3")
    assert len(site.fake.disks) == 4


# --- finding, listing, adopting ---------------------------------------------------------------------------------


def test_find_sees_a_disk_that_is_still_being_made_and_only_the_own_one(site: Any) -> None:
    assert site.find() == Absent()
    site.backend.provision(site.demand())
    assert site.find().handle.endswith("/disks/pvc-u1")
    assert site.find(generation=2) == Absent()


def test_a_listing_has_pages_and_no_disks_of_others(new_site: Any) -> None:
    site = new_site(Behaviour(max_results=2))
    for number in range(5):
        site.provision(f"u{number}", parameters=REGIONAL if number == 0 else {})
    with site.fake.locked_state() as project:
        project.disks[f"zones/{A}", "by-hand"] = replace_disk(site, "by-hand")
    assert sorted(each.name for each in site.listed()) == [f"pvc-u{number}" for number in range(5)]
    assert all(each.owner.cluster_id == "cluster-1" for each in site.listed())


def replace_disk(site: Any, name: str) -> Any:
    disk = site.fake.disks[f"zones/{A}", "pvc-u1"]
    return type(disk)(**{**{field: getattr(disk, field) for field in disk.__slots__}, "name": name, "labels": {}})


def test_a_listing_that_lacks_a_zone_is_an_error_that_names_it(site: Any) -> None:
    site.provision()
    site.fake.behave(unreachable=frozenset({B}))
    with pytest.raises(Unavailable, match=f"disks of {B} cannot be read now"):
        site.listed()
    with pytest.raises(Unavailable, match=B):
        site.find("u2")
    assert site.find("u1").handle.endswith(f"{A}/disks/pvc-u1")


def test_two_thousand_disks_are_listed_page_by_page(site: Any) -> None:
    site.provision()
    disk = site.disk
    with site.fake.locked_state() as project:
        for number in range(2_000):
            name = f"pvc-n{number}"
            project.disks[f"zones/{A}", name] = type(disk)(
                **{**{field: getattr(disk, field) for field in disk.__slots__}, "name": name}
            )
    assert len(site.listed()) == 2_001
    assert site.fake.calls["disks.aggregatedList"] == 1 + 5


def test_adoption_replaces_the_marks_of_the_former_cluster(site: Any) -> None:
    asset = site.provision()
    former = Ownership(cluster_id="before", claim_uid="u1", volume_name="pvc-u1")
    site.disk.labels[LABELS.cluster] = "before"
    with pytest.raises(Throttled, match="being marked"):
        site.backend.adopt(site.adoption(asset, former, fence="3/me/lease"))
    site.clock.advance(1.0)
    assert site.backend.adopt(site.adoption(asset, former, fence="3/me/lease")) == Done()
    assert LABELS.owner(site.disk.labels) == site.owner()
    assert LABELS.term(site.disk.labels) == Fence(3, "", "lease")
    request = site.adoption(asset, former)
    stranger = replace(request, volume=replace(request.volume, owner=site.owner("u9")))
    with pytest.raises(AlreadyExists, match="belongs to pvc-u1 of cluster 'cluster-1'"):
        site.backend.adopt(stranger)


@pytest.mark.parametrize("by_label", [False, True])
def test_disks_of_the_official_driver_are_listed_by_one_of_its_name_marked_and_given_back(
    site: Any, by_label: bool
) -> None:
    asset, official = site.provision(), "pd.csi.storage.gke.io"
    written = {"kubernetes.io/created-for/pv/name": "pvc-u1", "storage.gke.io/created-by": official}
    site.disk.labels = {"goog-gke-volume": "", "team": "a"} if by_label else {"team": "a"}
    site.disk.wanted["description"] = "" if by_label else json.dumps(written)
    with site.fake.locked_state() as project:
        boot = replace_disk(site, "boot")
        boot.wanted = {}
        project.disks[f"zones/{A}", "boot"] = boot
    context = site.context(driver=official)
    assert site.listed() == []
    (listed,) = site.backend.list_assets(ListRequest(context=context)).assets
    assert (listed.handle, listed.owner.cluster_id, listed.owner.volume_name) == (asset.handle, official, "pvc-u1")
    disk = site.fake.disks[f"zones/{A}", "pvc-u1"]

    def adopt(request: AdoptRequest) -> None:
        with pytest.raises(Throttled, match="being marked"):
            site.backend.adopt(request)
        site.clock.advance(1.0)
        assert site.backend.adopt(request) == Done()

    with pytest.raises(AlreadyExists, match="carries no marks"):
        site.expand(asset, 20 * GIB)
    take = AdoptRequest(context=context, volume=site.identity(asset), former=listed.owner)
    adopt(take)
    assert (LABELS.owner(disk.labels), disk.labels["team"]) == (site.owner(), "a")
    assert site.expand(asset, 20 * GIB).capacity_bytes == 20 * GIB
    adopt(replace(take, volume=site.identity(asset, owner=listed.owner), former=site.owner()))
    assert LABELS.owner(disk.labels) == listed.owner
    with pytest.raises(AlreadyExists, match=r"in cluster 'pd.csi.storage.gke.io'"):
        site.delete(asset)


@pytest.mark.parametrize(
    "description", ["[" * 2_000, "{", '"text"', '{"storage.gke.io/created-by": ["pd.csi.storage.gke.io"]}', "9" * 5_000]
)
def test_a_description_that_nobody_can_read_stops_no_listing_and_no_adoption(site: Any, description: str) -> None:
    asset, context = site.provision(), site.context(driver="pd.csi.storage.gke.io")
    with site.fake.locked_state() as project:
        odd = replace_disk(site, "odd")
        odd.wanted, odd.labels = {"description": description}, {}
        project.disks[f"zones/{A}", "odd"] = odd
    (listed,) = site.backend.list_assets(ListRequest(context=context)).assets
    assert listed.handle == asset.handle
    site.fake.disks[f"zones/{A}", "pvc-u1"].wanted["description"] = description
    site.clock.advance(1.0)
    former = replace(site.owner(), cluster_id="before")
    with pytest.raises(AlreadyExists, match="not to cluster 'before'"):
        site.backend.adopt(AdoptRequest(context=context, volume=site.identity(asset, owner=former), former=former))


@pytest.mark.parametrize("name", [["pvc-a"], 7, None, "", "pvc-\ud800"])
def test_a_disk_of_the_official_driver_whose_description_names_no_volume_has_the_name_of_the_disk(
    site: Any, name: object
) -> None:
    asset, official = site.provision(), "pd.csi.storage.gke.io"
    written = {"storage.gke.io/created-by": official, "kubernetes.io/created-for/pv/name": name}
    site.disk.wanted["description"], site.disk.labels = json.dumps(written), {}
    (listed,) = site.backend.list_assets(ListRequest(context=site.context(driver=official))).assets
    assert (listed.handle, listed.owner.volume_name) == (asset.handle, "pvc-u1")


def test_labels_are_changed_only_by_who_has_read_them(site: Any) -> None:
    asset = site.provision()
    former = Ownership(cluster_id="before", claim_uid="u1", volume_name="pvc-u1")
    site.disk.labels[LABELS.cluster] = "before"
    site.refuse("disks.setLabels", "conditionNotMet")
    with pytest.raises(Unavailable, match="changed meanwhile") as raised:
        site.backend.adopt(site.adoption(asset, former))
    assert raised.value.retry_after == 1.0


# --- deleting ---------------------------------------------------------------------------------------------------


def test_a_deleted_disk_is_gone_and_deleting_it_again_is_done(site: Any) -> None:
    asset = site.provision()
    assert site.delete(asset) == Done()
    assert site.fake.disks == {}
    assert site.delete(asset) == Done()
    assert site.delete("projects/other-project/zones/z-a/disks/d") == Done()
    assert site.fake.calls["disks.delete"] == 1


def test_an_attached_disk_is_not_deleted_and_the_node_is_named(site: Any) -> None:
    asset, vm = site.provision(), site.vm()
    site.attach(asset, site.node(vm))
    with pytest.raises(VolumeInUse, match="attached to node-a"):
        site.delete(asset)
    assert site.fake.calls["disks.delete"] == 0


@pytest.mark.parametrize("kind", [FaultKind.LOSE, FaultKind.DROP, FaultKind.LATE])
def test_a_deletion_without_an_answer_is_resolved(site: Any, kind: FaultKind) -> None:
    asset = site.provision()
    site.fault("disks.delete", kind, seconds=5.0)
    with pytest.raises(Unavailable):
        site.delete(asset)
    assert site.delete(asset) == Done()
    assert site.fake.disks == {}


def test_a_deletion_that_failed_is_told_and_tried_anew(site: Any) -> None:
    asset = site.provision()
    site.states.clear()
    site.fail("disks.delete", "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE", "it is used")
    with pytest.raises(VolumeInUse, match="it is used"):
        site.delete(asset)
    assert site.delete(asset) == Done()


def test_a_static_disk_is_deleted_only_if_nobody_marked_it(site: Any) -> None:
    asset = site.provision()
    with pytest.raises(AlreadyExists, match="made by a driver"):
        site.delete(asset, owner=None)
    site.disk.labels.clear()
    site.clock.advance(1.0)
    assert site.delete(asset, owner=None) == Done()


@pytest.mark.parametrize("hook", ["delete", "recycle", "expand", "modify"])
def test_a_static_disk_that_an_official_driver_made_is_left_to_it(site: Any, hook: str) -> None:
    asset = site.provision(parameters=HB)
    written = {"storage.gke.io/created-by": "pd.csi.storage.gke.io", "kubernetes.io/created-for/pv/name": "pvc-other"}
    site.disk.labels = {"team": "a"}
    site.disk.wanted["description"] = json.dumps(written)
    site.clock.advance(1.0)
    context, volume = site.context(), site.identity(asset, owner=None)
    requests = {
        "delete": DeleteRequest(context=context, volume=volume),
        "recycle": RecycleRequest(context=context, volume=volume),
        "expand": ExpandRequest(context=context, volume=volume, capacity_bytes=20 * GIB),
        "modify": ModifyRequest(context=context, volume=volume, parameters={"iops": "4000"}),
    }
    with pytest.raises(AlreadyExists, match=r"created-for/pv/name='pvc-other': it was made by a driver"):
        site.finish(getattr(site.backend, hook), requests[hook])
    assert (site.disk.status, site.disk.size) == ("READY", 10)


def test_a_former_leader_deletes_nothing(site: Any) -> None:
    asset = site.provision(context=site.context(fence="5/b/lease"))
    late = DeleteRequest(context=site.context(fence="4/a/lease"), volume=site.identity(asset))
    with pytest.raises(Unavailable, match=r"former leader .* of term 4 "):
        site.finish(site.again().backend.delete, late)
    assert site.disk.status == "READY"


def test_it_owns_the_disks_of_its_project_and_region(site: Any) -> None:
    csi = {"driver": "pd.csi.storage.gke.io"}
    assert site.owns("csi", **csi, volumeHandle=f"projects/test-project/zones/{A}/disks/d")
    assert site.owns("csi", **csi, volumeHandle="projects/test-project/regions/europe-test1/disks/d")
    assert not site.owns("csi", **csi, volumeHandle="projects/test-project/zones/us-test1-a/disks/d")
    assert not site.owns("csi", **csi, volumeHandle="projects/other/zones/europe-test1-a/disks/d")
    assert not site.owns("csi", driver="ebs.csi.aws.com", volumeHandle=f"projects/test-project/zones/{A}/disks/d")
    assert not site.owns("gcePersistentDisk", pdName="d")
