"""What a snapshot of a directory is kept with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from volplane import AlreadyExists, SnapshotOwnership, VolumeInUse
from volplane.directory import (
    CopyCounts,
    CopyParameters,
    CorruptMarker,
    SnapshotHandle,
    SnapshotMarker,
    require_unchanged,
)

STORAGE = "0123456789abcdef" * 2
OWNER = SnapshotOwnership(cluster_id="cluster-1", snapshot_uid="u1", content_name="snapcontent-u1")
MARKER = SnapshotMarker(
    name="snapshot-u1",
    owner=OWNER,
    source=f"{STORAGE}/pvc-1@1",
    size_bytes=1 << 30,
    created_at=1_700_000_000.5,
    counts=CopyCounts(entries=10, bytes=1000, changed=2),
)


def test_a_marker_reads_back_and_says_what_a_snapshot_is() -> None:
    assert SnapshotMarker.decode(MARKER.encode()) == MARKER
    snapshot = MARKER.snapshot(STORAGE)
    assert snapshot.handle == f"{STORAGE}/snapshot-u1"
    assert SnapshotHandle.parse(snapshot.handle) == SnapshotHandle(STORAGE, "snapshot-u1")
    assert (snapshot.owner, snapshot.source, snapshot.size_bytes) == (OWNER, MARKER.source, 1 << 30)
    assert snapshot.ready
    assert snapshot.state == "2 of 10 entries changed while it was made"


@pytest.mark.parametrize("text", ["", "no-such-snapshot", f"{STORAGE}/../x", f"{STORAGE}/pvc-1@1", f"{STORAGE}/"])
def test_what_is_no_handle_of_a_snapshot_is_none(text: str) -> None:
    assert SnapshotHandle.parse(text) is None


@pytest.mark.parametrize("content", [b"", b"{}", b'{"format":1}', b'{"format":1,"name":"x","owner":[]}', b"\xff"])
def test_a_damaged_marker_is_told(content: bytes) -> None:
    with pytest.raises(CorruptMarker):
        SnapshotMarker.decode(content)


def test_a_snapshot_of_another_owner_or_volume_is_refused() -> None:
    MARKER.refuse_other_demand(OWNER, MARKER.source)
    with pytest.raises(AlreadyExists, match="asked for was one of other"):
        MARKER.refuse_other_demand(OWNER, "other")
    for other in (replace(OWNER, snapshot_uid="u2"), replace(OWNER, cluster_id="cluster-2")):
        with pytest.raises(AlreadyExists, match="VolumeSnapshot u1 of cluster 'cluster-1'"):
            MARKER.refuse_other_owner(other, other.cluster_id)
    MARKER.refuse_other_owner(None, "cluster-1")
    with pytest.raises(AlreadyExists):
        MARKER.refuse_other_owner(None, "cluster-2")


def test_what_changed_meanwhile_is_refused_only_where_the_class_says_so() -> None:
    require_unchanged(MARKER.counts, CopyParameters(), "a volume")
    require_unchanged(CopyCounts(entries=10), CopyParameters(consistency="strict"), "a volume")
    with pytest.raises(VolumeInUse, match="2 of 10 entries of a volume changed"):
        require_unchanged(MARKER.counts, CopyParameters(consistency="strict"), "a volume")
