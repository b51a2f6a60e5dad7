"""Every StorageClass, VolumeAttributesClass and PersistentVolume of the official driver's documentation and e2e tests.

Their names and parameters are data (kubernetes-sigs/gcp-compute-persistent-disk-csi-driver, August 2026). Each is
provisioned, attached, grown, changed, detached and deleted, unchanged but for project and region; what is refused is
refused with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from volplane import Done
from volplane.drivers.parameters import check
from volplane_gce_pd.parameters import PARAMETERS
from volplane_gce_pd.testing import Behaviour

GIB = 1 << 30
A, B = "europe-test1-a", "europe-test1-b"
KEY = "projects/test-project/locations/europe-test1/keyRings/r/cryptoKeys/k"
POOL = f"projects/test-project/zones/{A}/storagePools/pool"
TYPE_LABEL = "disk-type.gke.io/"


@dataclass(frozen=True, kw_only=True)
class Example:
    """A class with what the example claims of it."""

    source: str
    parameters: dict[str, str] = field(default_factory=dict)
    attributes: tuple[dict[str, str], ...] = ()
    """Of VolumeAttributesClasses: that of the claim first, then others."""
    zones: tuple[str, ...] = (A,)
    gib: int = 10
    refused: str = ""


HB = {"type": "hyperdisk-balanced"}
IOPS, THROUGHPUT = "provisioned-iops-on-create", "provisioned-throughput-on-create"
REGIONAL = {"type": "pd-standard", "replication-type": "regional-pd"}
LABELS = {"labels": "key1=value1,key2=value2"}
EXAMPLES = [
    Example(source="user-guides/basic", parameters={"type": "pd-standard", "csi.storage.k8s.io/fstype": "xfs"}),
    Example(
        source="user-guides/dynamic-volumes",
        parameters={
            "type": "dynamic",
            "pd-type": "pd-balanced",
            "hyperdisk-type": "hyperdisk-balanced",
            "use-allowed-disk-topology": "true",
            THROUGHPUT: "250Mi",
            IOPS: "3000",
        },
    ),
    Example(source="user-guides/resize, demo-zonal-sc, sc-standard-no-labels", parameters={"type": "pd-standard"}),
    Example(
        source="user-guides/storage-pools", parameters={**HB, THROUGHPUT: "140Mi", IOPS: "3000", "storage-pools": POOL}
    ),
    Example(source="demo-labeled-sc", parameters=LABELS),
    Example(source="demo-regional-restricted-sc", parameters=REGIONAL, zones=(A, B), gib=200),
    Example(source="demo-regional-sc, sc-regional", parameters=REGIONAL, zones=(A, B), gib=200),
    Example(
        source="demo-sc-with-resource-tags",
        parameters={"resource-tags": "parent1/key1/value1,parent2/key2/value2"},
    ),
    Example(
        source="demo-vol-create, demo-vol-update",
        parameters={**HB, IOPS: "3000", THROUGHPUT: "150Mi"},
        attributes=({"iops": "3000", "throughput": "150Mi"}, {"iops": "3013", "throughput": "151Mi"}),
        gib=64,
    ),
    Example(
        source="hdb-volumeattributesclass, sc-hdb",
        parameters=HB,
        attributes=({}, {"iops": "3600", "throughput": "290Mi"}),
    ),
    Example(
        source="demo-zonal-sc ntfs, sc-windows, demo-windows",
        parameters={"type": "pd-standard", "csi.storage.k8s.io/fstype": "ntfs"},
    ),
    Example(
        source="data-cache-sc",
        parameters={"type": "pd-balanced", "data-cache-mode": "writeback", "data-cache-size": "50Gi"},
        refused="data-cache",
    ),
    Example(source="sc-balanced-no-labels", parameters={"type": "pd-balanced"}),
    Example(source="sc-balanced", parameters={"type": "pd-balanced", **LABELS}),
    Example(source="sc-extreme", parameters={"type": "pd-extreme", IOPS: "10000", **LABELS}, gib=500),
    Example(source="sc-ssd", parameters={"type": "pd-ssd"}),
    Example(source="sc-standard", parameters={"type": "pd-standard", **LABELS}),
    Example(source="sc-xfs", parameters={"type": "pd-balanced", "csi.storage.k8s.io/fstype": "xfs"}),
    Example(source="e2e/dynamic_volume, without types", parameters={"type": "dynamic"}),
    Example(
        source="e2e/dynamic_volume, topology", parameters={"type": "pd-balanced", "use-allowed-disk-topology": "true"}
    ),
    Example(
        source="e2e/multi_zone, multi-zone provisioning",
        parameters={"enable-multi-zone-provisioning": "true", "type": "hyperdisk-ml"},
        refused="enable-multi-zone-provisioning",
    ),
    Example(source="e2e/multi_zone, hyperdisk-ml", parameters={"type": "hyperdisk-ml"}),
    Example(source="e2e/multi_zone, regional", parameters={"replication-type": "regional-pd"}, zones=(A, B), gib=200),
    Example(
        source="e2e/multi_zone, hyperdisk-balanced-high-availability",
        parameters={
            "type": "hyperdisk-balanced-high-availability",
            "replication-type": "regional-pd",
            IOPS: "3000",
            THROUGHPUT: "140Mi",
        },
        zones=(A, B),
    ),
    Example(source="e2e/single_zone, key", parameters={"disk-encryption-kms-key": KEY}),
    Example(
        source="e2e/single_zone, hyperdisk-extreme", parameters={"type": "hyperdisk-extreme", IOPS: "10000"}, gib=64
    ),
    Example(
        source="e2e/single_zone, hyperdisk-throughput",
        parameters={"type": "hyperdisk-throughput", THROUGHPUT: "50Mi"},
        gib=2048,
    ),
    Example(
        source="e2e/single_zone, confidential",
        parameters={**HB, "enable-confidential-storage": "true", "disk-encryption-kms-key": KEY},
    ),
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.source)
def test_every_class_of_the_official_driver_works_unchanged_or_is_refused_with_the_reason(
    new_site: Any, example: Example
) -> None:
    values, flaws = check(PARAMETERS, example.parameters, "parameter")
    if example.refused:
        assert all(example.refused in flaw for flaw in flaws)
        assert flaws
        return
    assert flaws == ()
    site = new_site(Behaviour(kms_keys={KEY: True}, storage_pools=frozenset({POOL})))
    first, *later = example.attributes or ({},)
    site.validate(**example.parameters)
    asset = site.provision(size=example.gib * GIB, parameters=example.parameters, mutable_parameters=first)
    assert set(site.disk.zones) == set(example.zones) if len(example.zones) == 1 else len(site.disk.zones) == 2
    node = site.node(site.vm(machine_type="n2-standard-4"))
    assert site.attach(asset, node)
    assert site.expand(asset, (example.gib + 2) * GIB).capacity_bytes == (example.gib + 2) * GIB
    for attributes in later:
        site.clock.advance(4 * 3_600.0)
        assert site.modify(asset, **attributes) == Done()
        shown = {"iops": str(site.disk.iops), "throughput": f"{site.disk.throughput}Mi"}
        assert all(shown[key] == value for key, value in attributes.items())
    assert site.detach(asset, node) == site.delete(asset) == Done()
    assert site.fake.disks == {}
    assert values


@pytest.mark.parametrize("place", [f"zones/{A}", "regions/europe-test1"])
def test_volumes_that_people_write_are_ours_if_they_name_a_disk_of_project_and_region(site: Any, place: str) -> None:
    """docs/kubernetes/user-guides/pre-provisioned.md."""
    parameters = REGIONAL if place.startswith("regions") else {}
    made = site.provision(size=200 * GIB, parameters=parameters)
    site.disk.labels = {}
    handle = f"projects/test-project/{place}/disks/pvc-u1"
    assert made.handle == handle
    assert site.owns("csi", driver="pd.csi.storage.gke.io", volumeHandle=handle)
    assert not site.owns("csi", driver="pd.csi.storage.gke.io", volumeHandle=handle.replace("test-project", "other"))
    assert site.attach(made, site.node(site.vm()), volume={"owner": None})
    assert site.expand(made, 300 * GIB, owner=None).capacity_bytes == 300 * GIB


SNAPSHOT_CLASSES = [
    ("examples/kubernetes/snapshot, e2e", {}),
    ("docs/user-guides/snapshots", {"storage-locations": "us-east1", "snapshot-type": "snapshots"}),
    ("docs/user-guides/snapshots, images", {"snapshot-type": "images", "image-family": "preview"}),
    ("e2e, labels", {"labels": "key1=value1,key2=value2"}),
]


@pytest.mark.parametrize(
    "parameters", [each[1] for each in SNAPSHOT_CLASSES], ids=[each[0] for each in SNAPSHOT_CLASSES]
)
def test_every_snapshot_class_of_the_official_driver_works_unchanged(site: Any, parameters: Any) -> None:
    made = site.snapshot(site.provision(), parameters=parameters)
    assert site.ready(made.handle, parameters={}).ready
    assert site.provision("u2", source_snapshot=made.handle)
    assert site.delete_snapshot(made.handle) == Done()
    assert site.fake.snapshots == site.fake.images == {}
