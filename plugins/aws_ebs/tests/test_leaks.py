"""What the leak check sees of an account: orphans, foreign and drifted volumes, and lists that are long."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from volplane import Asset, ListRequest
from volplane.kube import names
from volplane.kube.objects import Metadata, Volume, VolumeSpec
from volplane.leaks.comparison import Comparison, SnapshotComparison
from volplane.snapshots.objects import VolumeSnapshot, VolumeSnapshotContent
from volplane_testing.cloud import Former

GIB = 1 << 30
DRIVER = "ebs.volplane.dev"


def persistent(asset: Asset, uid: str) -> Volume:
    """The PersistentVolume that the core makes of it."""
    annotations = {names.PROVISIONED_BY: DRIVER, names.HANDLE: asset.handle}
    metadata = Metadata(name=f"pvc-{uid}", uid=f"pv-{uid}", annotations=annotations)
    return Volume(metadata=metadata, spec=VolumeSpec(capacity={"storage": f"{asset.capacity_bytes >> 30}Gi"}))


def test_each_volume_gets_its_verdict(region: Any) -> None:
    made = {uid: region.provision(uid, 10 * GIB) for uid in ("kept", "orphan", "drifted", "foreign", "ghost")}
    region.connect.client().create_volume(AvailabilityZone="eu-test-1a", Size=1)
    volumes = region.fake.volumes
    volumes[made["drifted"].handle].size = 7
    tags = volumes[made["foreign"].handle].tags
    tags["volplane.dev/cluster"] = "cluster-2"
    region.fake.remove_volume(made["ghost"].handle)
    comparison = Comparison(DRIVER, "cluster-1")
    for each in region.listed():
        assert each.type == "gp3"
        comparison.add_listed(each)
    for uid in ("kept", "drifted", "ghost"):
        comparison.add_volume(persistent(made[uid], uid))
    found = [finding for finding in comparison.findings() if finding is not None]
    assert {(str(each.verdict), each.handle) for each in found} == {
        ("orphan", made["orphan"].handle),
        ("drifted", made["drifted"].handle),
        ("foreign", made["foreign"].handle),
        ("ghost", made["ghost"].handle),
    }


def test_each_snapshot_gets_its_verdict(region: Any) -> None:
    asset = region.provision()
    region.fake.behave(snapshot_interval=0.0)
    made = {name: region.snapshot(asset, name) for name in ("kept", "wanted", "orphan", "foreign")}
    region.fake.snapshots[made["foreign"].handle].tags["volplane.dev/cluster"] = "cluster-2"
    comparison = SnapshotComparison(DRIVER, "cluster-1")
    for each in region.listed_snapshots():
        comparison.add_listed(each)
    comparison.add_snapshot(VolumeSnapshot(metadata=Metadata(name="w", namespace="team-a", uid="uid-wanted")))
    comparison.add_content(VolumeSnapshotContent(metadata=Metadata(name="snapcontent-kept", uid="c")))
    found = [finding for finding in comparison.findings() if finding is not None]
    assert {(str(each.verdict), each.handle) for each in found} == {
        ("orphan", made["orphan"].handle),
        ("foreign", made["foreign"].handle),
    }


def test_a_list_says_in_which_term_each_volume_was_changed(region: Any) -> None:
    region.provision("changed", context=region.context(fence="7/me/lease-uid"))
    assert [each.changed_in for each in region.listed()] == ["7//lease-uid"]


@pytest.mark.soak
def test_ten_thousand_volumes_are_listed_in_the_memory_of_a_page(region: Any) -> None:
    region.provision()
    with region.fake.locked_state() as account:
        (first,) = account.volumes.values()
        for number in range(1, 10_000):
            id_ = f"vol-{number:017x}"
            tags = {**first.tags, "volplane.dev/claim-uid": f"u{number}"}
            account.volumes[id_] = replace(
                first, id=id_, number=1_000 + number, tags=tags, former_tags=Former(tags, 0.0)
            )
    region.backend.list_assets(ListRequest(context=region.context()))
    tracemalloc.start()
    seen, page = 0, None
    while seen == 0 or page is not None:
        answer = region.backend.list_assets(ListRequest(context=region.context(), page=page))
        seen, page = seen + len(answer.assets), answer.next_page
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seen == 10_000
    assert peak < 30 << 20
