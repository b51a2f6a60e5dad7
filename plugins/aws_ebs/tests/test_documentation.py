"""The code in the documentation of the mocked EC2 runs, and the comparison with the official driver is true."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from volplane import ParameterSchema
from volplane_aws_ebs.parameters import PARAMETERS
from volplane_aws_ebs.snapshot_parameters import PARAMETERS as SNAPSHOT_PARAMETERS

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGES = [
    DOCS / "how-to" / "test-against-a-mocked-ec2.md",
    DOCS / "reference" / "fake_ec2.md",
    DOCS / "reference" / "fake_ec2_server.md",
]
BLOCKS = [
    block
    for page in PAGES
    if page.is_file()
    for block in re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
]


RUN = """
import json, sys
for number, block in enumerate(json.load(sys.stdin), 1):
    exec(compile(block, f"block {number}", "exec"), {"__name__": "__main__"})
"""


@pytest.mark.skipif(not BLOCKS, reason="not in the repository")
def test_the_blocks_run() -> None:
    """In one process: boto3 takes a second to be imported."""
    command = [sys.executable, "-W", "error", "-c", RUN]
    ran = subprocess.run(command, input=json.dumps(BLOCKS), capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 0, ran.stderr


COMPARED = Path(__file__).resolve().parents[3] / "docs" / "reference" / "compared.md"
OFFICIAL = (
    "csi.storage.k8s.io/fstype type iopsPerGB allowAutoIOPSPerGBIncrease allowAutoIOPSIncreaseOnModify iops throughput "
    "encrypted kmsKeyId blockSize inodeSize bytesPerInode numberOfInodes ext4BigAlloc ext4ClusterSize "
    "ext4EncryptionSupport volumeInitializationRate blockExpress blockAttachUntilInitialized tagSpecification"
)
"""Parameters of classes: kubernetes-sigs/aws-ebs-csi-driver, docs/parameters.md and pkg/driver/constants.go."""


OFFICIAL_OF_SNAPSHOTS = (
    "tagSpecification fastSnapshotRestoreAvailabilityZones outpostArn lockMode lockDuration "
    "lockExpirationDate lockCoolOffPeriod"
)
"""Parameters of VolumeSnapshotClasses, there."""


@pytest.mark.skipif(not COMPARED.is_file(), reason="not in the repository")
@pytest.mark.parametrize(
    ("heading", "schema", "official"),
    [("Classes", PARAMETERS, OFFICIAL), ("Snapshot classes", SNAPSHOT_PARAMETERS, OFFICIAL_OF_SNAPSHOTS)],
)
def test_the_comparison_says_of_every_parameter_what_the_schema_says(
    heading: str, schema: ParameterSchema, official: str
) -> None:
    section = COMPARED.read_text("utf-8").split(f"### {heading} of aws_ebs\n")[1].split("\n#")[0]
    taken, _, absent = section.strip().split("\n\n")[0].partition("\nAbsent: ")
    told = [
        (name, said) for said, text in (("same", taken), ("absent", absent)) for name in re.findall("`(.+?)`", text)
    ]
    known = {parameter.name for parameter in schema.parameters}
    assert dict(told) == {name: "same" if name in known else "absent" for name in official.split()}
