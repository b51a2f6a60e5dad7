"""Taking over volumes that were made for another cluster."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from volplane import AdoptRequest, AlreadyExists, Asset, Done, NotFound, Ownership, Unsupported, VolumeIdentity


def adopt(site: Any, volume: VolumeIdentity, former: Ownership) -> Any:
    return site.backend.adopt(AdoptRequest(context=site.context(), volume=volume, former=former))


@pytest.fixture
def restored(new_site: Any) -> tuple[Any, Asset, Ownership]:
    """The driver of a new cluster on the root of an old one, with one volume."""
    old = new_site().start()
    asset = old.provision()
    new = old.again(adopt_root=True)
    new.cluster = "cluster-2"
    return new.start(), asset, old.owner("u1")


def test_a_volume_taken_over_is_deleted_by_its_new_cluster_and_was_not_before(restored: Any) -> None:
    site, asset, former = restored
    volume = site.volume(asset)
    with pytest.raises(AlreadyExists, match="belongs to claim u1 of cluster 'cluster-1'"):
        site.delete(volume)
    for _ in range(2):
        assert adopt(site, volume, former) == Done()
    assert site.listed()["pvc-u1"].owner == site.owner("u1")
    assert site.path(asset).is_dir()
    site.delete(volume)
    assert site.leftovers() == []


def test_what_carries_neither_mark_is_not_taken_over(restored: Any) -> None:
    site, asset, former = restored
    other = dataclasses.replace(former, cluster_id="cluster-3")
    with pytest.raises(AlreadyExists, match="not to claim u1 of cluster 'cluster-3'"):
        adopt(site, site.volume(asset), other)
    assert site.listed()["pvc-u1"].owner == former


def test_what_is_not_there_or_was_not_made_here_is_not_taken_over(restored: Any) -> None:
    site, asset, former = restored
    with pytest.raises(NotFound, match="pvc-u9 has no marker"):
        adopt(site, site.volume(uid="u9"), former)
    with pytest.raises(Unsupported):
        adopt(site, site.static(site.path(asset)), former)


def test_a_second_generation_keeps_its_number(new_site: Any) -> None:
    old = new_site().start()
    asset = old.provision("u1", generation=2)
    new = old.again(adopt_root=True)
    new.cluster = "cluster-2"
    new.start()
    assert adopt(new, new.volume(asset), old.owner("u1", 2)) == Done()
    assert new.listed()["pvc-u1"].owner == new.owner("u1", 2)
    assert new.listed()["pvc-u1"].handle == asset.handle
