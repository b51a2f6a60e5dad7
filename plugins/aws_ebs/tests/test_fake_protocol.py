"""The query protocol and the HTTP face of the mocked EC2."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode, urlsplit

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError
from botocore.session import Session

from volplane_aws_ebs.testing import Behaviour, EC2Error, FakeEC2, FakeEC2Server, Fault, FaultKind, ModelViolation
from volplane_aws_ebs.testing.query import QueryProtocol

VERSION = {"Version": "2016-11-15"}


@pytest.fixture
def server() -> Iterator[FakeEC2Server]:
    with FakeEC2Server(FakeEC2(Behaviour(create_seconds=0.0))) as server:
        yield server


def client(server: FakeEC2Server, **config: Any) -> Any:
    session = boto3.Session(aws_access_key_id="x", aws_secret_access_key="y", region_name="eu-test-1")
    options = Config(**{"retries": {"mode": "standard", "total_max_attempts": 1}, **config})
    return session.client("ec2", endpoint_url=server.url, config=options)


def post(server: FakeEC2Server, body: bytes | str, **headers: str) -> tuple[int, str]:
    address = urlsplit(server.url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=10)
    try:
        connection.request("POST", "/", body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_a_request_becomes_what_boto3_was_given() -> None:
    """Whatever boto3 writes for these parameters, the fake reads the same parameters."""
    given = {
        "AvailabilityZone": "eu-test-1a",
        "Size": 10,
        "Encrypted": True,
        "ClientToken": "t&=<>",
        "TagSpecifications": [
            {"ResourceType": "volume", "Tags": [{"Key": "a", "Value": "1 2"}, {"Key": "b", "Value": ""}]},
            {"ResourceType": "snapshot", "Tags": [{"Key": "c", "Value": "ü"}]},
        ],
    }
    model = Session().get_service_model("ec2").operation_model("CreateVolume")
    from botocore.serialize import create_serializer

    form = create_serializer("ec2", include_validation=True).serialize_to_request(given, model)["body"]
    assert QueryProtocol().parameters("CreateVolume", form) == given


@pytest.mark.parametrize(
    ("action", "form", "code"),
    [
        ("CreateDisk", {}, "InvalidAction"),
        ("", {}, "InvalidAction"),
        ("CreateVolume", {"Colour": "red"}, "UnknownParameter"),
        ("CreateVolume", {"Size": "ten"}, "InvalidParameterValue"),
        ("CreateVolume", {"Encrypted": "maybe"}, "InvalidParameterValue"),
        ("CreateVolume", {"Size.1": "10"}, "UnknownParameter"),
        ("CreateVolume", {"TagSpecification": "x"}, "InvalidParameterValue"),
        ("CreateVolume", {"TagSpecification.a": "x"}, "InvalidParameterValue"),
        ("CreateVolume", {"TagSpecification.1.Colour": "x"}, "UnknownParameter"),
        ("CreateVolume", {"Size": "1", "Size.1": "2"}, "InvalidParameterValue"),
        ("AttachVolume", {"VolumeId": "vol-1"}, "MissingParameter"),
    ],
)
def test_requests_that_ec2_would_not_understand_are_refused(action: str, form: Any, code: str) -> None:
    with pytest.raises(EC2Error) as raised:
        QueryProtocol().parameters(action, form)
    assert raised.value.code == code


@pytest.mark.parametrize(
    "result",
    [
        {"Colour": "red"},
        {"Size": "ten"},
        {"Size": True},
        {"State": "melting"},
        {"Encrypted": "true"},
        {"Attachments": {}},
        {"CreateTime": "now"},
        {"Tags": [{"Colour": "red"}]},
    ],
)
def test_the_fake_cannot_answer_what_the_service_model_does_not_have(result: Any) -> None:
    with pytest.raises(ModelViolation):
        QueryProtocol().result("CreateVolume", result, "r")


def test_boto3_talks_to_it_over_http(server: FakeEC2Server) -> None:
    ec2 = client(server)
    tags = [{"ResourceType": "volume", "Tags": [{"Key": "<k> & co", "Value": "\u00fc \u2713"}]}]
    made = ec2.create_volume(AvailabilityZone="eu-test-1a", Size=1, TagSpecifications=tags)
    assert made["Tags"] == tags[0]["Tags"]
    assert ec2.describe_volumes()["Volumes"][0]["VolumeId"] == made["VolumeId"]
    with pytest.raises(ClientError) as raised:
        ec2.delete_volume(VolumeId="vol-0123456789abcdef0")
    assert raised.value.response["Error"]["Message"] == "The volume 'vol-0123456789abcdef0' does not exist."
    assert raised.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400


def test_throttling_is_seen_by_the_retries_of_the_sdk(server: FakeEC2Server) -> None:
    server.fake.faults.add(Fault(action="DescribeVolumes", kind=FaultKind.REFUSE, code="RequestLimitExceeded"))
    ec2 = client(server, retries={"mode": "standard", "total_max_attempts": 2})
    assert ec2.describe_volumes()["ResponseMetadata"]["RetryAttempts"] == 1


def test_a_lost_answer_closes_the_connection(server: FakeEC2Server) -> None:
    server.fake.faults.add(Fault(action="CreateVolume", kind=FaultKind.LOSE))
    with pytest.raises(ConnectionClosedError):
        client(server).create_volume(AvailabilityZone="eu-test-1a", Size=1)
    assert len(server.fake.volumes) == 1


def test_the_sdk_repeats_a_lost_create_with_its_own_token(server: FakeEC2Server) -> None:
    server.fake.faults.add(Fault(action="CreateVolume", kind=FaultKind.LOSE))
    ec2 = client(server, retries={"mode": "standard", "total_max_attempts": 2})
    made = ec2.create_volume(AvailabilityZone="eu-test-1a", Size=1)["VolumeId"]
    assert list(server.fake.volumes) == [made]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "InvalidAction"),
        (b"\xff\xfe", "InvalidRequest"),
        (b"Action", "InvalidRequest"),
        (urlencode({"Action": "DropTables", **VERSION}), "InvalidAction"),
        (urlencode({"Action": "DescribeVolumes", "A" * 5000: "x", **VERSION}), "UnknownParameter"),
        ("&".join(f"k{n}=v" for n in range(30_000)), "InvalidRequest"),
        (
            urlencode({"Action": "DescribeVolumes", "VolumeId." + ".".join("1" * 900): "x", **VERSION}),
            "UnknownParameter",
        ),
    ],
)
def test_hostile_bodies_are_refused(server: FakeEC2Server, body: Any, told: str) -> None:
    status, answer = post(server, body)
    assert status == 400
    assert f"<Code>{told}</Code>" in answer


def test_a_body_without_or_beyond_a_length_is_refused(server: FakeEC2Server) -> None:
    assert post(server, b"", **{"Content-Length": "99999999"})[0] == 413
    address = urlsplit(server.url)
    with socket.create_connection((str(address.hostname), int(address.port or 0)), timeout=10) as raw:
        raw.sendall(b"POST / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert raw.recv(64).startswith(b"HTTP/1.1 411")


def test_it_listens_on_loopback_alone_and_ends(server: FakeEC2Server) -> None:
    assert urlsplit(server.url).hostname == "127.0.0.1"
    before = threading.active_count()
    with FakeEC2Server(FakeEC2()) as second:
        ec2 = client(second)
        ec2.describe_volumes()
        url = second.url
    address = urlsplit(url)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((str(address.hostname), int(address.port or 0)), timeout=5)
    ec2.close()
    for thread in threading.enumerate():
        if "process_request" in thread.name:
            thread.join(5)
    assert threading.active_count() <= before


def test_sts_answers_what_drivers_ask(server: FakeEC2Server) -> None:
    session = boto3.Session(aws_access_key_id="x", aws_secret_access_key="y", region_name="eu-test-1")
    sts = session.client("sts", endpoint_url=server.url)
    role = sts.assume_role(RoleArn="arn:aws:iam::123456789012:role/storage", RoleSessionName="me")
    assert role["Credentials"]["AccessKeyId"] == "ASIASTORAGE"
    assert "ec2:X" in sts.decode_authorization_message(EncodedMessage="ec2:X")["DecodedMessage"]
    with pytest.raises(ClientError):
        sts.get_caller_identity()
