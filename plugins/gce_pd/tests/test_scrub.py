"""Which disks a scrubber pod may have."""

from __future__ import annotations

from typing import Any

import pytest

from volplane import AlreadyExists, NotFound, PodScrub, RecycleRequest, Unsupported, VolumeInUse, VolumeSource


def scrub(site: Any, asset: Any, uid: str = "u1", **fields: Any) -> Any:
    request = RecycleRequest(context=site.context(), volume=site.identity(asset, uid, **fields))
    return site.finish(site.backend.recycle, request)


def test_a_pod_gets_a_disk_that_is_ours_and_attached_nowhere(site: Any) -> None:
    asset = site.provision()
    assert scrub(site, asset) == PodScrub()
    node = site.node(site.fake.add_instance("vm-a"))
    site.attach(asset, node)
    with pytest.raises(VolumeInUse, match="cannot be scrubbed while it is attached to"):
        scrub(site, asset)
    site.detach(asset, node)
    assert scrub(site, asset) == PodScrub()


def test_what_no_pod_may_have_is_refused_with_the_reason(site: Any) -> None:
    asset = site.provision()
    with pytest.raises(AlreadyExists, match="belongs to pvc-u1"):
        scrub(site, asset, "u2")
    windows = VolumeSource(kind="csi", fields={**asset.source.fields, "fsType": "ntfs"})
    with pytest.raises(Unsupported, match="scrubber pods run on Linux"):
        scrub(site, asset, source=windows)
    site.delete(asset)
    with pytest.raises(NotFound, match="does not exist"):
        scrub(site, asset)
