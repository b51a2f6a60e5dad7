"""What is read of objects, and what is refused."""

from __future__ import annotations

import msgspec
import pytest

from volplane.kube.objects import Claim, Metadata, Volume
from volplane.snapshots.objects import VolumeSnapshot, VolumeSnapshotContent


@pytest.mark.parametrize("size", ["1Qi", "", "x", "--1", "1e", "1 Gi"])
@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (Volume, '{"spec":{"capacity":{"storage":"%s"}}}'),
        (Claim, '{"spec":{"resources":{"requests":{"storage":"%s"}}}}'),
        (Claim, '{"status":{"capacity":{"storage":"%s"}}}'),
    ],
)
def test_an_object_whose_size_is_none_does_not_decode(kind: type, body: str, size: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode((body % size).encode(), type=kind)


@pytest.mark.parametrize("size", ["0.5", "1e3", "1E3", "0", "-1", "16Ei", "1e300", "100m", "1n"])
def test_odd_sizes_are_sizes(size: str) -> None:
    volume = msgspec.json.decode(f'{{"spec":{{"capacity":{{"storage":"{size}"}}}}}}'.encode(), type=Volume)
    assert volume.spec.capacity == {"storage": size}


def test_the_status_of_a_snapshot_has_texts_and_that_of_its_content_numbers() -> None:
    snapshot = msgspec.convert(
        {
            "spec": {"source": {"persistentVolumeClaimName": "data"}, "volumeSnapshotClassName": "daily"},
            "status": {"readyToUse": True, "restoreSize": "1Gi", "creationTime": "2024-01-01T00:00:00Z"},
        },
        VolumeSnapshot,
    )
    content = msgspec.convert(
        {
            "spec": {"source": {"volumeHandle": "vol-1"}, "volumeSnapshotRef": {"namespace": "team", "name": "s"}},
            "status": {"snapshotHandle": "snap-1", "restoreSize": 2**30, "creationTime": 1_700_000_000_000_000_000},
        },
        VolumeSnapshotContent,
    )
    assert (snapshot.spec.source.persistent_volume_claim_name, snapshot.status.restore_size) == ("data", "1Gi")
    assert (content.spec.volume_snapshot_ref.key, content.status.restore_size) == ("team/s", 2**30)
    assert (snapshot.status.ready_to_use, content.status.ready_to_use) == (True, False)


def test_finalizers_are_added_once_and_the_others_stay() -> None:
    claim = Claim(metadata=Metadata(finalizers=["example.com/hold"]))
    assert claim.finalizers_with("a", "example.com/hold") == ["example.com/hold", "a"]
    assert Claim().finalizers_with("a") == ["a"]


def test_without_its_last_finalizer_the_field_is_removed() -> None:
    claim = Claim(metadata=Metadata(finalizers=["a", "b"]))
    assert claim.finalizers_without("a") == ["b"]
    assert claim.finalizers_without("b", "a") is None
    assert Claim().finalizers_without("a") is None
