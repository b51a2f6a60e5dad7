"""The code in the README runs, and the comparison with the official driver is true."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from volplane import ParameterSchema
from volplane_gce_pd.parameters import PARAMETERS
from volplane_gce_pd.snapshot_parameters import PARAMETERS as SNAPSHOT_PARAMETERS

PAGE = Path(__file__).resolve().parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


@pytest.mark.parametrize("code", BLOCKS, ids=[f"block {number}" for number, _ in enumerate(BLOCKS, 1)])
def test_a_block_runs(code: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert ran.returncode == 0, ran.stderr


COMPARED = Path(__file__).resolve().parents[3] / "docs" / "reference" / "compared.md"
OFFICIAL = (
    "csi.storage.k8s.io/fstype type pd-type hyperdisk-type disk-type-preference replication-type availability-class "
    "disk-encryption-kms-key labels provisioned-iops-on-create provisioned-throughput-on-create "
    "enable-confidential-storage storage-pools resource-tags data-cache-size data-cache-mode "
    "enable-multi-zone-provisioning access-mode use-allowed-disk-topology"
)
"""Parameters of classes: kubernetes-sigs/gcp-compute-persistent-disk-csi-driver, pkg/parameters/parameters.go."""


OFFICIAL_OF_SNAPSHOTS = "storage-locations snapshot-type image-family labels resource-tags"
"""Parameters of VolumeSnapshotClasses, there."""


@pytest.mark.skipif(not COMPARED.is_file(), reason="not in the repository")
@pytest.mark.parametrize(
    ("heading", "schema", "official"),
    [("Classes", PARAMETERS, OFFICIAL), ("Snapshot classes", SNAPSHOT_PARAMETERS, OFFICIAL_OF_SNAPSHOTS)],
)
def test_the_comparison_says_of_every_parameter_what_the_schema_says(
    heading: str, schema: ParameterSchema, official: str
) -> None:
    section = COMPARED.read_text("utf-8").split(f"### {heading} of gce_pd\n")[1].split("\n#")[0]
    taken, _, absent = section.strip().split("\n\n")[0].partition("\nAbsent: ")
    told = [
        (name, said) for said, text in (("same", taken), ("absent", absent)) for name in re.findall("`(.+?)`", text)
    ]
    known = {parameter.name for parameter in schema.parameters}
    assert dict(told) == {name: "same" if name in known else "absent" for name in official.split()}
