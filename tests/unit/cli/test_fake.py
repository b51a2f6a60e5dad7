import importlib.metadata
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
import yaml

from volplane.cli.main import main


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple["subprocess.Popen[str]", list[str]]]:
    """A running `volplane fake aws_ebs`, and what it has said."""
    command = [sys.executable, "-m", "volplane", "fake", "aws_ebs", "--disks", "disks", "--instances", "2"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip())
        if line.startswith("Ctrl-C"):
            break
    yield process, lines
    process.kill()
    process.communicate()


def test_a_mocked_ec2_serves_boto3_as_it_says_and_shows_its_disks(
    served: tuple["subprocess.Popen[str]", list[str]], tmp_path: Path
) -> None:
    process, said = served
    url = said[0].removeprefix("serving ")
    text = "\n".join(line[2:] for line in said[said.index("  drivers:") : said.index("Other programs:")])
    (driver,) = yaml.safe_load(text)["drivers"]
    assert driver["backend"] == "aws_ebs"
    assert driver["options"] == {"region": "eu-test-1", "endpoint": url, "sts_endpoint": url, "attach": True}
    patches = [line.split("'")[1] for line in said if "providerID" in line]
    machines = [line.split()[0] for line in said if "providerID" in line]
    assert len(machines) == 2
    assert [json.loads(patch)["spec"]["providerID"].split("/")[-1] for patch in patches] == machines
    place = {"topology.kubernetes.io/zone": "eu-test-1a", "topology.kubernetes.io/region": "eu-test-1"}
    assert [json.loads(patch)["metadata"]["labels"] for patch in patches] == [place, place]
    (options,) = [line for line in said if line.startswith("  --nodes 2 --disks disks ")]
    assert "--node-label topology.kubernetes.io/zone=eu-test-1a" in options

    session = boto3.Session(aws_access_key_id="any", aws_secret_access_key="any", region_name="eu-test-1")
    ec2 = session.client("ec2", endpoint_url=url)
    volume = ec2.create_volume(AvailabilityZone="eu-test-1a", Size=1)["VolumeId"]
    ec2.get_waiter("volume_available").wait(VolumeIds=[volume], WaiterConfig={"Delay": 1})
    ec2.attach_volume(VolumeId=volume, InstanceId=machines[0], Device="/dev/xvdba")
    ec2.get_waiter("volume_in_use").wait(VolumeIds=[volume], WaiterConfig={"Delay": 1})
    found = ec2.describe_volumes(VolumeIds=[volume])["Volumes"][0]
    assert found["Attachments"][0]["InstanceId"] == machines[0]
    ec2.close()
    assert list((tmp_path / "disks" / "contents").iterdir())

    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert process.stderr is not None
    assert process.stderr.read() == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["aws_ebz"], "no mocked storage comes with a backend 'aws_ebz'; did you mean 'aws_ebs'?"),
        (["hostpath"], "the mocked storage of hostpath cannot be served to other processes"),
        (["aws_ebs", "--disks", "file/below"], "--disks file/below cannot be used"),
    ],
)
def test_what_cannot_be_served_is_one_line(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    assert main(["fake", *arguments]) == 1
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert words in shown.err


def test_a_port_that_is_taken_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["fake", "aws_ebs", "--port", port]) == 1
    assert f"--port {port} cannot be used: Address already in use" in capsys.readouterr().err


def test_a_backend_of_others_may_bring_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The mock of gce_pd has no disks to show, and says so itself."""
    pytest.importorskip("google.cloud.compute_v1")
    names = {point.name for point in importlib.metadata.entry_points(group="volplane.fakes")}
    assert {"aws_ebs", "gce_pd"} <= names
    assert main(["fake", "gce_pd", "--disks", "x"]) == 1
    assert "shows no disks to pods" in capsys.readouterr().err
