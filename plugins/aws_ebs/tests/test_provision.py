"""What is made, where, and with which marks."""

from __future__ import annotations

from typing import Any

import pytest

from volplane import (
    AccessMode,
    AlreadyExists,
    Done,
    InProgress,
    InvalidArgument,
    ResourceExhausted,
    Segment,
    Unsupported,
    ValidateRequest,
    VolumeMode,
)
from volplane.drivers.contract import Plugin
from volplane.drivers.loading import build_driver
from volplane_aws_ebs import AwsEbsBackend
from volplane_aws_ebs.testing import Behaviour

GIB = 1 << 30
ZONE = "topology.kubernetes.io/zone"
ZONES = ("eu-test-1a", "eu-test-1b", "eu-test-1c")
KEY = "arn:aws:kms:eu-test-1:123456789012:key/0f0f0f0f"
SHARED = {"access_modes": (AccessMode.READ_WRITE_MANY,), "volume_mode": VolumeMode.BLOCK}


def only(region: Any) -> Any:
    (volume,) = region.fake.volumes.values()
    return volume


def test_a_volume_is_what_a_stock_node_mounts(region: Any) -> None:
    asset = region.provision(size=5 * GIB)
    assert asset.source.kind == "csi"
    assert asset.source.fields == {"driver": "ebs.csi.aws.com", "volumeHandle": asset.handle, "fsType": "ext4"}
    assert asset.node_affinity == ({ZONE: ZONES[0]},)
    assert asset.capacity_bytes == 5 * GIB
    assert asset.attributes == {"storage.kubernetes.io/csiProvisionerIdentity": "ebs.volplane.dev"}
    assert asset.handle == only(region).id


def test_it_carries_the_marks_of_its_claim_and_lets_the_official_controller_attach_it(region: Any) -> None:
    region.provision(context=region.context(fence="7/replica-a/lease"))
    tags = only(region).tags
    assert tags["volplane.dev/cluster"] == "cluster-1"
    assert tags["volplane.dev/claim-uid"] == "u1"
    assert tags["volplane.dev/volume"] == tags["Name"] == "pvc-u1"
    assert tags["volplane.dev/generation"] == "1"
    assert tags["volplane.dev/fence"] == "7//lease"
    assert tags["ebs.csi.aws.com/cluster"] == "true"
    assert tags["kubernetes.io/created-for/pvc/namespace"] == "default"
    assert tags["kubernetes.io/created-for/pvc/name"] == "data-u1"


def test_options_name_another_csi_driver_and_another_zone_label(new_region: Any) -> None:
    label = "topology.ebs.csi.aws.com/zone"
    region = new_region(csi_driver_name="ebs.example.com", zone_label=label)
    asset = region.provision(segment={label: ZONES[1]})
    assert asset.source.fields["driver"] == "ebs.example.com"
    assert asset.node_affinity == ({label: ZONES[1]},)
    assert region.describe().topology_keys == (label,)
    assert region.describe().csi_driver_name == "ebs.example.com"


def test_a_block_volume_has_no_file_system(region: Any) -> None:
    assert "fsType" not in region.provision(volume_mode=VolumeMode.BLOCK).source.fields


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, {"volume_type": "gp3", "iops": 3000, "throughput": 125, "encrypted": False}),
        ({"type": "gp2"}, {"volume_type": "gp2", "throughput": None}),
        ({"type": "gp3", "iops": 4000, "throughput": 250}, {"volume_type": "gp3", "iops": 4000, "throughput": 250}),
        ({"type": "io2", "iops": 500}, {"volume_type": "io2", "iops": 500}),
        ({"type": "io1", "iopsPerGB": 30}, {"volume_type": "io1", "iops": 600}),
        ({"type": "io1", "iopsPerGB": 100}, {"volume_type": "io1", "iops": 1000}),
        ({"type": "io1", "iops": 1001}, {"iops": 1000}),
        ({"iops": 10_001}, {"iops": 10_000}),
        ({"iops": 2_000, "allowAutoIOPSPerGBIncrease": True}, {"iops": 3000}),
        ({"type": "gp3", "iopsPerGB": 10, "allowAutoIOPSPerGBIncrease": True}, {"iops": 3000}),
        ({"encrypted": True}, {"encrypted": True}),
        ({"kmsKeyId": KEY}, {"encrypted": True, "kms_key": KEY}),
    ],
)
def test_parameters_shape_the_volume(new_region: Any, parameters: Any, expected: Any) -> None:
    region = new_region(Behaviour(kms_keys={KEY: True}))
    region.provision(size=20 * GIB, parameters=parameters)
    volume = only(region)
    assert {name: getattr(volume, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"type": "gp2", "iops": 500}, "volumes of type gp2 have no IOPS to choose"),
        ({"type": "st1", "iopsPerGB": 5}, "iopsPerGB"),
        ({"type": "io1"}, "io1 needs the parameter iops or iopsPerGB"),
        ({"type": "io1", "iopsPerGB": 1}, "has at least 100"),
        ({"iops": 2_000}, "iops 2000: type gp3 has at least 3000"),
        ({"type": "io2", "iops": 500, "throughput": 200}, "only gp3 has a throughput"),
        ({"throughput": 124}, "at least 125, or 0"),
        ({"volumeInitializationRate": 99}, "at least 100, or 0"),
        ({"tags": {"volplane.dev/cluster": "x"}}, "reserved"),
        ({"tags": {"CSIVolumeName": "x"}}, "reserved"),
        ({"tags": {"owner": "${who}"}}, "may contain"),
        ({"tags": {"owner": "100$"}}, "may contain"),
        ({"type": "st1"}, "volumes of type st1 have 125 to 16384 GiB"),
    ],
)
def test_parameters_that_contradict_each_other_are_refused_before_a_call(
    region: Any, parameters: Any, told: str
) -> None:
    with pytest.raises(InvalidArgument, match=told):
        region.provision(size=20 * GIB, parameters=parameters)
    assert region.fake.calls["CreateVolume"] == 0


@pytest.mark.parametrize(
    "key", ["endpoint", "sts_endpoint", "region", "role_arn", "access_key_id", "secret_access_key", "session_token"]
)
def test_who_writes_classes_chooses_neither_where_credentials_are_sent_nor_which(key: str) -> None:
    plugin = Plugin(kind="backend", name="aws_ebs", factory=AwsEbsBackend)
    driver = build_driver("ebs.volplane.dev", plugin, {"region": "eu-test-1"})
    with pytest.raises(InvalidArgument, match=rf"parameter '{key}'") as refused:
        driver.view.typed_parameters({key: "http://169.254.169.254/wJalrXUtnFEMI"})
    assert ("wJalrXUtnFEMI" in str(refused.value)) == (key in ("endpoint", "sts_endpoint", "region", "role_arn"))


def test_a_class_is_validated_without_a_call(region: Any) -> None:
    before = region.fake.calls.total()
    with pytest.raises(InvalidArgument):
        region.backend.validate(ValidateRequest(context=region.context(), parameters={"type": "st1", "iops": 4000}))
    # A VolumeAttributesClass may say how many IOPS those of io1 have.
    for name in ("gp3", "io1"):
        region.backend.validate(ValidateRequest(context=region.context(), parameters={"type": name}))
    assert region.fake.calls.total() == before


def test_the_spelling_of_the_official_driver_for_the_file_system_is_understood(region: Any) -> None:
    asset = region.provision(parameters={"csi.storage.k8s.io/fstype": "xfs"})
    assert asset.source.fields["fsType"] == "xfs"


def test_tags_of_options_and_class_are_put_on_it(new_region: Any) -> None:
    region = new_region(tags={"team": "storage"})
    region.provision(parameters={"tags": {"claim": "${namespace}/${claim}", "volume": "${volume}"}})
    tags = only(region).tags
    assert (tags["team"], tags["claim"], tags["volume"]) == ("storage", "default/data-u1", "pvc-u1")


def test_sizes_are_whole_gibibytes_and_a_limit_is_kept(region: Any) -> None:
    assert region.provision(size=GIB + 1).capacity_bytes == 2 * GIB
    with pytest.raises(InvalidArgument, match="rounded up"):
        region.provision("u2", size=GIB + 1, limit_bytes=GIB + 2)


def test_only_io_volumes_in_block_mode_are_shared(region: Any) -> None:
    asset = region.provision(size=20 * GIB, parameters={"type": "io2", "iops": 500}, **SHARED)
    assert only(region).multi_attach
    assert region.provision(size=20 * GIB, parameters={"type": "io2", "iops": 500}, **SHARED) == asset
    with pytest.raises(Unsupported, match="io2"):
        region.provision("u2", size=20 * GIB, **SHARED)
    modes = (AccessMode.READ_ONLY_MANY,)
    with pytest.raises(Unsupported, match="Block"):
        region.provision("u3", size=20 * GIB, parameters={"type": "io2", "iops": 500}, access_modes=modes)


def test_another_demand_by_the_same_name_says_how_it_differs(region: Any) -> None:
    asset = region.provision()
    with pytest.raises(
        AlreadyExists, match=f"{asset.handle} was made for pvc-u1 by another demand: Size 1 instead of 2"
    ):
        region.provision(size=2 * GIB)
    with pytest.raises(AlreadyExists, match="VolumeType gp3 instead of gp2"):
        region.provision(parameters={"type": "gp2"})
    with pytest.raises(AlreadyExists, match="in zone eu-test-1a, but eu-test-1b"):
        region.provision(segment={ZONE: ZONES[1]})


def test_another_demand_while_the_first_is_in_the_making_is_refused_too(region: Any) -> None:
    first = region.backend.provision(region.demand())
    assert isinstance(first, InProgress)
    with pytest.raises(AlreadyExists):
        region.provision(size=2 * GIB)
    assert region.provision().capacity_bytes == GIB
    assert len(region.fake.volumes) == 1


# --- zones ------------------------------------------------------------------------------------------------------


def test_a_volume_that_nobody_placed_goes_to_a_zone_that_its_claim_decides(region: Any) -> None:
    first = {uid: region.provision(uid, segment=None).node_affinity for uid in "abcdefgh"}
    assert len({tuple(affinity[0].items()) for affinity in first.values()}) == len(ZONES)
    again = region.again()
    assert {uid: again.provision(uid, segment=None).node_affinity for uid in "abcdefgh"} == first


def test_options_and_classes_say_which_zones(new_region: Any) -> None:
    region = new_region(zones=(ZONES[2],))
    assert region.provision("a", segment=None).node_affinity == ({ZONE: ZONES[2]},)
    allowed: tuple[Segment, ...] = ({ZONE: ZONES[1]},)
    assert region.provision("b", segment=None, allowed_segments=allowed).node_affinity == ({ZONE: ZONES[1]},)


def test_a_volume_that_nobody_placed_goes_where_nodes_are(new_region: Any) -> None:
    nodes: tuple[Segment, ...] = ({ZONE: ZONES[1]}, {ZONE: "us-east-1a"})
    region = new_region()
    for uid in "abcd":
        made = region.provision(uid, segment=None, node_segments=nodes)
        assert made.node_affinity == ({ZONE: ZONES[1]},)
    region = new_region(zones=(ZONES[2],))
    made = region.provision("e", segment=None, node_segments=nodes)
    assert made.node_affinity == ({ZONE: ZONES[2]},), "the option says so"


def test_zones_of_other_regions_are_refused(new_region: Any) -> None:
    with pytest.raises(InvalidArgument, match="'us-east-1a' is not in region 'eu-test-1'"):
        new_region(zones=("us-east-1a",))
    with pytest.raises(InvalidArgument, match="'eu-test-1z' is not one of eu-test-1a"):
        new_region(zones=("eu-test-1z",))


def test_a_place_without_a_zone_is_refused(region: Any) -> None:
    with pytest.raises(InvalidArgument, match=f"has no {ZONE}"):
        region.provision(segment={"kubernetes.io/hostname": "node-a"})


def test_a_full_zone_is_left_for_another_if_nobody_chose_it(region: Any) -> None:
    region.clock.advance(120.0)
    full = region.provision("probe", segment=None).node_affinity[0][ZONE]
    region.delete(region.find("probe"), "probe")
    region.refuse(
        "CreateVolume", "InsufficientVolumeCapacity", times=99, when=lambda given: given["AvailabilityZone"] == full
    )
    demand = region.demand("probe", segment=None, generation=2)
    assert region.finish(region.backend.provision, demand).node_affinity[0][ZONE] != full


def test_all_zones_full_is_said_and_tried_again(region: Any) -> None:
    region.clock.advance(120.0)
    region.refuse("CreateVolume", "InsufficientVolumeCapacity", times=3)
    with pytest.raises(ResourceExhausted):
        region.provision(segment=None)
    assert region.provision(segment=None).capacity_bytes == GIB


# --- driver -----------------------------------------------------------------------------------------------------


def test_the_driver_says_what_it_can(new_region: Any) -> None:
    info = new_region(attach=True, attach_limit=20).describe()
    assert info.attach_required
    assert info.max_attached_per_node == 20
    assert info.access_modes == frozenset(AccessMode)
    assert info.minimum_bytes == GIB
    assert not new_region().describe().attach_required


def test_a_probe_asks_ec2_once_and_says_what_is_wrong(region: Any) -> None:
    before = region.fake.calls["DescribeAvailabilityZones"]
    region.probe()
    assert region.fake.calls["DescribeAvailabilityZones"] - before == 1
    region.refuse("DescribeAvailabilityZones", "AuthFailure")
    with pytest.raises(Exception, match="credentials"):
        region.probe()
    region.probe()


# --- what EC2 would refuse ----------------------------------------------------------------------------------------


def test_an_impaired_zone_does_not_stop_the_driver(new_region: Any, caplog: pytest.LogCaptureFixture) -> None:
    impaired = {ZONES[0]: "impaired"}
    region = new_region(Behaviour(zone_states=impaired), zones=ZONES[:2])
    assert "zone eu-test-1a is impaired" in caplog.text
    made = [region.provision(f"u{n}", segment=None).node_affinity[0][ZONE] for n in range(4)]
    assert set(made) == {ZONES[1]}
    assert region.provision("u9").node_affinity[0][ZONE] == ZONES[0], "a node there was chosen"
    region = new_region(Behaviour(zone_states=impaired), zones=ZONES[:1])
    assert region.provision(segment=None).node_affinity[0][ZONE] == ZONES[0], "there is no other one"


def test_a_zone_that_recovers_is_used_again(new_region: Any) -> None:
    region = new_region(Behaviour(zone_states={ZONES[0]: "unavailable"}), zones=ZONES[:2])
    region.fake.behave(zone_states={ZONES[1]: "impaired"})
    region.clock.advance(700.0)
    assert region.provision(segment=None).node_affinity[0][ZONE] == ZONES[0]
    region.clock.advance(700.0)
    region.refuse("DescribeAvailabilityZones", "InternalError")
    assert region.provision("u2", segment=None).node_affinity[0][ZONE] == ZONES[0], "what was read last is used"


def test_tags_of_options_and_class_are_counted_together(new_region: Any) -> None:
    def tags(prefix: str, count: int) -> dict[str, str]:
        return {f"{prefix}{n}": "x" for n in range(count)}

    region = new_region(tags=tags("o", 20))
    fitting = {
        "type": "io2",
        "iopsPerGB": 50,
        "allowAutoIOPSIncreaseOnModify": True,
        "tags": {**tags("o", 5), **tags("c", 17)},
    }
    request = ValidateRequest(context=region.context(), parameters=fitting)
    assert region.backend.validate(request) == Done()
    asset = region.provision(size=20 * GIB, parameters=fitting, context=region.context(fence="1/a/lease"))
    assert len(region.fake.volumes[asset.handle].tags) == 50
    wrong = {"tags": tags("c", 18)}
    for hook, call in (
        (region.backend.validate, ValidateRequest(context=region.context(), parameters=wrong)),
        (region.backend.provision, region.demand("u2", parameters=wrong)),
    ):
        with pytest.raises(InvalidArgument, match="with the 20 of the driver's option tags these are 38, at most 37"):
            hook(call)


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"throughput": 751}, "throughput 751 MiB/s with 3000 IOPS: .* 0.25 MiB/s for each .* set iops to 3004"),
        ({"iops": 4000, "throughput": 1001}, "set iops to 4004"),
    ],
)
def test_ratios_of_performance_are_checked_before_ec2_is_asked(
    region: Any, parameters: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidArgument, match=told):
        region.provision(size=10 * GIB, parameters=parameters)
    assert region.fake.calls["CreateVolume"] == 0


def test_ratios_at_their_limit_are_accepted(region: Any) -> None:
    asset = region.provision(size=10 * GIB, parameters={"iops": 5000, "throughput": 1250})
    assert region.fake.volumes[asset.handle].throughput == 1250
    with pytest.raises(InvalidArgument, match="set iops to 5200"):
        region.modify(asset, throughput="1300")
    assert region.fake.calls["ModifyVolume"] == 0


@pytest.mark.parametrize(
    "place",
    [
        {"topology.kubernetes.io/zone": "eu-test-1b"},
        {"topology.ebs.csi.aws.com/zone": "eu-test-1b", "kubernetes.io/os": "linux"},
        {"topology.k8s.aws/zone-id": "tst1-az2"},
    ],
)
@pytest.mark.parametrize(
    ("label", "zone"), [("topology.kubernetes.io/zone", "eu-test-1b"), ("topology.k8s.aws/zone-id", "tst1-az2")]
)
def test_every_key_of_the_official_drivers_topology_names_a_zone(
    new_region: Any, place: Any, label: str, zone: str
) -> None:
    region = new_region(zone_label=label)
    asset = region.provision(segment=None, allowed_segments=(place,))
    assert asset.node_affinity == ({label: zone},)
    assert only(region).zone == "eu-test-1b"


def test_a_value_that_names_no_zone_is_refused_with_those_that_do(region: Any) -> None:
    place = {"topology.k8s.aws/zone-id": "tst1-az9"}
    with pytest.raises(InvalidArgument, match=r"zone-id 'tst1-az9' is none of tst1-az1, tst1-az2, tst1-az3"):
        region.provision(segment=None, allowed_segments=(place,))
    assert region.fake.calls["CreateVolume"] == 0


def test_a_key_encrypts_whatever_the_class_says_of_encryption(new_region: Any) -> None:
    region = new_region(Behaviour(kms_keys={KEY: True}))
    region.provision(parameters={"kmsKeyId": KEY, "encrypted": False})
    assert (only(region).encrypted, only(region).kms_key) == (True, KEY)


@pytest.mark.parametrize("key", ["iops", "iopsPerGB", "throughput", "volumeInitializationRate"])
@pytest.mark.parametrize("kind", ["gp2", "gp3"])
def test_zero_means_the_default_as_in_the_official_driver(region: Any, key: str, kind: str) -> None:
    region.provision(parameters={"type": kind, key: 0})
    assert (only(region).iops, only(region).throughput) == ((3_000, 125) if kind == "gp3" else (100, None))
