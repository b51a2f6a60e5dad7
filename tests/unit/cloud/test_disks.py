"""What backends for the disks of a cloud share: a toy cloud behind `DiskBackend`, and the parts of operations."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, ClassVar

import pytest

from volplane import (
    Absent,
    AdoptRequest,
    AlreadyExists,
    AssetPage,
    Attachment,
    AttachRequest,
    BackendError,
    ClaimIdentity,
    Context,
    DeleteRequest,
    DeleteSnapshotRequest,
    DescribeRequest,
    DetachRequest,
    Done,
    Fenced,
    InProgress,
    InvalidArgument,
    ListRequest,
    NodeIdentity,
    NotFound,
    Ownership,
    Param,
    ParameterSchema,
    PodScrub,
    ProvisionRequest,
    RecycleRequest,
    ResourceExhausted,
    Snapshot,
    SnapshotIdentity,
    SnapshotOwnership,
    SnapshotPage,
    SnapshotRequest,
    StartRequest,
    Unavailable,
    Unsupported,
    VolumeIdentity,
    VolumeInUse,
    VolumeMode,
    VolumeSource,
    read_parameters,
)
from volplane.cloud import (
    GIB,
    LABELS,
    TAGS,
    CloudError,
    DiskAccount,
    DiskBackend,
    DiskOperations,
    DiskOptions,
    Fences,
    HookCall,
    NodeNames,
    OfficialDriver,
    RateLimiter,
    Refusal,
    RetryLater,
    SnapshotLooks,
    StatePoller,
    Zones,
    ZoneStates,
    csi_asset,
    csi_source,
    pod_scrub,
    refuse_other_snapshot,
    refuse_other_zone,
    refuse_smaller,
    refuse_unusable,
    size_in_gib,
    zones_for,
)
from volplane.drivers import contract

LABEL = "topology.kubernetes.io/zone"
CONTEXT = Context(driver="toy.example.com", cluster_id="here", timeout=10.0)
OWNER = Ownership(cluster_id="here", claim_uid="u1", volume_name="pvc-u1")
REQUEST = ProvisionRequest(
    context=CONTEXT,
    name="pvc-u1",
    capacity_bytes=GIB,
    owner=OWNER,
    claim=ClaimIdentity(namespace="default", name="data", uid="u1"),
)


@dataclass(frozen=True, kw_only=True)
class Options(DiskOptions):
    csi_driver_name: Annotated[str, Param("The driver.")] = "csi.example.com"
    zone_label: Annotated[str, Param("The label.")] = LABEL
    mutations_per_second: Annotated[int, Param("Calls a second.", minimum=1)] = 5
    mutation_burst: Annotated[int, Param("Calls at once.", minimum=1)] = 10


OPTIONS = Options(region="r")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_backend_has_no_hooks_for_operations_that_it_does_not_give() -> None:
    whole = Toy({"region": "r"})
    assert {"recycle", "modify", "create_snapshot"} <= hooks_of(whole)
    given = {each.name: getattr(whole.account().operations, each.name) for each in fields(DiskOperations)}
    for missing in ("scrub", "modify", "create_snapshot", "delete_snapshot", "find_snapshot", "list_snapshots"):
        del given[missing]

    class Plain(Toy):
        def __init__(self, options: Any) -> None:
            DiskBackend.__init__(
                self,
                options,
                settings=OPTIONS,
                connect=lambda _settings: whole.account()._replace(operations=DiskOperations(**given)),
                nodes=whole.nodes,
                clock=whole.clock,
            )

    plain = Plain({"region": "r"})
    hidden = {"recycle", "modify", "create_snapshot", "delete_snapshot", "find_snapshot", "list_snapshots"}
    assert hooks_of(plain) == hooks_of(whole) - hidden


def hooks_of(backend: object) -> set[str]:
    return {mark.hook for mark in contract.marks(backend)}


class Toy(DiskBackend):
    options_schema: ClassVar[ParameterSchema] = ParameterSchema.of(Options)
    distribution: ClassVar[str] = "volplane"
    class_parameters: ClassVar[ParameterSchema] = ParameterSchema()
    settle_seconds: ClassVar[float] = 7.0
    largest_gib: ClassVar[int] = 64

    def __init__(self, options: Any) -> None:
        self.clock = Clock()
        self.busy: Exception | None = None
        self.closed = False
        nodes = self.nodes = NodeNames(lambda node: node.instance_id or None)
        settings = read_parameters(Options, options)

        def answer(value: Any) -> Any:
            def work(*_arguments: object) -> Any:
                if self.busy is not None:
                    raise self.busy
                return value

            return work

        self.asset = csi_asset(
            settings,
            "disk-1",
            csi_source(settings, "disk-1", VolumeMode.FILESYSTEM, "ext4"),
            size_gib=1,
            zones=("r-a",),
            driver="toy.example.com",
        )
        super().__init__(
            options,
            settings=settings,
            connect=lambda _settings: DiskAccount(
                DiskOperations(
                    find=answer(self.asset),
                    provision=answer(self.asset),
                    delete=answer(Done()),
                    scrub=answer(PodScrub()),
                    expand=answer(self.asset),
                    modify=answer(Done()),
                    attach=answer(Attachment()),
                    detach=answer(Done()),
                    create_snapshot=answer(Snapshot(handle="s", size_bytes=GIB, ready=True)),
                    delete_snapshot=answer(Done()),
                    find_snapshot=answer(Snapshot(handle="s", size_bytes=GIB, ready=True)),
                    list_snapshots=answer(SnapshotPage(snapshots=())),
                    list_page=answer(AssetPage(assets=())),
                    inspect=answer(Absent()),
                    adopt=answer(Done()),
                    error=lambda error, doing: Unavailable(f"cannot {doing}: {error.message}", code=error.code),
                    close=lambda: setattr(self, "closed", True),
                ),
                Zones(
                    lambda: ZoneStates({"r-a": "up"}, ["r-a"]), wanted=(), up=("up",), assets="disks", clock=self.clock
                ),
            ),
            nodes=nodes,
            clock=self.clock,
        )


def volume(**fields: Any) -> VolumeIdentity:
    source = VolumeSource(kind="csi", fields={"driver": "csi.example.com", "volumeHandle": "disk-1"})
    known: dict[str, Any] = {"name": "pvc-u1", "uid": "1", "handle": "disk-1", "source": source, "capacity_bytes": GIB}
    return VolumeIdentity(**{**known, "owner": OWNER, **fields})


def test_the_driver_describes_itself_by_its_options() -> None:
    info = Toy({"region": "r", "attach": True, "attach_limit": 3}).describe(DescribeRequest(context=CONTEXT))
    assert (info.csi_driver_name, info.topology_keys, info.attach_required) == ("csi.example.com", (LABEL,), True)
    assert (info.minimum_bytes, info.maximum_bytes, info.max_attached_per_node) == (GIB, 64 * GIB, 3)
    assert info.settle_seconds == 7.0


def test_a_hook_holds_no_thread_and_translates_the_errors_of_the_cloud() -> None:
    toy = Toy({"region": "r"})
    toy.start(StartRequest(context=CONTEXT))
    assert toy.provision(REQUEST) == toy.asset
    toy.busy = RetryLater(2.0, {"step": 1})
    assert toy.provision(REQUEST) == InProgress(retry_after=2.0, state={"step": 1})
    assert toy.delete(DeleteRequest(context=CONTEXT, volume=volume())) == InProgress(retry_after=2.0, state={"step": 1})
    toy.busy = CloudError("make", "TooMany", "too many calls")
    with pytest.raises(Unavailable, match="cannot make a disk for pvc-u1: too many calls") as caught:
        toy.provision(REQUEST)
    assert caught.value.code == "TooMany"
    with pytest.raises(BackendError, match="cannot list the disks"):
        toy.list_assets(ListRequest(context=CONTEXT))


def test_the_names_of_nodes_are_kept_for_later_messages() -> None:
    toy = Toy({"region": "r"})
    node = NodeIdentity(name="node-1", instance_id="vm-1")
    assert toy.nodes("vm-1") == "vm-1"
    toy.attach(AttachRequest(context=CONTEXT, volume=volume(), node=node))
    toy.detach(DetachRequest(context=CONTEXT, volume=volume(), node=NodeIdentity(name="gone", instance_id="")))
    assert toy.nodes("vm-1") == "node-1"


def test_an_asset_is_where_its_zones_are() -> None:
    source = csi_source(OPTIONS, "disk-1", VolumeMode.BLOCK, "ext4")
    assert source.fields == {"driver": "csi.example.com", "volumeHandle": "disk-1"}
    asset = csi_asset(
        OPTIONS, "disk-1", source, size_gib=2, zones=("r-a", "r-b"), driver="toy", attributes={"force": "true"}
    )
    assert asset.capacity_bytes == 2 * GIB
    assert asset.node_affinity == ({LABEL: "r-a"}, {LABEL: "r-b"})
    assert asset.attributes == {"force": "true", "storage.kubernetes.io/csiProvisionerIdentity": "toy"}
    in_tree = VolumeSource(kind="awsElasticBlockStore", fields={"volumeID": "vol-1"})
    assert csi_asset(OPTIONS, "vol-1", in_tree, size_gib=2, zones=("r-a",), driver="toy").attributes == {}
    assert [size_in_gib(size) for size in (1, GIB, GIB + 1)] == [1, 1, 2]


def test_a_pod_erases_only_what_it_can_mount_and_what_is_free() -> None:
    request = RecycleRequest(context=CONTEXT, volume=volume())
    assert pod_scrub(request, "disk-1", (), "InUse") == PodScrub()
    with pytest.raises(VolumeInUse, match="while it is attached to node-1, node-2"):
        pod_scrub(request, "disk-1", ("node-1", "node-2"), "InUse")
    windows = VolumeSource(kind="csi", fields={"fsType": "ntfs"})
    with pytest.raises(Unsupported, match="file system ntfs"):
        pod_scrub(replace(request, volume=volume(source=windows)), "disk-1", (), "InUse")


def zones(count: int = 1, region: tuple[str, ...] = ("r-a", "r-b", "r-c"), **fields: Any) -> tuple[str, ...]:
    return zones_for(replace(REQUEST, **fields), LABEL, region, count=count)


def test_zones_are_those_of_the_node_then_of_the_class_then_of_nodes_then_all() -> None:
    node, allowed = {LABEL: "r-b"}, ({LABEL: "r-c"}, {LABEL: "r-a"})
    assert zones(segment=node) == ("r-b",)
    assert sorted(zones(allowed_segments=allowed)) == ["r-a", "r-c"]
    assert zones(node_segments=(node, {LABEL: "elsewhere"})) == ("r-b",)
    assert sorted(zones()) == ["r-a", "r-b", "r-c"]
    assert zones() == zones(region=("r-c", "r-b", "r-a")), "the order is the claim's"
    first, second = zones(count=2, segment=node, node_segments=(node,))[:2]
    assert first == "r-b"
    assert second in {"r-a", "r-c"}, "one without nodes where no other is left"


def test_too_few_zones_and_a_place_without_the_label_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="needs 2 zones, and 1 can be had"):
        zones(count=2, allowed_segments=({LABEL: "r-a"},))
    with pytest.raises(InvalidArgument, match="needs 1 zone, and 0 can be had"):
        zones(region=())
    with pytest.raises(InvalidArgument, match=f"has no {LABEL}"):
        zones(segment={"rack": "7"})


def adopt(marks: dict[str, str], *, owner: Ownership | None = OWNER, **context: Any) -> dict[str, str]:
    former = Ownership(cluster_id="there", claim_uid="u0", volume_name="pvc-u0")
    request = AdoptRequest(context=replace(CONTEXT, **context), volume=volume(owner=owner), former=former)
    return Fences(TAGS).marks_to_adopt("disk-1", marks, request)


def test_adoption_replaces_the_marks_of_the_former_owner_alone() -> None:
    former = Ownership(cluster_id="there", claim_uid="u0", volume_name="pvc-u0")
    assert adopt(TAGS.of(former)) == TAGS.of(OWNER)
    assert adopt(TAGS.of(OWNER)) == {}
    with pytest.raises(AlreadyExists, match="disk-1 belongs to pvc-u9 of cluster 'x', not to cluster 'there'"):
        adopt(TAGS.of(Ownership(cluster_id="x", claim_uid="u9", volume_name="pvc-u9")))
    with pytest.raises(AlreadyExists, match="no owner that volplane knows"):
        adopt({})
    with pytest.raises(Unsupported, match="carries no marks"):
        adopt(TAGS.of(former), owner=None)


def test_a_former_leader_of_the_same_cluster_adopts_nothing() -> None:
    old = replace(OWNER, claim_uid="u0")
    marks = {**TAGS.of(old), TAGS.fence: "9//lease-1"}
    request = AdoptRequest(context=replace(CONTEXT, fence="3/process-a/lease-1"), volume=volume(), former=old)
    with pytest.raises(Fenced):
        Fences(TAGS).marks_to_adopt("disk-1", marks, request)


def test_a_change_waits_for_its_rate_and_learns_from_a_refusal() -> None:
    clock = Clock()
    limiter = RateLimiter(rate=1, burst=1, clock=clock)
    call = HookCall(CONTEXT, clock, clock())

    def make(key: str, error: CloudError | None = None) -> str:
        def work() -> str:
            if error is not None:
                raise error
            return key

        return limiter.make("make", key, call, work, refusal=lambda each: Refusal() if each.code == "TooMany" else None)

    assert make("a") == "a"
    with pytest.raises(RetryLater) as early:
        make("b")
    assert early.value.seconds == 1.0
    clock.now += 1.0
    with pytest.raises(CloudError):
        make("b", CloudError("make", "TooMany", "slower"))
    with pytest.raises(RetryLater) as throttled:
        make("c")
    assert throttled.value.seconds == 1.0
    with pytest.raises(RetryLater) as behind:
        make("d")
    assert behind.value.seconds == 3.0, "the rate is half of what it was"
    clock.now += 6.0
    with pytest.raises(RetryLater):
        make("c")
    assert limiter.make("make", "c", HookCall(CONTEXT, clock, clock()), lambda: 7, refusal=lambda _: None) == 7


def test_a_refusal_of_one_resource_slows_no_other_one() -> None:
    clock = Clock()
    limiter = RateLimiter(rate=1, burst=10, clock=clock)
    refused = CloudError("attach", "Queue", "too many changes of this machine")

    def attach(disk: str, machine: str, error: CloudError | None = None) -> str:
        def work() -> str:
            if error is not None:
                raise error
            return disk

        call = HookCall(CONTEXT, clock, clock())
        return limiter.make("attach", disk, call, work, refusal=lambda _: Refusal(of_resource=True), resource=machine)

    for seconds in (1.0, 2.0, 4.0):
        with pytest.raises(CloudError):
            attach("a", "machine-1", refused)
        with pytest.raises(RetryLater) as paused:
            attach("b", "machine-1")
        assert paused.value.seconds == seconds
        assert attach("c", "machine-2") == "c"
        clock.now += seconds
    assert limiter.queue_seconds("attach") == 0.0
    assert attach("b", "machine-1") == "b"
    assert attach("a", "machine-1") == "a", "a success ends the pauses"


def test_a_poller_slows_down_while_its_reads_are_throttled() -> None:
    poller: StatePoller[str, int] = StatePoller(lambda keys: dict.fromkeys(keys, 1), clock=Clock(), interval=1.0)
    before = poller.next_poll("a")
    with pytest.raises(CloudError), poller.pacing(lambda error: error.code == "TooMany"):
        raise CloudError("read", "TooMany", "slower")
    throttled = poller.next_poll("a")
    assert throttled >= before
    with pytest.raises(CloudError), poller.pacing(lambda error: error.code == "TooMany"):
        raise CloudError("read", "Other", "no")
    assert poller.next_poll("a") == throttled
    for _ in range(20):
        with poller.pacing(lambda _error: True):
            pass
    assert poller.next_poll("a") == before


# --- snapshots --------------------------------------------------------------------------------------------------

OF_SNAPSHOT = SnapshotOwnership(cluster_id="here", snapshot_uid="7c1a", content_name="snapcontent-7c1a")
OFFICIAL = OfficialDriver(name="csi.example.com", volume="its-volume", snapshot="its-snapshot")


def deletable(marks: dict[str, str], owner: SnapshotOwnership | None = OF_SNAPSHOT, **fields: Any) -> None:
    request = DeleteSnapshotRequest(context=CONTEXT, handle="s", owner=owner)
    TAGS.refuse_foreign_snapshot("s", marks, request, **fields)


@pytest.mark.parametrize("marks", [TAGS, LABELS])
def test_the_marks_of_a_snapshot_are_read_as_they_were_written(marks: Any) -> None:
    for cluster in ("here", "Cluster of Ours/1", "x" * 200):
        owner = replace(OF_SNAPSHOT, cluster_id=cluster)
        assert marks.snapshot_owner(marks.of_snapshot(owner), cluster) == owner
    long = replace(OF_SNAPSHOT, snapshot_uid="a" * 60, content_name=f"snapcontent-{'a' * 60}")
    assert marks.snapshot_owner(marks.of_snapshot(long), "here") == long
    assert marks.snapshot_owner({**marks.of_snapshot(OF_SNAPSHOT), marks.content: ""}) is None
    assert marks.snapshot_owner(marks.of(OWNER)) is None, "marks of a volume, which other tools copy, are none"


def test_only_the_marks_that_are_asked_for_let_a_snapshot_be_deleted() -> None:
    ours = TAGS.of_snapshot(OF_SNAPSHOT)
    deletable(ours)
    for marks in ({}, {**ours, TAGS.snapshot: "other"}, {**ours, TAGS.cluster: "there"}):
        with pytest.raises(AlreadyExists, match="it is not touched"):
            deletable(marks)
    for marks in ({}, ours, {TAGS.cluster: "here"}):
        deletable(marks, None)
    with pytest.raises(AlreadyExists, match="made in cluster 'there', not in 'here'"):
        deletable({TAGS.cluster: "there"}, None)


def test_a_snapshot_of_the_official_driver_is_known_by_its_name_where_ours_stands_for_it() -> None:
    named = {"its-snapshot": "snapshot-7c1a"}
    owner = TAGS.snapshot_owner(named, "here", official=OFFICIAL)
    assert owner == replace(OF_SNAPSHOT, cluster_id=OFFICIAL.name)
    deletable(named, official=OFFICIAL)
    for marks, official in (
        (named, None),
        ({"its-snapshot": "snapshot-other"}, OFFICIAL),
        ({"its-snapshot": "x"}, OFFICIAL),
    ):
        with pytest.raises(AlreadyExists):
            deletable(marks, official=official)


def test_a_name_is_of_one_source_and_one_owner() -> None:
    request = SnapshotRequest(
        context=CONTEXT,
        name="snapshot-7c1a",
        volume=volume(),
        owner=OF_SNAPSHOT,
        snapshot=SnapshotIdentity(namespace="n", name="before", content="snapcontent-7c1a"),
    )
    made = Snapshot(handle="s", size_bytes=GIB, ready=False, source="disk-1", owner=OF_SNAPSHOT)
    refuse_other_snapshot(made, request, "disk-1", belongs=True)
    with pytest.raises(AlreadyExists, match="of disk-1 instead of disk-2"):
        refuse_other_snapshot(made, request, "disk-2", belongs=True)
    with pytest.raises(AlreadyExists, match="without marks of an owner"):
        refuse_other_snapshot(replace(made, owner=None), request, "disk-1", belongs=False)


def test_what_cannot_be_restored_now_or_ever_says_which() -> None:
    made = Snapshot(handle="s", size_bytes=3 * GIB, ready=True)
    refuse_unusable(made, "s", 3)
    with pytest.raises(InvalidArgument, match="2 GiB: snapshot s has 3 GiB"):
        refuse_unusable(made, "s", 2)
    with pytest.raises(Unavailable, match=r"not ready \(pending, 40%\)") as waiting:
        refuse_unusable(replace(made, ready=False, state="pending, 40%", retry_after=7.0), "s", 3)
    assert waiting.value.retry_after == 7.0
    with pytest.raises(BackendError, match="cannot be restored: it broke"):
        refuse_unusable(replace(made, ready=False, failed="it broke"), "s", 3)
    with pytest.raises(NotFound):
        refuse_unusable(None, "s", 3)
    refuse_smaller("disk-1", 3, 3)


def test_a_copy_in_another_zone_asks_for_another_node_where_one_is_selected() -> None:
    refuse_other_zone("disk-1", "r-a", ("r-b", "r-a"), selected=False)
    with pytest.raises(ResourceExhausted, match=r"disk-1 is in r-a, .* the selected node is in r-b") as raised:
        refuse_other_zone("disk-1", "r-a", ("r-b",), selected=True)
    assert (raised.value.reschedule, raised.value.scope) == (True, "zone")
    with pytest.raises(InvalidArgument, match="and r-b, r-c is asked for"):
        refuse_other_zone("disk-1", "r-a", ("r-b", "r-c"), selected=False)


def test_a_snapshot_that_takes_long_is_looked_at_less_often_until_it_is_ready() -> None:
    clock, made = Clock(), Snapshot(handle="s", size_bytes=GIB, ready=False)
    poller: StatePoller[str, int] = StatePoller(lambda _keys: {}, clock=clock, interval=5.0)
    looks, pauses = SnapshotLooks(poller, clock), []
    for _ in range(24):
        pauses.append(looks.paced(made, "s").retry_after)
        clock.now += pauses[-1]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (5.0, 60.0)
    ready = replace(made, ready=True)
    assert looks.paced(ready, "s") is ready
    assert looks.paced(made, "s").retry_after == 5.0, "a new wait"


def test_threads_that_come_while_a_fetch_runs_share_the_next_one() -> None:
    clock, fetched, running, go_on = Clock(), [], threading.Event(), threading.Event()

    def fetch(keys: Any) -> dict[str, int]:
        fetched.append(sorted(keys))
        running.set()
        assert go_on.wait(60.0)
        return dict.fromkeys(keys, 7)

    poller: StatePoller[str, int] = StatePoller(fetch, clock=clock, interval=5.0)
    with ThreadPoolExecutor(9) as threads:
        first = threads.submit(poller.observe, "first", max_age=2.5)
        assert running.wait(60.0)
        others = [threads.submit(poller.observe, f"key-{n}", max_age=2.5) for n in range(8)]
        while len(poller._wanted) < 9:
            os.sched_yield()
        go_on.set()
        assert [each.result(60.0).value for each in (first, *others)] == [7] * 9
    assert fetched == [["first"], [f"key-{n}" for n in range(8)]]


def test_hooks_that_may_not_wait_share_a_fetch_with_those_that_come_at_the_same_time() -> None:
    clock, fetched = Clock(), []

    def fetch(keys: Any) -> dict[str, int]:
        fetched.append(sorted(keys))
        return dict.fromkeys(keys, len(fetched))

    poller: StatePoller[str, int] = StatePoller(fetch, clock=clock, interval=5.0)
    keys = ["a", "b", "c"]
    for _ in range(3):
        assert {poller.observe(key, max_age=2.5).value for key in keys} <= {1, 2, 3, len(fetched)}
        clock.now += max(poller.next_poll(key, after=5.0) for key in keys)
    assert fetched[3:] == [["a", "b", "c"], ["a", "b", "c"]]
