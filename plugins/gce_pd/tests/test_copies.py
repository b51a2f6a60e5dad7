"""Disks that are made from other disks: type, key, size and place of the source."""

from __future__ import annotations

from typing import Any

import pytest

from volplane import InvalidArgument, NotFound, ResourceExhausted, Unavailable
from volplane_gce_pd.testing import Behaviour

GIB = 1 << 30
ZONE = "topology.gke.io/zone"
A, B, C = (f"europe-test1-{letter}" for letter in "abc")
REGIONAL = {"type": "pd-ssd", "replication-type": "regional-pd"}
SSD = {"type": "pd-ssd"}
KEY = "projects/keys/locations/europe/keyRings/r/cryptoKeys/k"


def copy(site: Any, source: Any, uid: str = "copy", **fields: Any) -> Any:
    return site.provision(uid, source_volume=source.handle, **{"segment": None, **fields})


@pytest.mark.parametrize("zone", [A, B, C])
def test_without_a_selected_node_a_copy_is_made_where_its_source_is(site: Any, zone: str) -> None:
    source = site.provision(segment={ZONE: zone})
    for uid in ("c1", "c2", "c3"):
        assert copy(site, source, uid).node_affinity == ({ZONE: zone},)
    assert site.fake.refused == {}


def test_a_node_in_another_zone_is_released_before_anything_is_asked(site: Any) -> None:
    source = site.provision(segment={ZONE: A})
    site.clock.advance(61.0)
    with pytest.raises(
        ResourceExhausted, match=f"is in {A}, where what is made from it must be, and the selected node"
    ) as raised:
        copy(site, source, segment={ZONE: B})
    assert (raised.value.reschedule, raised.value.nothing_done, raised.value.scope) == (True, True, "zone")
    assert site.fake.calls["disks.insert"] == 1
    with pytest.raises(InvalidArgument, match=f"{B} is asked for"):
        copy(site, source, allowed_segments=({ZONE: B},))


def test_a_copy_has_the_type_the_key_and_at_least_the_size_of_its_source(new_site: Any) -> None:
    site = new_site(Behaviour(kms_keys={KEY: True}))
    source = site.provision(size=20 * GIB, parameters={**SSD, "disk-encryption-kms-key": f"{KEY}/cryptoKeyVersions/1"})
    for told, size, parameters in (
        ("the type pd-ssd", 20, {"disk-encryption-kms-key": KEY}),
        ("the encryption key projects/keys", 20, SSD),
        ("must have at least the 20 GiB", 19, {**SSD, "disk-encryption-kms-key": KEY}),
    ):
        with pytest.raises(InvalidArgument, match=told):
            copy(site, source, size=size * GIB, parameters=parameters)
    assert site.fake.calls["disks.insert"] == 1
    made = copy(site, source, size=30 * GIB, parameters={**SSD, "disk-encryption-kms-key": KEY})
    assert made.capacity_bytes == 30 * GIB


def test_a_regional_disk_has_only_regional_copies_and_a_zonal_one_has_both(site: Any) -> None:
    regional = site.provision("reg", parameters=REGIONAL, segment={ZONE: B})
    with pytest.raises(InvalidArgument, match="is regional, and so must its copy be"):
        copy(site, regional, parameters=SSD)
    assert copy(site, regional, "c1", parameters=REGIONAL).handle.startswith("projects/test-project/regions/")
    zonal = site.provision("zon", parameters=SSD, segment={ZONE: C})
    for uid, segment in (("c2", None), ("c3", {ZONE: A}), ("c4", {ZONE: C})):
        made = copy(site, zonal, uid, parameters=REGIONAL, segment=segment)
        assert {ZONE: C} in made.node_affinity
        assert segment is None or segment in made.node_affinity


def test_a_source_that_is_gone_or_not_ready_is_named(site: Any) -> None:
    source = site.provision()
    made = copy(site, source, "made")
    site.fake.disks[f"zones/{A}", "pvc-u1"].status = "RESTORING"
    site.clock.advance(1.0)
    with pytest.raises(Unavailable, match="pvc-u1 is RESTORING"):
        copy(site, source)
    site.fake.remove_disk(f"zones/{A}", "pvc-u1")
    site.clock.advance(1.0)
    with pytest.raises(NotFound, match="which is to be copied, does not exist"):
        copy(site, source)
    assert copy(site, source, "made") == made, "what was copied is found, whatever became of its source"


@pytest.mark.parametrize("shape", ["operation", "http"])
def test_a_copy_that_has_no_room_is_told_and_tries_no_other_zone(new_site: Any, shape: str) -> None:
    site = new_site(Behaviour(shape=shape))
    source = site.provision(segment={ZONE: C})
    site.clock.advance(61.0)
    site.fake.behave(stock_outs=frozenset({C}))
    for _ in range(2):
        with pytest.raises(ResourceExhausted, match="no room"):
            copy(site, source)
    assert site.fake.calls["disks.insert"] <= 5
