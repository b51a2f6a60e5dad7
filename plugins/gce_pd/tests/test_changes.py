"""Growing, changing and snapshots."""

from __future__ import annotations

from typing import Any

import pytest

from volplane import (
    AlreadyExists,
    Done,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Throttled,
    Unavailable,
)
from volplane_gce_pd.testing import Behaviour
from volplane_testing.cloud import FaultKind

GIB = 1 << 30
HB = {"type": "hyperdisk-balanced"}


@pytest.mark.parametrize("parameters", [HB, {"type": "pd-ssd", "replication-type": "regional-pd"}])
def test_a_disk_grows_while_it_is_used(site: Any, parameters: Any) -> None:
    asset = site.provision(parameters=parameters)
    grown = site.expand(asset, 15 * GIB + 1)
    assert (grown.capacity_bytes, site.disk.size) == (16 * GIB, 16)
    assert (grown.handle, grown.node_affinity) == (asset.handle, asset.node_affinity)
    assert site.expand(asset, 12 * GIB).capacity_bytes == 16 * GIB
    assert site.provision(parameters=parameters).capacity_bytes == 16 * GIB


def test_a_hyperdisk_is_changed_every_four_hours_and_the_wish_is_kept(site: Any) -> None:
    asset = site.provision(parameters=HB)
    site.modify(asset, iops="3500")
    begun = site.clock.now
    for change in (lambda: site.modify(asset, iops="4000"), lambda: site.expand(asset, 12 * GIB)):
        with pytest.raises(Throttled, match="every four hours; the wish is kept") as raised:
            change()
        assert raised.value.retry_after == 600.0
    site.clock.advance(4 * 3_600.0 + begun - site.clock.now)
    assert site.expand(asset, 12 * GIB).capacity_bytes == 12 * GIB
    fast = site.provision("u2", parameters={"type": "pd-ssd"})
    for size in (12, 14):
        assert site.expand(fast, size * GIB, uid="u2").capacity_bytes == size * GIB


def test_attributes_of_another_class_win_when_a_disk_is_made(site: Any) -> None:
    """And nothing is left for `modify`; another class named meanwhile changes the same disk."""
    parameters = {**HB, IOPS: "3500", THROUGHPUT: "200Mi"}
    mutable = {"iops": "4000"}
    asset = site.provision(size=20 * GIB, parameters=parameters, mutable_parameters=mutable)
    assert (site.disk.iops, site.disk.throughput) == (4000, 200)
    assert site.modify(asset, **mutable) == Done()
    assert site.fake.calls["disks.update"] == 0
    for other in ({"throughput": "250Mi"}, {}):
        same = site.again().provision(size=20 * GIB, parameters=parameters, mutable_parameters=other)
        assert same.handle == asset.handle
    site.modify(asset, throughput="250Mi")
    assert (site.disk.iops, site.disk.throughput, site.fake.calls["disks.insert"]) == (4000, 250, 1)


@pytest.mark.parametrize(
    ("parameters", "mutable", "told"),
    [
        ({"type": "pd-ssd"}, {"iops": "4000"}, "pd-ssd"),
        ({"type": "dynamic", "pd-type": "pd-ssd", "disk-type-preference": "pd-type"}, {"iops": "4000"}, "pd-ssd"),
        (HB, {"iops": "many"}, "'many'"),
        (HB, {"type": "pd-ssd"}, "'type'"),
    ],
)
def test_attributes_that_cannot_be_had_make_no_disk(site: Any, parameters: Any, mutable: Any, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        site.provision(size=20 * GIB, parameters=parameters, mutable_parameters=mutable)
    assert site.fake.disks == {}


THROUGHPUT, IOPS = "provisioned-throughput-on-create", "provisioned-iops-on-create"


@pytest.mark.parametrize(
    ("kind", "least", "sizes", "after"),
    [
        ("hyperdisk-throughput", {THROUGHPUT: 20 << 20}, (2048, 4096), 40),
        ("hyperdisk-extreme", {IOPS: 200}, (100, 200), 400),
        ("hyperdisk-ml", {THROUGHPUT: 400 << 20}, (3000, 6000), 720),
    ],
)
def test_a_hyperdisk_gets_what_one_of_its_new_size_has_at_least(
    site: Any, kind: str, least: dict[str, int], sizes: tuple[int, int], after: int
) -> None:
    """gcp-compute-persistent-disk-csi-driver, pkg/common/utils.go, GetMinIopsThroughput."""
    asset = site.provision(size=sizes[0] * GIB, parameters={"type": kind, **least})
    assert site.expand(asset, sizes[1] * GIB).capacity_bytes == sizes[1] * GIB
    assert (site.disk.iops if IOPS in least else site.disk.throughput) == after
    assert (site.fake.calls["disks.update"], site.fake.calls["disks.resize"]) == (1, 0)


def test_a_hyperdisk_with_less_than_its_size_has_at_least_is_refused_before_the_call(site: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"20 for 4096 GiB: .* at least 40 MiB/s at this size"):
        site.provision(size=4096 * GIB, parameters={"type": "hyperdisk-throughput", THROUGHPUT: 20 << 20})
    assert site.fake.calls["disks.insert"] == 0
    asset = site.provision(size=200 * GIB, parameters={"type": "hyperdisk-extreme", IOPS: 500})
    with pytest.raises(InvalidArgument, match=r"399 for 200 GiB: .* at least 400 IOPS at this size"):
        site.modify(asset, iops="399")


def test_an_impossible_size_is_refused_before_the_call(site: Any) -> None:
    asset = site.provision()
    with pytest.raises(InvalidArgument, match="at most 65536 GiB"):
        site.expand(asset, 1 << 47)
    assert site.fake.calls["disks.resize"] == 0


@pytest.mark.parametrize("shape", ["operation", "http"])
def test_a_quota_stops_growing_and_is_told(new_site: Any, shape: str) -> None:
    site = new_site(Behaviour(disks_gb=15, shape=shape))
    asset = site.provision()
    with pytest.raises(ResourceExhausted, match="DISKS_TOTAL_GB"):
        site.expand(asset, 20 * GIB)
    site.fake.behave(disks_gb=100)
    assert site.expand(asset, 20 * GIB).capacity_bytes == 20 * GIB


@pytest.mark.parametrize("kind", [FaultKind.LOSE, FaultKind.DROP, FaultKind.LATE])
def test_growing_without_an_answer_grows_once(site: Any, kind: FaultKind) -> None:
    asset = site.provision()
    site.fault("disks.resize", kind, seconds=3.0)
    with pytest.raises(Unavailable):
        site.expand(asset, 20 * GIB)
    assert site.again().expand(asset, 20 * GIB).capacity_bytes == 20 * GIB
    assert len([each for each in site.fake.operations if each.method == "disks.resize"]) == 1


def test_a_failed_growth_is_told_and_tried_anew(site: Any) -> None:
    asset = site.provision()
    site.fail("disks.resize", "INTERNAL_ERROR", "it broke")
    with pytest.raises(Unavailable, match="it broke"):
        site.expand(asset, 20 * GIB)
    assert site.expand(asset, 20 * GIB).capacity_bytes == 20 * GIB


def test_a_disk_that_another_operation_works_on_is_waited_for(site: Any) -> None:
    asset = site.provision()
    site.disk.busy = 1
    with pytest.raises(Unavailable, match="another operation works on it") as raised:
        site.expand(asset, 20 * GIB)
    assert raised.value.retry_after == 1.0
    site.disk.busy = 0
    assert site.expand(asset, 20 * GIB).capacity_bytes == 20 * GIB


def test_iops_and_throughput_are_changed_in_one_operation(site: Any) -> None:
    asset = site.provision(parameters=HB)
    assert site.modify(asset, iops="4000", throughput="250Mi") == Done()
    assert (site.disk.iops, site.disk.throughput) == (4000, 250)
    assert site.modify(asset, throughput="250", iops="4000") == Done()
    site.clock.advance(4 * 3_600.0)
    assert site.modify(asset, throughput="1Gi") == Done()
    assert (site.disk.iops, site.disk.throughput) == (4000, 1024)
    assert site.fake.calls["disks.update"] == 2


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"iops": "many"}, "whole number"),
        ({"throughput": "250Ki"}, "such as 250 or 250Mi"),
        ({"type": "pd-ssd"}, "iops and throughput"),
        ({"iops": "100"}, "3000 to 160000"),
        ({"iops": "6000"}, "for each GiB"),
        ({"throughput": "100000"}, "140 to 2400"),
    ],
)
def test_a_change_that_cannot_be_had_is_refused(site: Any, parameters: Any, told: str) -> None:
    asset = site.provision(parameters=HB)
    with pytest.raises(InvalidArgument, match=told):
        site.modify(asset, **parameters)
    assert site.fake.calls["disks.update"] == 0


def test_a_type_without_iops_says_so(site: Any) -> None:
    with pytest.raises(InvalidArgument, match="no IOPS to choose"):
        site.modify(site.provision(), iops="4000")


def test_a_disk_that_is_gone_or_foreign_is_not_changed(site: Any) -> None:
    asset = site.provision(parameters=HB)
    with pytest.raises(NotFound, match="does not exist"):
        site.modify(asset.handle.replace("u1", "u9"), iops="4000")
    with pytest.raises(InvalidArgument, match="no disk of project"):
        site.modify("vol-1", iops="4000")
    with pytest.raises(InvalidArgument, match="not in region"):
        site.modify("projects/test-project/zones/us-test1-a/disks/d", iops="4000")
    with pytest.raises(AlreadyExists, match="pvc-u2"):
        site.expand(asset, 20 * GIB, owner=site.owner("u2"))
