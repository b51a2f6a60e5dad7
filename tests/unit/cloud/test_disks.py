"""What backends for the disks of a cloud share: a toy cloud behind `DiskBackend`, and the parts of operations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import pytest

from volplane import (
    AdoptRequest,
    AlreadyExists,
    AssetPage,
    Attachment,
    AttachRequest,
    BackendError,
    ClaimIdentity,
    Context,
    DeleteRequest,
    DescribeRequest,
    DetachRequest,
    Done,
    Fenced,
    InProgress,
    InvalidArgument,
    ListRequest,
    NodeIdentity,
    Ownership,
    Param,
    ParameterSchema,
    PodScrub,
    ProvisionRequest,
    RecycleRequest,
    Snapshot,
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
    TAGS,
    CloudError,
    DiskBackend,
    DiskOperations,
    DiskOptions,
    Fences,
    HookCall,
    NodeNames,
    RateLimiter,
    Refusal,
    RetryLater,
    StatePoller,
    Zones,
    ZoneStates,
    csi_asset,
    csi_source,
    pod_scrub,
    size_in_gib,
    zones_for,
)

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
            operations=DiskOperations(
                provision=answer(self.asset),
                delete=answer(Done()),
                scrub=answer(PodScrub()),
                expand=answer(self.asset),
                modify=answer(Done()),
                attach=answer(Attachment()),
                detach=answer(Done()),
                create_snapshot=answer(Snapshot(handle="s", size_bytes=GIB, ready=True)),
                delete_snapshot=answer(Done()),
                list_page=answer(AssetPage(assets=())),
                adopt=answer(Done()),
                error=lambda error, doing: Unavailable(f"cannot {doing}: {error.message}", code=error.code),
                close=lambda: setattr(self, "closed", True),
            ),
            zones=Zones(
                lambda: ZoneStates({"r-a": "up"}, ["r-a"]), wanted=(), up=("up",), assets="disks", clock=self.clock
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
