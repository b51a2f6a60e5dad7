"""A second opinion: moto and our mock are asked the same, where moto is known to answer as EC2 does.

What moto does otherwise than EC2 is not asked here (client tokens, states that take time, zones, double attach, pages,
bounds); `test_fake_ec2.py` has that. The driver lives its volumes' life on moto as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from volplane import Absent, AlreadyExists, Attachment, Done, NodeIdentity, Ownership
from volplane_aws_ebs import AwsEbsBackend
from volplane_aws_ebs.testing import Behaviour, FakeEC2, InProcess

REGION = "eu-central-1"
ZONE = f"{REGION}a"
ZONES = tuple(f"{REGION}{letter}" for letter in "abc")
IMAGE = "ami-03cf127a"
NO_VOLUME = "vol-0123456789abcdef0"
NO_INSTANCE = "i-0123456789abcdef0"
GIB = 1 << 30
SESSION = boto3.Session()
"""One for all clients: a session reads the model of EC2 once, which takes a quarter of a second."""


class Cloud:
    """An account, whoever plays it. instance, terminate: EC2's own calls for that are none of our mock's."""

    def __init__(
        self, ec2: Any, instance: Callable[[], str], terminate: Callable[[str], object], wait: Callable[[], None]
    ) -> None:
        self.ec2 = ec2
        self.instance = instance
        self.terminate = terminate
        self.wait = wait

    def create(self, **given: Any) -> str:
        made: str = self.ec2.create_volume(**{"AvailabilityZone": ZONE, "Size": 10, "VolumeType": "gp3", **given})[
            "VolumeId"
        ]
        self.wait()
        return made

    def look(self, id_: str) -> Any:
        return self.ec2.describe_volumes(VolumeIds=[id_])["Volumes"][0]

    def tagged(self, **tags: str) -> str:
        marks = [{"Key": key, "Value": value} for key, value in tags.items()]
        return self.create(TagSpecifications=[{"ResourceType": "volume", "Tags": marks}])

    def attached(self) -> tuple[str, str]:
        volume, instance = self.create(), self.instance()
        self.ec2.attach_volume(VolumeId=volume, InstanceId=instance, Device="/dev/sdf")
        self.wait()
        return volume, instance


def ours() -> Cloud:
    seconds = [0.0]

    def wait() -> None:
        seconds[0] += 30.0

    fake = FakeEC2(Behaviour(region=REGION, zones=ZONES), clock=lambda: seconds[0])

    instances: dict[str, Any] = {}

    def instance() -> str:
        made = fake.add_instance(ZONE)
        instances[made.id] = made
        return str(made.id)

    return Cloud(InProcess(fake).client(), instance, lambda id_: fake.terminate(instances[id_]), wait)


def motos() -> Cloud:
    """Only while `mock_aws` is in force, which answers every client of boto3 that is made meanwhile."""
    ec2 = SESSION.client("ec2", region_name=REGION, aws_access_key_id="any", aws_secret_access_key="any")

    def instance() -> str:
        run = {"ImageId": IMAGE, "MinCount": 1, "MaxCount": 1, "InstanceType": "m5.large"}
        made: str = ec2.run_instances(**run, Placement={"AvailabilityZone": ZONE})["Instances"][0]["InstanceId"]
        return made

    return Cloud(ec2, instance, lambda id_: ec2.terminate_instances(InstanceIds=[id_]), lambda: None)


@pytest.fixture(autouse=True)
def _without_a_thousand_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """moto reads them anew for every test, which takes a second."""
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")


@pytest.fixture
def moto() -> Iterator[Cloud]:
    with mock_aws():
        yield motos()


Question = Callable[[Cloud], Any]
QUESTIONS: list[Question] = []


def question(asked: Question) -> Question:
    QUESTIONS.append(asked)
    return asked


def code(call: Callable[..., Any], **given: Any) -> str:
    """The code of the refusal, or "" if there is none."""
    try:
        call(**given)
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return ""


def shape(volume: Any) -> dict[str, Any]:
    fields = ("Size", "VolumeType", "Iops", "Encrypted", "MultiAttachEnabled", "AvailabilityZone", "State")
    return {field: volume.get(field) for field in fields if volume.get(field) not in (None, False, "")}


@question
def what_is_a_volume_made_of_little(cloud: Cloud) -> Any:
    return [shape(cloud.look(cloud.create(VolumeType=kind))) for kind in ("gp3",)]


@question
def what_is_a_volume_made_of_much(cloud: Cloud) -> Any:
    made = cloud.look(cloud.create(Size=100, VolumeType="io2", Iops=5000, MultiAttachEnabled=True, Encrypted=True))
    return shape(made), made["KmsKeyId"].startswith(f"arn:aws:kms:{REGION}:")


@question
def which_demands_contradict_themselves(cloud: Cloud) -> Any:
    make = {"AvailabilityZone": ZONE, "Size": 10}
    demands: list[dict[str, Any]] = [
        {"VolumeType": "io1"},
        {"VolumeType": "io2"},
        {"VolumeType": "st1", "Size": 500, "Iops": 500},
        {"VolumeType": "standard", "Iops": 100},
        {"VolumeType": "gp2", "Throughput": 200},
        {"VolumeType": "io1", "Iops": 500, "Throughput": 200},
        {"VolumeType": "gp3", "KmsKeyId": f"arn:aws:kms:{REGION}:123456789012:key/0f"},
        {"VolumeType": "gp3", "MultiAttachEnabled": True},
        {"VolumeType": "gp2", "MultiAttachEnabled": True},
    ]
    return [bool(code(cloud.ec2.create_volume, **{**make, **demand})) for demand in demands]


@question
def how_many_tags_are_too_many(cloud: Cloud) -> Any:
    tags = [{"Key": f"k{number}", "Value": "v"} for number in range(51)]
    specification = [{"ResourceType": "volume", "Tags": tags}]
    return code(cloud.ec2.create_volume, AvailabilityZone=ZONE, Size=1, TagSpecifications=specification)


@question
def what_becomes_of_tags(cloud: Cloud) -> Any:
    volume = cloud.tagged(a="1", b="2")
    cloud.ec2.create_tags(Resources=[volume], Tags=[{"Key": "b", "Value": "3"}, {"Key": "c", "Value": ""}])
    cloud.ec2.delete_tags(Resources=[volume], Tags=[{"Key": "a"}])
    return sorted((tag["Key"], tag["Value"]) for tag in cloud.look(volume)["Tags"])


@question
def what_do_filters_find(cloud: Cloud) -> Any:
    volumes = [cloud.tagged(role="data", team="a"), cloud.tagged(role="data", team="b"), cloud.tagged(role="logs")]
    volumes.append(cloud.create(Size=33, VolumeType="gp2"))
    used, _ = cloud.attached()
    volumes.append(used)
    found = {}
    for name, values in [
        ("tag:role", ["data"]),
        ("tag:role", ["data", "logs"]),
        ("tag:team", ["a*"]),
        ("tag-key", ["team"]),
        ("tag-value", ["logs"]),
        ("size", ["33"]),
        ("volume-type", ["gp2"]),
        ("volume-id", volumes[:2]),
        ("availability-zone", [f"{REGION}b"]),
        ("encrypted", ["true"]),
        ("attachment.device", ["/dev/sdf"]),
        ("attachment.status", ["attached"]),
    ]:
        shown = cloud.ec2.describe_volumes(Filters=[{"Name": name, "Values": values}])["Volumes"]
        ids = {each["VolumeId"] for each in shown}
        found[f"{name}={len(values)}"] = [number for number, id_ in enumerate(volumes) if id_ in ids]
    both = [{"Name": "tag:role", "Values": ["data"]}, {"Name": "tag:team", "Values": ["b"]}]
    shown = cloud.ec2.describe_volumes(Filters=both)["Volumes"]
    return found, [volumes.index(each["VolumeId"]) for each in shown]


@question
def what_is_said_of_volumes_that_do_not_exist(cloud: Cloud) -> Any:
    ec2, instance = cloud.ec2, cloud.instance()
    return [
        code(ec2.describe_volumes, VolumeIds=[NO_VOLUME]),
        code(ec2.delete_volume, VolumeId=NO_VOLUME),
        code(ec2.attach_volume, VolumeId=NO_VOLUME, InstanceId=instance, Device="/dev/sdf"),
        code(ec2.detach_volume, VolumeId=NO_VOLUME, InstanceId=instance, Device="/dev/sdf"),
        code(ec2.modify_volume, VolumeId=NO_VOLUME, Size=20),
        code(ec2.create_tags, Resources=[NO_VOLUME], Tags=[{"Key": "a", "Value": "b"}]),
        code(ec2.create_snapshot, VolumeId=NO_VOLUME),
    ]


@question
def what_is_said_of_instances_that_do_not_exist(cloud: Cloud) -> Any:
    volume = cloud.create()
    return [
        code(cloud.ec2.attach_volume, VolumeId=volume, InstanceId=NO_INSTANCE, Device="/dev/sdf"),
        code(cloud.ec2.describe_instances, InstanceIds=[NO_INSTANCE]),
    ]


@question
def what_does_an_attachment_look_like(cloud: Cloud) -> Any:
    volume, instance = cloud.attached()
    seen = cloud.look(volume)
    [there] = seen["Attachments"]
    reservations = cloud.ec2.describe_instances(InstanceIds=[instance])["Reservations"]
    mapped = reservations[0]["Instances"][0]["BlockDeviceMappings"]
    return (
        seen["State"],
        there["State"],
        there["Device"],
        there["InstanceId"] == instance,
        {each["DeviceName"] for each in mapped if each["Ebs"]["VolumeId"] == volume},
    )


@question
def can_an_attached_volume_be_deleted(cloud: Cloud) -> Any:
    volume, _ = cloud.attached()
    return code(cloud.ec2.delete_volume, VolumeId=volume)


@question
def what_is_left_after_detaching(cloud: Cloud) -> Any:
    volume, instance = cloud.attached()
    wrong = code(cloud.ec2.detach_volume, VolumeId=volume, InstanceId=cloud.instance(), Device="/dev/sdf")
    cloud.ec2.detach_volume(VolumeId=volume, InstanceId=instance, Device="/dev/sdf")
    cloud.wait()
    seen = cloud.look(volume)
    cloud.ec2.delete_volume(VolumeId=volume)
    cloud.wait()
    return wrong, seen["State"], seen["Attachments"], code(cloud.ec2.describe_volumes, VolumeIds=[volume])


@question
def what_becomes_of_a_volume_whose_instance_ends(cloud: Cloud) -> Any:
    volume, instance = cloud.attached()
    cloud.terminate(instance)
    cloud.wait()
    return cloud.look(volume)["State"], cloud.look(volume)["Attachments"]


@question
def what_is_a_snapshot(cloud: Cloud) -> Any:
    volume = cloud.create(Size=7)
    tags = [{"ResourceType": "snapshot", "Tags": [{"Key": "of", "Value": "it"}]}]
    made = cloud.ec2.create_snapshot(VolumeId=volume, TagSpecifications=tags)["SnapshotId"]
    cloud.wait()
    [seen] = cloud.ec2.describe_snapshots(SnapshotIds=[made])["Snapshots"]
    by_tag = cloud.ec2.describe_snapshots(Filters=[{"Name": "tag:of", "Values": ["it"]}])["Snapshots"]
    copy = cloud.look(cloud.ec2.create_volume(AvailabilityZone=ZONE, SnapshotId=made, VolumeType="gp3")["VolumeId"])
    cloud.ec2.delete_snapshot(SnapshotId=made)
    cloud.wait()
    gone = code(cloud.ec2.describe_snapshots, SnapshotIds=[made]), code(cloud.ec2.delete_snapshot, SnapshotId=made)
    return seen["VolumeSize"], seen["State"], seen["Tags"], len(by_tag), copy["Size"], copy["SnapshotId"] == made, gone


@question
def what_does_a_modification_change(cloud: Cloud) -> Any:
    volume = cloud.create(Size=10)
    change = cloud.ec2.modify_volume(VolumeId=volume, Size=20)["VolumeModification"]
    for _ in range(20):
        cloud.wait()
    [state] = cloud.ec2.describe_volumes_modifications(VolumeIds=[volume])["VolumesModifications"]
    return change["OriginalSize"], change["TargetSize"], cloud.look(volume)["Size"], state["TargetSize"]


@question
def which_zones_are_there(cloud: Cloud) -> Any:
    zones = cloud.ec2.describe_availability_zones()["AvailabilityZones"]
    return sorted((zone["ZoneName"], zone["State"], zone["RegionName"]) for zone in zones)


@question
def how_many_volumes_does_an_instance_type_hold(cloud: Cloud) -> Any:
    kinds = cloud.ec2.describe_instance_types(InstanceTypes=["m5.large"])["InstanceTypes"]
    return [(kind["InstanceType"], kind["EbsInfo"]["MaximumEbsAttachments"]) for kind in kinds]


@question
def what_does_a_dry_run_say(cloud: Cloud) -> Any:
    volume = cloud.create()
    return [
        code(cloud.ec2.create_volume, AvailabilityZone=ZONE, Size=1, DryRun=True),
        code(cloud.ec2.delete_volume, VolumeId=volume, DryRun=True),
        cloud.look(volume)["State"],
    ]


@pytest.mark.parametrize("asked", QUESTIONS, ids=lambda asked: asked.__name__)
def test_both_mocks_answer_alike(asked: Question) -> None:
    mine = asked(ours())
    with mock_aws():
        assert asked(motos()) == mine


def test_the_two_are_not_the_same() -> None:
    """moto answers every client there is, if it may: then it would be compared with itself."""
    given = {"AvailabilityZone": ZONE, "Size": 1, "ClientToken": "one"}

    def volumes(cloud: Cloud) -> int:
        return len({cloud.ec2.create_volume(**given)["VolumeId"] for _ in range(2)})

    assert volumes(ours()) == 1
    with mock_aws():
        assert volumes(motos()) == 2


# --- the driver on moto -----------------------------------------------------------------------------------------


@pytest.fixture
def on_moto(new_region: Any, moto: Cloud) -> Any:
    """The requests of the other tests, against moto."""

    class OnMoto(new_region):  # type: ignore[misc, valid-type]
        def _driver(self) -> AwsEbsBackend:
            self.options = {"region": REGION}
            self.connect = lambda _settings: lambda _service, _attempts: moto.ec2
            return super()._driver()

        def demand(self, uid: str = "u1", size: int = GIB, **fields: Any) -> Any:
            return super().demand(uid, size, **{"segment": {"topology.kubernetes.io/zone": ZONE}, **fields})

    made = OnMoto()
    made.cloud = moto
    return made


def test_a_volume_lives_its_life_on_moto(on_moto: Any) -> None:
    asset = on_moto.provision(size=20 * GIB, parameters={"type": "gp3", "encrypted": True})
    seen = on_moto.cloud.look(asset.handle)
    assert (seen["Size"], seen["VolumeType"], seen["Encrypted"]) == (20, "gp3", True)
    assert on_moto.provision(size=20 * GIB, parameters={"type": "gp3", "encrypted": True}) == asset
    assert on_moto.again().find() == asset
    assert [(each.handle, each.owner) for each in on_moto.listed()] == [(asset.handle, on_moto.owner())]

    node = NodeIdentity(name="node-a", instance_id=f"aws:///{ZONE}/{on_moto.cloud.instance()}")
    attached = on_moto.attach(asset, node, fence="1/a/lease")
    assert isinstance(attached, Attachment)
    assert attached.metadata["devicePath"].startswith("/dev/xvd")
    assert on_moto.cloud.look(asset.handle)["Attachments"][0]["State"] == "attached"
    assert on_moto.attach(asset, node, fence="1/a/lease") == attached
    for _ in range(2):
        assert on_moto.detach(asset, node, fence="1/a/lease") == Done()
    assert on_moto.cloud.look(asset.handle)["Attachments"] == []

    assert on_moto.expand(asset, 30 * GIB).capacity_bytes == 30 * GIB
    snapshot = on_moto.snapshot(asset)
    assert snapshot.ready
    copy = on_moto.provision("u2", 40 * GIB, source_snapshot=snapshot.handle)
    assert on_moto.cloud.look(copy.handle)["SnapshotId"] == snapshot.handle
    assert on_moto.probe() == Done()
    for handle, uid in ((asset.handle, "u1"), (copy.handle, "u2"), (asset.handle, "u1")):
        assert on_moto.delete(handle, uid) == Done()
    assert on_moto.listed() == []
    assert on_moto.find() == Absent()


def test_volumes_of_others_on_moto_are_not_touched(on_moto: Any) -> None:
    asset = on_moto.provision()
    stranger = on_moto.identity(asset, owner=Ownership(cluster_id="other", claim_uid="u9", volume_name="pvc-u9"))
    with pytest.raises(AlreadyExists, match="belongs to pvc-u1 of claim u1 in cluster 'cluster-1'"):
        on_moto.backend.delete(on_moto.deletion(asset, owner=stranger.owner))
    assert on_moto.cloud.look(asset.handle)["State"] == "available"
