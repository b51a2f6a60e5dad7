"""Which volumes a scrubber pod may have."""

from __future__ import annotations

from typing import Any

import pytest

from volplane import (
    AlreadyExists,
    InvalidArgument,
    NotFound,
    PodScrub,
    RecycleRequest,
    Unsupported,
    VolumeInUse,
    VolumeSource,
)


def scrub(region: Any, asset: Any, uid: str = "u1", **fields: Any) -> Any:
    request = RecycleRequest(context=region.context(), volume=region.identity(asset, uid, **fields))
    return region.finish(region.backend.recycle, request)


def test_a_pod_gets_a_volume_that_is_ours_and_attached_nowhere(region: Any) -> None:
    asset = region.provision()
    assert scrub(region, asset) == PodScrub()
    node = region.node(region.fake.add_instance())
    region.attach(asset, node)
    with pytest.raises(VolumeInUse, match=r"cannot be scrubbed while it is attached to node-a \(attached\)"):
        scrub(region, asset)
    region.detach(asset, node)
    assert scrub(region, asset) == PodScrub()


def test_what_no_pod_may_have_is_refused_with_the_reason(region: Any) -> None:
    asset = region.provision()
    with pytest.raises(AlreadyExists, match="belongs to pvc-u1"):
        scrub(region, asset, "u2")
    windows = VolumeSource(kind="csi", fields={**asset.source.fields, "fsType": "ntfs"})
    with pytest.raises(Unsupported, match="scrubber pods run on Linux; set the reclaim policy"):
        scrub(region, asset, source=windows)
    with pytest.raises(InvalidArgument, match="no volume of EBS"):
        scrub(region, "disk-1")
    region.fake.remove_volume(asset.handle)
    region.again()
    with pytest.raises(NotFound, match="does not exist"):
        scrub(region, asset)
