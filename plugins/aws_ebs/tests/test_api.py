"""Credentials, roles, connections: over HTTP, with boto3 as it is."""

from __future__ import annotations

import io
import json
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from volplane import (
    ClaimIdentity,
    Context,
    DescribeRequest,
    Done,
    InvalidArgument,
    Ownership,
    PermissionDenied,
    ProvisionRequest,
    ResourceExhausted,
    Secret,
    StartRequest,
    StopRequest,
    Unavailable,
    read_parameters,
)
from volplane.controller.logs import configure
from volplane.controller.metrics import Metrics
from volplane_aws_ebs import AwsEbsBackend, api
from volplane_aws_ebs.api import Action, AwsError
from volplane_aws_ebs.settings import Settings
from volplane_aws_ebs.testing import Behaviour, FakeEC2, FakeEC2Server, Fault, FaultKind
from volplane_testing.cloud import FakeCloudServer, HttpRequest, HttpResponse

REGION = "eu-test-1"
CONTEXT = Context(driver="ebs.volplane.dev", cluster_id="cluster-1")
START = StartRequest(context=CONTEXT)
ROLE = "arn:aws:iam::123456789012:role/storage"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Only what a test sets: no files, no metadata service."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_EC2"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIABASE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


@pytest.fixture
def server() -> Iterator[FakeEC2Server]:
    with FakeEC2Server(FakeEC2(Behaviour(region=REGION))) as server:
        yield server


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK makes one attempt: its pause between two would be a real one."""
    monkeypatch.setattr(api, "_ATTEMPTS", 1)


def backend(server: FakeEC2Server, **options: Any) -> AwsEbsBackend:
    urls = {"endpoint": server.url, "sts_endpoint": server.url}
    return AwsEbsBackend({"region": REGION, **urls, **options})


def demand() -> ProvisionRequest:
    owner = Ownership(cluster_id="cluster-1", claim_uid="u1", volume_name="pvc-u1")
    claim = ClaimIdentity(namespace="default", name="data", uid="u1")
    return ProvisionRequest(context=CONTEXT, name="pvc-u1", capacity_bytes=1 << 30, owner=owner, claim=claim)


def test_credentials_come_from_the_default_chain(server: FakeEC2Server) -> None:
    server.fake.behave(access_keys=frozenset({"AKIABASE"}))
    driver = backend(server)
    assert driver.start(START) == Done()
    assert driver.stop(StopRequest(context=CONTEXT)) == Done()


def test_a_role_is_assumed_for_a_driver(server: FakeEC2Server) -> None:
    server.fake.behave(access_keys=frozenset({"ASIASTORAGE"}))
    driver = backend(server, role_arn=ROLE, role_external_id="outside")
    assert driver.start(START) == Done()
    assert server.fake.calls["sts:AssumeRole"] == 1
    assert driver.start(START) == Done()
    assert server.fake.calls["sts:AssumeRole"] == 1
    driver.stop(StopRequest(context=CONTEXT))


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What a process with `-vv` logs as JSON."""
    out = io.StringIO()
    loggers = [logging.getLogger(name) for name in ("", "volplane", "botocore", "urllib3", "asyncio", "google")]
    former = [logger.level for logger in loggers]
    handler = configure("json", verbosity=2, stream=out)
    yield out
    logging.getLogger().removeHandler(handler)
    for logger, level in zip(loggers, former, strict=True):
        logger.setLevel(level)


def test_the_credentials_of_a_role_are_not_in_the_debug_log(server: FakeEC2Server, log: io.StringIO) -> None:
    driver = backend(server, role_arn=ROLE)
    assert driver.start(START) == Done()
    driver.stop(StopRequest(context=CONTEXT))
    assert "<SessionToken>***</SessionToken>" in log.getvalue()
    assert "x-amz-security-token" in log.getvalue()
    assert "hush" not in log.getvalue().lower()


def test_all_clients_of_a_driver_share_the_credentials_of_its_role(server: FakeEC2Server) -> None:
    options = {"region": REGION, "endpoint": server.url, "sts_endpoint": server.url, "role_arn": ROLE}
    client = api.AwsClient(read_parameters(Settings, options))
    client.call(Action.DESCRIBE_AVAILABILITY_ZONES)
    with pytest.raises(AwsError, match=r"InvalidVolume\.NotFound"):  # By the client that repeats nothing.
        client.call(Action.MODIFY_VOLUME, VolumeId="vol-0a1b2c3d4e5f67890", Size=2)
    client.call(Action.DECODE_AUTHORIZATION_MESSAGE, EncodedMessage="ec2:DescribeVolumes")
    assert server.fake.calls["sts:AssumeRole"] == 1
    client.close()


def test_two_drivers_work_in_two_roles(server: FakeEC2Server) -> None:
    for role, key in (("one", "ASIAONE"), ("two", "ASIATWO")):
        server.fake.behave(access_keys=frozenset({key}))
        driver = backend(server, role_arn=f"arn:aws:iam::123456789012:role/{role}")
        assert driver.start(START) == Done()
        driver.stop(StopRequest(context=CONTEXT))


def test_a_web_identity_is_exchanged_for_credentials(
    server: FakeEC2Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """IAM roles for service accounts: the webhook of EKS sets these variables and mounts the token."""
    token = tmp_path / "token"
    token.write_text("header.claims.signature")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(token))
    monkeypatch.setenv("AWS_ROLE_ARN", ROLE)
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", server.url)
    server.fake.behave(access_keys=frozenset({"ASIASTORAGE"}))
    driver = backend(server)
    assert driver.start(START) == Done()
    assert server.fake.calls["sts:AssumeRoleWithWebIdentity"] == 1
    driver.stop(StopRequest(context=CONTEXT))
    token.unlink()
    with pytest.raises(PermissionDenied, match=r"token.*give the driver credentials"):
        backend(server).start(START)


def test_a_pod_identity_is_asked_for_credentials(
    server: FakeEC2Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """EKS Pod Identity: an agent on the node answers with the credentials of the pod's role."""
    asked: list[str] = []

    def agent(request: HttpRequest) -> HttpResponse:
        asked.append(request.headers.get("authorization", ""))
        expires = "2126-01-01T00:00:00Z"
        given = {"AccessKeyId": "ASIAPOD", "SecretAccessKey": "hush", "Token": "t", "Expiration": expires}
        return HttpResponse(content_type="application/json", body=json.dumps(given).encode())

    token = tmp_path / "token"
    token.write_text("of-the-pod")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    server.fake.behave(access_keys=frozenset({"ASIAPOD"}))
    with FakeCloudServer(agent) as node:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{node.url}/v1/credentials")
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(token))
        driver = backend(server)
        assert driver.start(START) == Done()
        driver.stop(StopRequest(context=CONTEXT))
    assert asked == ["of-the-pod"]


def keys(key_id: str, secret: str = "hush-hush", token: str = "") -> dict[str, Secret]:
    """Options as volplane would give them, from Kubernetes Secrets."""
    named = {"access_key_id": key_id, "secret_access_key": secret, "session_token": token}
    options = {}
    for name, text in named.items():
        if text:
            options[name] = Secret(f"secret:volplane-system/aws/{name}")
            options[name].give(text)
    return options


def test_keys_of_the_options_go_before_the_default_chain_and_are_followed_when_they_change(
    server: FakeEC2Server,
) -> None:
    server.fake.behave(access_keys=frozenset({"AKIAOPTION"}))
    options = keys("AKIAOPTION")
    driver = backend(server, **options)
    assert driver.start(START) == Done()
    server.fake.behave(access_keys=frozenset({"AKIAROTATED"}))
    with pytest.raises(PermissionDenied, match="AWS does not accept the driver's credentials"):
        driver.start(START)
    options["access_key_id"].give("AKIAROTATED")
    assert driver.start(START) == Done()
    driver.stop(StopRequest(context=CONTEXT))


def test_keys_of_the_options_may_assume_a_role_or_be_temporary(server: FakeEC2Server) -> None:
    server.fake.behave(access_keys=frozenset({"ASIASTORAGE"}))
    for options in ({**keys("AKIAOPTION"), "role_arn": ROLE}, keys("ASIASTORAGE", token="for-a-while")):
        driver = backend(server, **options)
        assert driver.start(START) == Done()
        driver.stop(StopRequest(context=CONTEXT))


def test_keys_that_cannot_be_read_are_named_by_their_place(server: FakeEC2Server) -> None:
    missing = {"access_key_id": Secret("env:NO_SUCH_KEY"), "secret_access_key": Secret("env:NO_SUCH_SECRET")}
    driver = backend(server, **missing)
    with pytest.raises(Unavailable, match=r"environment variable NO_SUCH_KEY is not set"):
        driver.start(START)


def test_keys_are_shown_nowhere(server: FakeEC2Server, caplog: pytest.LogCaptureFixture) -> None:
    options = keys("AKIAOPTION", "wJalrXUtnFEMI-the-secret-key")
    driver = backend(server, **options)
    driver.start(START)
    server.fake.behave(access_keys=frozenset())
    with pytest.raises(PermissionDenied) as refused:
        driver.start(START)
    shown = (
        repr(driver)
        + repr(driver._settings)
        + str(refused.value)
        + repr(driver.describe(DescribeRequest(context=CONTEXT)))
    )
    assert "wJalrXUtnFEMI" not in shown + caplog.text
    driver.stop(StopRequest(context=CONTEXT))


def test_no_credentials_is_said_as_that(server: FakeEC2Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    driver = backend(server)
    with pytest.raises(PermissionDenied, match="give the driver credentials"):
        driver.start(START)


def test_a_role_that_may_not_be_assumed_is_said_as_that(server: FakeEC2Server, impatient: None) -> None:
    driver = backend(server, role_arn=ROLE, sts_endpoint="http://127.0.0.1:9")
    with pytest.raises(Unavailable, match="look at the options region and endpoint"):
        driver.start(START)


def test_credentials_of_another_region_are_not_accepted(server: FakeEC2Server) -> None:
    driver = AwsEbsBackend({"region": "us-test-9", "endpoint": server.url})
    with pytest.raises(PermissionDenied, match="Credential should be scoped to a valid region"):
        driver.start(START)


def test_an_endpoint_that_nobody_serves_is_unavailable_and_heals(server: FakeEC2Server, impatient: None) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        driver = AwsEbsBackend({"region": REGION, "endpoint": f"http://127.0.0.1:{probe.getsockname()[1]}"})
        with pytest.raises(Unavailable, match="look at the options region and endpoint"):
            driver.start(START)


DESCRIBED = b"<DescribeAvailabilityZonesResponse><availabilityZoneInfo><item><zoneName>eu-test-1a</zoneName>"


def answer(status: str, body: bytes, *, length: int | None = None) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/xml\r\nContent-Length: {length or len(body)}\r\n\r\n"
    return head.encode() + body


@pytest.mark.parametrize(
    ("sent", "ends"),
    [
        pytest.param(answer("500 Oops", b"<html>busy</html>"), True, id="no XML"),
        pytest.param(answer("200 OK", DESCRIBED), True, id="half of the XML"),
        pytest.param(answer("200 OK", DESCRIBED, length=4_000), True, id="half of the body"),
        pytest.param(answer("200 OK", b"")[:20], True, id="half of the headers"),
        pytest.param(b"", True, id="nothing"),
        pytest.param(b"", False, id="nothing for a long time"),
    ],
)
def test_an_answer_that_cannot_be_read_or_does_not_come_leaves_the_outcome_open(
    monkeypatch: pytest.MonkeyPatch, impatient: None, sent: bytes, ends: bool
) -> None:
    monkeypatch.setattr(api, "_READ_SECONDS", 0.3)
    given_up = threading.Event()

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):  # The client may leave first.
            connection.recv(65536)
            connection.sendall(sent)
            if not ends:
                given_up.wait(10)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        driver = AwsEbsBackend({"region": REGION, "endpoint": f"http://127.0.0.1:{listener.getsockname()[1]}"})
        with pytest.raises(Unavailable, match="may have been done") as raised:
            driver.start(START)
        given_up.set()
        assert not raised.value.nothing_done
        driver.stop(StopRequest(context=CONTEXT))
        thread.join(10)


def test_a_connection_that_dies_while_idle_is_tried_again_by_the_sdk(server: FakeEC2Server) -> None:
    driver = backend(server)
    driver.start(START)
    server.fake.faults.add(Fault(action="DescribeAvailabilityZones", kind=FaultKind.CLOSE))
    assert driver.start(START) == Done()
    driver.stop(StopRequest(context=CONTEXT))


def test_a_refused_action_is_decoded_over_http_too(server: FakeEC2Server) -> None:
    message = "You are not authorized. Encoded authorization failure message: ec2:DescribeAvailabilityZones"
    fault = Fault(
        action="DescribeAvailabilityZones", kind=FaultKind.REFUSE, code="UnauthorizedOperation", message=message
    )
    server.fake.faults.add(fault)
    driver = backend(server)
    with pytest.raises(PermissionDenied, match="user/test may not ec2:DescribeAvailabilityZones"):
        driver.start(START)
    assert server.fake.calls["sts:DecodeAuthorizationMessage"] == 1
    driver.stop(StopRequest(context=CONTEXT))


def test_the_sdk_repeats_a_call_at_most_once(server: FakeEC2Server) -> None:
    server.fake.faults.add(Fault(action="DescribeVolumes", kind=FaultKind.REFUSE, code="InternalError", times=9))
    driver = backend(server)
    driver.start(START)
    with pytest.raises(Unavailable):
        driver.provision(demand())
    assert server.fake.calls["DescribeVolumes"] == 2
    driver.stop(StopRequest(context=CONTEXT))


def test_boto3_is_imported_when_a_driver_connects_and_not_before() -> None:
    code = (
        "import sys, volplane_aws_ebs; from volplane_aws_ebs import AwsEbsBackend; "
        "AwsEbsBackend({'region': 'eu-test-1'}); print(sorted(m for m in sys.modules if m in ('boto3', 'botocore')))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"access_key_id": Secret("env:A")}, "option secret_access_key is missing; it belongs to access_key_id"),
        ({"secret_access_key": Secret("env:A")}, "option access_key_id is missing; it belongs to secret_access_key"),
        ({"session_token": Secret("env:A")}, "option access_key_id is missing; it belongs to session_token"),
        ({"region": "eu-test-1a"}, "option region: 'eu-test-1a' is a zone; its region is 'eu-test-1'"),
        ({"role_external_id": "x"}, "option role_external_id: .* needs role_arn"),
        ({"tags": {"volplane.dev/x": "y"}}, "option tags: 'volplane.dev/x' is reserved"),
        ({"tags": {"k" * 200: "y"}}, "1 to 128 characters"),
        ({"tags": {f"k{n}": "y" for n in range(40)}}, "at most 30"),
    ],
)
def test_options_that_cannot_be_used_are_refused(options: Any, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        AwsEbsBackend({"region": REGION, **options})


def test_each_call_is_counted_by_its_name_and_code(region: Any) -> None:
    registry = Metrics().registry

    def counted(name: str, **labels: str) -> float:
        return registry.get_sample_value(f"volplane_cloud_request_{name}", {"cloud": "ec2", **labels}) or 0.0

    made = counted("duration_seconds_count", request="CreateVolume")
    refused = counted("errors_total", request="CreateVolume", error="VolumeLimitExceeded")
    region.refuse("CreateVolume", "VolumeLimitExceeded")
    with pytest.raises(ResourceExhausted):
        region.provision()
    assert counted("duration_seconds_count", request="CreateVolume") == made + 1
    assert counted("errors_total", request="CreateVolume", error="VolumeLimitExceeded") == refused + 1
