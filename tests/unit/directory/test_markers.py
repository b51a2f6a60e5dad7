"""Markers, handles and demands of volumes that are directories."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import volplane.path_template
from volplane import (
    AlreadyExists,
    ClaimIdentity,
    Context,
    InvalidArgument,
    Ownership,
    ProvisionRequest,
    Unsupported,
    VolumeIdentity,
    VolumeMode,
    VolumeSource,
)
from volplane.directory import (
    CorruptMarker,
    DirectoryParameters,
    Handle,
    PathTemplate,
    VolumeMarker,
    check_demand,
    check_name,
    decode_fields,
    encode_fields,
    entry_of,
    name_of,
    path_components,
    static_key,
)

UID = "0b1e7a52-9b4c-4c3a-8f0e-5d2f6a7b8c9d"
OWNER = Ownership(cluster_id="here", claim_uid=UID, volume_name=f"pvc-{UID}", generation=2)
REQUEST = ProvisionRequest(
    context=Context(driver="folders.example.com", cluster_id="here"),
    name=OWNER.volume_name,
    capacity_bytes=1 << 30,
    owner=OWNER,
    claim=ClaimIdentity(namespace="default", name="data", uid=UID),
)
PARAMETERS = DirectoryParameters(mode=0o750, gid=7)


def marker() -> VolumeMarker:
    return VolumeMarker.new(REQUEST, PARAMETERS)


def test_a_marker_holds_what_was_asked_for_and_reads_back() -> None:
    made = marker()
    assert made.path == f"default/data-{UID}"
    assert made.entry == f"pvc-{UID}@2"
    assert made.demand == {
        "capacity_bytes": 1 << 30,
        "access_modes": ["ReadWriteOnce"],
        "mode": "0750",
        "uid": None,
        "gid": 7,
        "path_template": "${namespace}/${claim}-${uid}",
        "source": None,
    }
    assert VolumeMarker.decode(encode_fields(made.fields())) == made
    owner = [OWNER.cluster_id, OWNER.claim_uid, OWNER.volume_name, OWNER.generation]
    assert VolumeMarker.decode(encode_fields({**made.fields(), "owner": owner})) == made


def test_a_marker_names_the_class_which_is_no_part_of_the_demand_and_may_be_unknown() -> None:
    made = VolumeMarker.new(replace(REQUEST, class_name="fast", mount_options=("hard",)), PARAMETERS)
    assert VolumeMarker.decode(encode_fields(made.fields())) == made
    assert (made.class_name, made.demand) == ("fast", marker().demand)
    assert marker().class_name == ""
    assert "class_name" not in marker().fields(), "as earlier versions wrote it"


@pytest.mark.parametrize(
    "changed",
    [
        {"path": "../etc"},
        {"path": ".volplane/volumes"},
        {"path": ""},
        {"demand": {"mode": "rwx"}},
        {"demand": {}},
        {"owner": ["here", UID]},
        {"gid": "staff"},
        {"capacity_bytes": None},
    ],
)
def test_a_marker_that_was_edited_is_not_used(changed: dict[str, Any]) -> None:
    with pytest.raises(CorruptMarker):
        VolumeMarker.decode(encode_fields({**marker().fields(), **changed}))


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"format": "1"}', b'{"format": 2}', b"[" * 100_000])
def test_what_is_no_marker_is_not_used(content: bytes) -> None:
    with pytest.raises(CorruptMarker):
        decode_fields(content)


def test_an_equal_demand_is_the_volumes_and_another_is_refused() -> None:
    marker().refuse_other_demand(REQUEST, PARAMETERS.demand(REQUEST))
    with pytest.raises(AlreadyExists, match="was made with gid 7, not 8"):
        marker().refuse_other_demand(REQUEST, replace(PARAMETERS, gid=8).demand(REQUEST))
    later = replace(REQUEST, owner=replace(OWNER, generation=3))
    with pytest.raises(AlreadyExists, match="exists in generation 2, asked for was 3"):
        marker().refuse_other_demand(later, PARAMETERS.demand(later))
    other = replace(REQUEST, owner=replace(OWNER, cluster_id="there"))
    with pytest.raises(
        AlreadyExists, match=r"belongs to claim .* of cluster 'here', not to claim .* of cluster 'there'"
    ):
        marker().refuse_other_demand(other, PARAMETERS.demand(other))
    with pytest.raises(AlreadyExists, match="of cluster 'here': it is not touched"):
        marker().refuse_other_owner(None, "/srv/data")


def test_a_handle_reads_back_and_nothing_else_is_one() -> None:
    handle = Handle("a" * 32, "pvc-1", 3)
    assert str(handle) == f"{'a' * 32}/pvc-1@3"
    assert Handle.parse(str(handle)) == handle
    for text in (
        "",
        "pvc-1",
        f"{'a' * 31}/pvc-1@3",
        f"{'a' * 32}/pvc-1@0",
        f"{'a' * 32}/x/y@1",
        f"{'a' * 32}/x@{'9' * 5000}",
    ):
        assert Handle.parse(text) is None


def test_the_name_of_a_volume_is_in_its_handle_or_its_marks() -> None:
    source = VolumeSource(kind="hostPath", fields={"path": "/srv/data"})
    handle = str(Handle("a" * 32, "pvc-1", 1))
    volume = VolumeIdentity(name="renamed", uid="1", handle=handle, source=source, capacity_bytes=1)
    assert name_of(volume) == "pvc-1"
    assert name_of(replace(volume, handle="", owner=OWNER)) == OWNER.volume_name
    assert name_of(replace(volume, handle="")) == "renamed"
    assert entry_of(volume) == "pvc-1@1"
    assert entry_of(replace(volume, handle="", owner=OWNER)) == f"{OWNER.volume_name}@2"
    assert static_key(volume).startswith("static-")
    assert static_key(volume) != static_key(replace(volume, uid="2"))


@pytest.mark.parametrize("name", ["", ".hidden", "Upper", "a/b", "a" * 223])
def test_a_name_that_cannot_be_a_file_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="no DNS subdomain of at most 222 characters"):
        check_name(name, 222)


@pytest.mark.parametrize(
    ("path", "components"),
    [
        ("/srv//data/./x/", ["srv", "data", "x"]),
        ("/", []),
        ("srv", None),
        ("/srv/../etc", None),
        ("/a\0b", None),
        (None, None),
        (7, None),
    ],
)
def test_a_path_of_a_source_is_split_into_names(path: object, components: list[str] | None) -> None:
    assert path_components(path) == components


@pytest.mark.parametrize(
    ("demand", "error"),
    [
        (replace(REQUEST, volume_mode=VolumeMode.BLOCK), Unsupported),
        (replace(REQUEST, source_volume="x"), Unsupported),
        (replace(REQUEST, source_snapshot="x"), Unsupported),
        (replace(REQUEST, capacity_bytes=0), InvalidArgument),
        (replace(REQUEST, limit_bytes=1), InvalidArgument),
    ],
)
def test_what_no_directory_can_be_is_refused(demand: ProvisionRequest, error: type[Exception]) -> None:
    check_demand(REQUEST)
    with pytest.raises(error):
        check_demand(demand)


def test_a_mode_without_the_owners_rights_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="parameter mode: 0070 must be 07xx"):
        DirectoryParameters(mode=0o070)
    with pytest.raises(InvalidArgument, match="pathTemplate"):
        DirectoryParameters(path_template="${unknown}")


def test_the_template_is_found_under_its_former_name() -> None:
    assert volplane.path_template.PathTemplate is PathTemplate
