"""What the leak check sees of a project: orphans, foreign and drifted disks, and lists that are long."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from volplane import Asset, ListRequest
from volplane.cloud import LABELS
from volplane.kube import names
from volplane.kube.objects import Metadata, Volume, VolumeSpec
from volplane.leaks.comparison import Comparison, SnapshotComparison
from volplane.snapshots.objects import VolumeSnapshot, VolumeSnapshotContent

DRIVER = "pd.volplane.dev"
A = "europe-test1-a"


def persistent(asset: Asset, uid: str) -> Volume:
    """The PersistentVolume that the core makes of it."""
    annotations = {names.PROVISIONED_BY: DRIVER, names.HANDLE: asset.handle}
    metadata = Metadata(name=f"pvc-{uid}", uid=f"pv-{uid}", annotations=annotations)
    return Volume(metadata=metadata, spec=VolumeSpec(capacity={"storage": f"{asset.capacity_bytes >> 30}Gi"}))


def test_each_disk_gets_its_verdict(site: Any) -> None:
    made = {uid: site.provision(uid, 10 << 30) for uid in ("kept", "orphan", "drifted", "foreign", "ghost")}
    disks = {disk.name: disk for disk in site.fake.disks.values()}
    disks["pvc-drifted"].size = 7
    disks["pvc-foreign"].labels[LABELS.cluster] = "cluster-2"
    with site.fake.locked_state() as project:
        key = next(key for key in project.disks if key[1] == "pvc-ghost")
        del project.disks[key]
    comparison = Comparison(DRIVER, "cluster-1")
    for each in site.listed():
        assert each.type == "pd-standard"
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


@pytest.mark.soak
def test_ten_thousand_disks_are_listed_in_the_memory_of_a_page(site: Any) -> None:
    site.provision()
    disk = site.disk
    with site.fake.locked_state() as project:
        for number in range(1, 10_000):
            name = f"pvc-n{number}"
            fields = {field: getattr(disk, field) for field in disk.__slots__}
            project.disks[f"zones/{A}", name] = type(disk)(**{**fields, "name": name})
    site.backend.list_assets(ListRequest(context=site.context()))
    tracemalloc.start()
    seen, page = 0, None
    while seen == 0 or page is not None:
        answer = site.backend.list_assets(ListRequest(context=site.context(), page=page))
        seen, page = seen + len(answer.assets), answer.next_page
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seen == 10_000
    assert peak < 30 << 20


def test_a_list_names_machines_and_not_the_nodes_that_they_were(site: Any) -> None:
    asset, vm = site.provision(), site.vm()
    site.attach(asset, site.node(vm, name="former-name-of-a-node"))
    assert [each.attached_to for each in site.listed()] == [(f"{A}/{vm.name}",)]


def test_each_snapshot_gets_its_verdict(site: Any) -> None:
    asset = site.provision()
    site.fake.behave(snapshot_interval=0.0)
    made = {name: site.snapshot(asset, name) for name in ("kept", "wanted", "orphan", "foreign")}
    site.fake.snapshots["foreign"].labels["volplane-cluster"] = "cluster-2"
    comparison = SnapshotComparison(DRIVER, "cluster-1")
    for each in site.listed_snapshots():
        comparison.add_listed(each)
    comparison.add_snapshot(VolumeSnapshot(metadata=Metadata(name="w", namespace="team-a", uid="uid-wanted")))
    comparison.add_content(VolumeSnapshotContent(metadata=Metadata(name="snapcontent-kept", uid="c")))
    found = [finding for finding in comparison.findings() if finding is not None]
    assert {(str(each.verdict), each.handle) for each in found} == {
        ("orphan", made["orphan"].handle),
        ("foreign", made["foreign"].handle),
    }


def test_a_list_says_in_which_term_each_disk_was_changed(site: Any) -> None:
    site.provision(context=site.context(fence="7/me/lease-uid"))
    assert [each.changed_in for each in site.listed()] == ["7//lease-uid"]
