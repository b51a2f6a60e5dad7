"""Every parameter of classes of the official driver, as it stands in a class: accepted with its meaning, or refused.

kubernetes-sigs/aws-ebs-csi-driver, docs/parameters.md and docs/tagging.md.
"""

from __future__ import annotations

from typing import Any

import pytest

from volplane import (
    AttachRequest,
    InProgress,
    InvalidArgument,
    ResourceExhausted,
    ValidateRequest,
    VolumeMode,
    VolumeSource,
)
from volplane.drivers.contract import Plugin
from volplane.drivers.loading import build_driver
from volplane_aws_ebs import AwsEbsBackend
from volplane_aws_ebs.testing import Behaviour

GIB = 1 << 30
ZONE = "topology.kubernetes.io/zone"
ZONE_ID = "topology.k8s.aws/zone-id"
DRIVER = build_driver(
    "ebs.volplane.dev", Plugin(kind="backend", name="aws_ebs", factory=AwsEbsBackend), {"region": "eu-test-1"}
)
IDENTITY = {"storage.kubernetes.io/csiProvisionerIdentity": "ebs.volplane.dev"}


def typed(**texts: str) -> Any:
    """The parameters of a class as the core hands them to hooks."""
    return DRIVER.view.typed_parameters({key.replace("__", "/"): text for key, text in texts.items()})


def only(region: Any) -> Any:
    (volume,) = region.fake.volumes.values()
    return volume


def refused(region: Any, told: str, **texts: str) -> None:
    def validate() -> None:
        region.backend.validate(ValidateRequest(context=region.context(), parameters=typed(**texts)))

    with pytest.raises(InvalidArgument, match=told):
        validate()
    assert region.fake.calls["CreateVolume"] == 0


@pytest.mark.parametrize(
    ("parameters", "attributes"),
    [
        ({"blockSize": "1024"}, {"blocksize": "1024"}),
        ({"INODESIZE": "512", "fstype": "xfs"}, {"inodesize": "512"}),
        ({"bytesPerInode": "8192", "numberOfInodes": "200192"}, {"bytesperinode": "8192", "numberofinodes": "200192"}),
        ({"ext4BigAlloc": "true", "ext4ClusterSize": "16384"}, {"ext4bigalloc": "true", "ext4clustersize": "16384"}),
        ({"ext4EncryptionSupport": "true"}, {"ext4encryptionsupport": "true"}),
        ({"ext4BigAlloc": "false", "ext4EncryptionSupport": "false"}, {}),
        ({"blockAttachUntilInitialized": "true"}, {"blockattachuntilinitialized": "true"}),
        ({"blockExpress": "true", "type": "io2", "iops": "500"}, {}),
        ({"csi.storage.k8s.io__fstype": "ext3", "blockSize": "4096"}, {"blocksize": "4096"}),
    ],
)
def test_what_only_the_node_plugin_honours_reaches_it_under_its_keys(
    region: Any, parameters: dict[str, str], attributes: Any
) -> None:
    asset = region.provision(size=20 * GIB, parameters=typed(**parameters))
    assert asset.attributes == {**attributes, **IDENTITY}
    again = region.again().provision(size=20 * GIB, parameters=typed(**parameters))
    assert again == asset


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"type": "gp4"}, "'type' is 'gp4', expected one of gp3, .* did you mean 'gp3'"),
        ({"iops": "lots"}, "'iops' is 'lots', expected a whole number, at least 0"),
        ({"iopsPerGB": "-1"}, "'iopsPerGB' is '-1', expected a whole number, at least 0"),
        ({"iops": "4000", "iopsPerGB": "5"}, "'iops' and 'iopsPerGB' exclude each other"),
        ({"allowAutoIOPSPerGBIncrease": "maybe"}, "is 'maybe', expected true or false"),
        ({"allowAutoIOPSIncreaseOnModify": "2"}, "is '2', expected true or false"),
        ({"throughput": "5000"}, "'throughput' is '5000', expected a whole number, from 0 to 2000"),
        ({"type": "gp2", "throughput": "250"}, "throughput is 250: only gp3 has a throughput"),
        ({"encrypted": "aes"}, "'encrypted' is 'aes', expected true or false"),
        ({"kmsKeyId": "my-key"}, "'kmsKeyId' is 'my-key', expected text that matches arn:"),
        ({"csi.storage.k8s.io__fstype": "EXT4"}, "is 'EXT4', expected one of ext4, ext3, xfs, ntfs"),
        ({"fstype": "xfs", "csi.storage.k8s.io__fstype": "xfs"}, "exclude each other"),
        ({"blockSize": "4 KiB"}, "'blockSize' is '4 KiB', expected text that matches"),
        ({"inodeSize": "512", "fstype": "ntfs"}, "inodeSize is '512': the file system ntfs has no such option"),
        ({"bytesPerInode": "8192", "fstype": "xfs"}, "bytesPerInode is '8192': .* only ext4, ext3"),
        ({"numberOfInodes": "x!"}, "'numberOfInodes' is 'x!'"),
        ({"ext4BigAlloc": "true", "fstype": "ext3"}, "ext4BigAlloc is 'true': the file system ext3 has no such option"),
        ({"ext4ClusterSize": "16384"}, "ext4ClusterSize is '16384': .* ext4BigAlloc, which must be true"),
        ({"ext4EncryptionSupport": "true", "fstype": "xfs"}, "ext4EncryptionSupport is 'true'.* only ext4"),
        ({"blockExpress": "perhaps"}, "'blockExpress' is 'perhaps', expected true or false"),
        ({"blockAttachUntilInitialized": "later"}, "is 'later', expected true or false"),
        ({"volumeInitializationRate": "50"}, "is 50, expected at least 100, or 0 for the default"),
        ({"snapshotId": "latest"}, "'snapshotId' is 'latest', expected text that matches"),
        ({"tagSpecification_1": "team"}, "tagSpecification_1 is 'team', expected a tag such as \"key=value\""),
        ({"tagSpecification_1": "=x"}, "tagSpecification_1: '' must have 1 to 128 characters"),
        ({"tagSpecification_1": "CSIVolumeName=x"}, "tagSpecification_1: 'CSIVolumeName' is reserved"),
        ({"tagSpecification_1": "kubernetes.io/cluster/a=owned"}, "'kubernetes.io/cluster/a' is reserved"),
        ({"tags": "kubernetes.io/cluster/a=owned"}, "parameter tags: 'kubernetes.io/cluster/a' is reserved"),
        ({"tagSpecification_2": "a={{ .PVC }}"}, "tagSpecification_2 is .* there is no .PVC, but .PVCNamespace"),
        ({"tagSpecification_2": "a={{ html .PVName }}"}, "the function html cannot be called"),
        ({"tagSpecification_1": "a=1", "tagSpecification_2": "a=2"}, "tagSpecification_1 sets the tag 'a' too"),
        ({"tags": "a=1", "tagSpecification_2": "a=2"}, "tags sets the tag 'a' too"),
        ({"outpostArn": "arn:aws:outposts:x"}, "unknown parameter 'outpostArn'"),
    ],
)
def test_each_parameter_that_is_wrong_is_named_with_its_value_and_what_would_be_right(
    region: Any, parameters: dict[str, str], told: str
) -> None:
    refused(region, told, **parameters)


@pytest.mark.parametrize(
    ("parameters", "iops"),
    [
        ({"type": "io2", "iops": "300000"}, 256_000),
        ({"type": "io2", "iopsPerGB": "2000"}, 256_000),
        ({"type": "io1", "iopsPerGB": "60"}, 15_000),
        ({"type": "gp3", "iopsPerGB": "1", "allowAutoIOPSPerGBIncrease": "true"}, 3_000),
        ({"type": "io1", "iops": "50", "allowAutoIOPSPerGBIncrease": "true"}, 100),
    ],
)
def test_iops_outside_the_bounds_of_the_type_become_the_nearest_that_it_has(
    region: Any, parameters: dict[str, str], iops: int
) -> None:
    region.provision(size=300 * GIB, parameters=typed(**parameters))
    assert only(region).iops == iops


@pytest.mark.parametrize(
    "key",
    [
        "arn:aws:kms:eu-test-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab",
        "arn:aws-cn:kms:cn-north-1:123456789012:alias/storage",
        "alias/storage",
        "1234abcd-12ab-34cd-56ef-1234567890ab",
        "mrk-1234abcd12ab34cd56ef1234567890ab",
    ],
)
def test_a_key_is_named_in_each_way_that_ec2_takes(new_region: Any, key: str) -> None:
    region = new_region(Behaviour(kms_keys={key: True}))
    region.provision(parameters=typed(kmsKeyId=key))
    assert (only(region).encrypted, only(region).kms_key) == (True, key)


def test_an_empty_key_is_the_key_of_the_account(region: Any) -> None:
    region.provision(parameters=typed(kmsKeyId="", encrypted="true"))
    region.provision("u2", parameters=typed(kmsKeyId=""))
    assert [volume.encrypted for volume in region.fake.volumes.values()] == [True, False]


def test_a_volume_without_a_file_system_takes_no_options_of_one(region: Any) -> None:
    with pytest.raises(InvalidArgument, match="blockSize is '1024': a volume of mode Block has no file system"):
        region.provision(parameters=typed(blockSize="1024"), volume_mode=VolumeMode.BLOCK)


def test_tags_of_a_moved_class_are_filled_in(region: Any) -> None:
    region.provision(
        parameters=typed(
            tagSpecification_1="key1=value1",
            tagSpecification_2="key2=a=b",
            tagSpecification_3="key3=",
            tagspecification_4='backup={{ .PVCNamespace | contains "fault" }}',
            tagSpecification_5='claim={{ .PVCName | field "-" 1 | toUpper }} {{ .PVName }}',
            tagSpecification_6="Name=mine",
        )
    )
    tags = only(region).tags
    wanted = {"key1": "value1", "key2": "a=b", "key3": "", "backup": "true", "claim": "U1 pvc-u1", "Name": "mine"}
    assert {key: tags[key] for key in wanted} == wanted
    assert tags["volplane.dev/volume"] == "pvc-u1"


def test_a_tag_that_does_not_fit_the_names_of_a_claim_says_which(region: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"tagSpecification_1 is .* for claim default/data-u1: 'data-u1' has 2"):
        region.provision(parameters=typed(tagSpecification_1='a={{ .PVCName | field "-" 5 }}'))


def test_the_rate_of_initialization_is_for_volumes_from_snapshots(region: Any) -> None:
    source = region.provision(parameters=typed(volumeInitializationRate="200"))
    assert region.fake.volumes[source.handle].initialization_rate is None
    snapshot = region.snapshot(source)
    region.ready(snapshot.handle)
    copy = region.provision("u2", source_snapshot=snapshot.handle, parameters=typed(volumeInitializationRate="200"))
    assert region.fake.volumes[copy.handle].initialization_rate == 200


def test_a_volume_is_attached_when_its_contents_are_there_if_its_class_says_so(new_region: Any) -> None:
    region = new_region(Behaviour(initialize_seconds=600.0))
    snapshot = region.snapshot(region.provision())
    region.ready(snapshot.handle)
    parameters = typed(blockAttachUntilInitialized="true")
    asset = region.provision("u2", source_snapshot=snapshot.handle, parameters=parameters)
    fields = {**asset.source.fields, "volumeAttributes": asset.attributes}
    node = region.node(region.fake.add_instance())
    request = AttachRequest(
        context=region.context(),
        volume=region.identity(asset, "u2", source=VolumeSource(kind="csi", fields=fields)),
        node=node,
    )
    assert isinstance(region.backend.attach(request), InProgress)
    before = region.clock.now
    region.finish(region.backend.attach, request)
    assert 540.0 < region.clock.now - before < 700.0
    assert region.fake.calls["DescribeVolumeStatus"] < 15


# --- places -----------------------------------------------------------------------------------------------------


def test_zones_can_be_named_by_their_ids(new_region: Any) -> None:
    region = new_region(zone_label=ZONE_ID)
    asset = region.provision(segment={ZONE_ID: "tst1-az2"})
    assert only(region).zone == "eu-test-1b"
    assert asset.node_affinity == ({ZONE_ID: "tst1-az2"},)
    assert region.again().provision(segment={ZONE_ID: "tst1-az2"}) == asset
    node = region.node(region.fake.add_instance("eu-test-1b"))
    assert region.attach(asset, node).metadata["devicePath"].startswith("/dev/")
    chosen = region.provision("u2", segment=None)
    assert chosen.node_affinity[0][ZONE_ID] in {"tst1-az1", "tst1-az2", "tst1-az3"}


def test_zone_ids_of_the_options_must_exist(new_region: Any) -> None:
    with pytest.raises(InvalidArgument, match="'use1-az1' is not one of tst1-az1, tst1-az2, tst1-az3"):
        new_region(zone_label=ZONE_ID, zones=("use1-az1",))


def test_local_zones_are_used_where_a_node_or_the_options_name_them(new_region: Any) -> None:
    behaviour = Behaviour(local_zones=("eu-test-1-ham-1a",))
    region = new_region(behaviour)
    assert region.provision(segment={ZONE: "eu-test-1-ham-1a"}).node_affinity == ({ZONE: "eu-test-1-ham-1a"},)
    for number in range(8):
        region.provision(f"x{number}", segment=None)
    assert [each.zone for each in region.fake.volumes.values()].count("eu-test-1-ham-1a") == 1
    named = new_region(behaviour, zones=("eu-test-1-ham-1a",))
    named.provision(segment=None)
    assert only(named).zone == "eu-test-1-ham-1a"


# --- ceilings and limits ----------------------------------------------------------------------------------------


def test_a_zone_is_asked_for_its_ceiling_where_zones_differ(new_region: Any) -> None:
    region = new_region(Behaviour(iops_ceilings={("eu-test-1a", "gp3"): 16_000, ("eu-test-1a", "io2"): 64_000}))
    parameters = typed(type="gp3", iopsPerGB="500")
    plain = region.provision("u1", 100 * GIB, parameters=parameters)
    shared = region.provision("u2", 200 * GIB, parameters=typed(type="io2", iops="100000"))
    elsewhere = region.provision("u3", 100 * GIB, parameters=parameters, segment={ZONE: "eu-test-1b"})
    iops = [region.fake.volumes[each.handle].iops for each in (plain, shared, elsewhere)]
    assert iops == [16_000, 64_000, 50_000]
    asked = region.fake.calls["CreateVolume"]
    region.provision("u4", 100 * GIB, parameters=parameters)
    assert region.fake.calls["CreateVolume"] == asked + 1


def test_no_zone_is_asked_for_what_every_zone_has(region: Any) -> None:
    region.provision(size=100 * GIB, parameters=typed(iops="16000"))
    assert region.fake.calls["CreateVolume"] == 1


def test_a_change_stays_under_the_ceiling_and_ends(new_region: Any) -> None:
    region = new_region(Behaviour(iops_ceilings={("eu-test-1a", "gp3"): 16_000}))
    asset = region.provision(size=100 * GIB)
    region.modify(asset, iopsPerGB="300", allowAutoIOPSIncreaseOnModify="true")
    assert (only(region).iops, region.fake.calls["ModifyVolume"]) == (16_000, 1)
    region.modify(asset, iops="40000")
    assert region.fake.calls["ModifyVolume"] == 1


def test_a_ceiling_that_may_not_be_asked_for_is_left_to_ec2(region: Any) -> None:
    region.refuse("CreateVolume", "UnauthorizedOperation", when=lambda given: given.get("DryRun"), times=9)
    asset = region.provision(size=100 * GIB, parameters=typed(iops="20000"))
    assert region.fake.volumes[asset.handle].iops == 20_000


def test_reserved_attachments_are_left_free(new_region: Any) -> None:
    region = new_region(reserved_attachments=29)
    node = region.node(region.fake.add_instance(instance_type="m7i.large"))
    for number in range(2):
        region.attach(region.provision(f"u{number}"), node, f"u{number}")
    with pytest.raises(ResourceExhausted, match="holds 3 volumes and can hold 3 and 29 attachments that are reserved"):
        region.attach(region.provision("u9"), node, "u9")
