"""Volumes on a server in memory: what is made, what is refused, what is never touched, what a deletion leaves."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from volplane import (
    Absent,
    AlreadyExists,
    Asset,
    BackendError,
    Done,
    Erased,
    InProgress,
    InspectRequest,
    InvalidArgument,
    ListedAsset,
    ListRequest,
    NotFound,
    PermissionDenied,
    PodScrub,
    ResourceExhausted,
    Unavailable,
    Unsupported,
    VolumeInUse,
)
from volplane_nfs import delete, listing
from volplane_nfs.errors import to_backend_error
from volplane_nfs.nfs4 import Client, NfsError, Status
from volplane_nfs.nfs4 import operations as nfs
from volplane_nfs.nfs4.attributes import MODE, OWNER, OWNER_GROUP, mask_of
from volplane_nfs.nfs4.files import (
    ANONYMOUS,
    create_directory,
    create_link,
    directory_handle,
    make_directory,
    names,
    read_attributes,
    read_file,
    rename,
    walk,
    write_file,
)
from volplane_nfs.nfs4.operations import PUTFH, SETATTR, Request
from volplane_nfs.testing import ModelServer
from volplane_nfs.testing.model.state import Node

from .conftest import MIB, MODEL, Site


def place(asset: Asset) -> tuple[bytes, ...]:
    """The path of a volume below the share."""
    return tuple(str(asset.source.fields["path"]).removeprefix("/vol/").encode().split(b"/"))


def grow(client: Client, directory: bytes, *, width: int, depth: int) -> None:
    """Files, and directories of the same kind."""
    for number in range(width):
        write_file(client, directory, f"file{number}".encode(), b"x")
        client.compound(nfs.PUTFH(directory), create_link(f"link{number}".encode(), b"/etc"))
    for number in range(width if depth else 0):
        name = f"dir{number}".encode()
        make_directory(client, directory, name, 0o755)
        below = directory_handle(client, directory, (name,))
        assert below is not None
        grow(client, below, width=width, depth=depth - 1)


def exists(client: Client, root: bytes, path: tuple[bytes, ...]) -> bool:
    return read_attributes(client, root, path, 0) is not None


# --- provision ------------------------------------------------------------------------------------------------------


def test_a_volume_is_a_directory_with_the_owner_and_mode_of_its_class(site: Site, client: Client, root: bytes) -> None:
    _, asset = site.provision(parameters={"mode": 0o2775, "uid": 1000, "gid": 2000})
    found = read_attributes(client, root, place(asset), mask_of(MODE, OWNER, OWNER_GROUP))
    assert found is not None
    assert found[0] == {MODE: 0o2775, OWNER: b"1000", OWNER_GROUP: b"2000"}
    assert asset.gid == 2000
    assert asset.source.fields == {"server": "model.example.com", "path": f"/vol/{b'/'.join(place(asset)).decode()}"}


def test_a_port_of_its_own_becomes_a_mount_option(model: ModelServer) -> None:
    site = Site("nfs://model.example.com:12049/vol", model.dial).start()
    _, asset = site.provision()
    seen = site.backend.inspect(InspectRequest(context=site.context(), handle=asset.handle))
    assert isinstance(seen, ListedAsset)
    assert asset.mount_options == seen.mount_options == ("port=12049",)


def test_labels_and_annotations_cannot_lead_out_of_the_share(site: Site, model: ModelServer) -> None:
    evil = {"labels": {"team": "../../etc", "empty": ""}, "annotations": {"x/y": "..", "z": "/abs\0olute\n"}}
    template = "${label:team}/${annotation:x/y}/${annotation:z}/${label:missing}/${claim}"
    _, asset = site.provision(parameters={"pathTemplate": template}, claim=evil)
    path = place(asset)
    assert len(path) == 5
    assert all(part not in {b"", b".", b".."} and not part.startswith(b".") for part in path)
    assert set(model.share.children) == {b".volplane", path[0]}


def test_names_of_253_characters_are_cut_to_255_bytes_and_stay_different(site: Site) -> None:
    made = [
        site.provision(replace(request, claim=replace(request.claim, name="n" * 252 + end)))[1]
        for end in "ab"
        for request in [site.demand(parameters={"pathTemplate": "${claim}/${uid}"})]
    ]
    first, second = (place(asset)[0] for asset in made)
    assert first != second
    assert len(first) == len(second) == 253


def test_a_foreign_directory_at_the_path_is_not_taken_over(site: Site, client: Client, root: bytes) -> None:
    request = site.demand("1b4e28ba-2fa1-41d2-883f-0016d3cca427", parameters={"pathTemplate": "${volume}"})
    client.compound(nfs.PUTFH(root), create_directory(request.name.encode(), 0o711))
    with pytest.raises(AlreadyExists, match="carries no mark"):
        site.backend.provision(request)
    assert names(client, root) == [b".volplane", request.name.encode()]
    assert site.find(request) == Absent()


def test_nothing_is_made_in_a_directory_of_somebody_else(site: Site, client: Client, root: bytes) -> None:
    make_directory(client, root, b"default", 0o777)
    with pytest.raises(AlreadyExists, match="was not made by volplane"):
        site.provision()
    handle = directory_handle(client, root, (b"default",))
    assert handle is not None
    assert names(client, handle) == []


def test_a_symbolic_link_instead_of_a_directory_is_not_followed(site: Site, client: Client, root: bytes) -> None:
    make_directory(client, root, b"target", 0o755)
    client.compound(nfs.PUTFH(root), create_link(b"default", b"target"))
    with pytest.raises(Unavailable, match="no link is followed"):
        site.provision()
    handle = directory_handle(client, root, (b"target",))
    assert handle is not None
    assert names(client, handle) == []


def test_a_link_at_the_place_of_the_control_directory_stops_everything(model: ModelServer, client: Client) -> None:
    model.enter(model.share, b"elsewhere", model.make(2, model.share))
    model.enter(model.share, b".volplane", model.make(5, model.share, data=b"elsewhere"))
    with pytest.raises(Unavailable, match="link"):
        Site(dial=model.dial).start()
    assert model.share.children[b"elsewhere"].children == {}


def test_a_volume_of_another_cluster_is_refused(site: Site, model: ModelServer) -> None:
    made = site.provision()
    other = Site(dial=model.dial, cluster="cluster-2").start()
    with pytest.raises(AlreadyExists, match="belongs to claim"):
        other.provision(other.demand(made[0].claim.uid))
    with pytest.raises(AlreadyExists, match="not touched"):
        other.delete_once(other.volume(made, owner=other.owner(made[0].claim.uid)))
    assert site.find(made[0]) == made[1]


def test_two_controllers_mark_one_share_once(model: ModelServer) -> None:
    first, second = Site(dial=model.dial).start(), Site(dial=model.dial).start()
    a, b = first.provision(), second.provision()
    assert a[1].handle.partition("/")[0] == b[1].handle.partition("/")[0]
    assert len(first.listed()) == 2


def test_an_unmarked_share_is_not_used_where_the_operator_says_so(model: ModelServer) -> None:
    with pytest.raises(Unavailable, match="mark_shares is false"):
        Site(dial=model.dial, mark_shares=False).start()
    assert model.share.children == {}


def test_another_disk_at_the_place_of_a_share_is_refused(site: Site, model: ModelServer) -> None:
    made = site.provision()
    kept, model.share = model.share, model.make(2, model.root)
    model.leave(model.root, b"vol")
    model.enter(model.root, b"vol", model.share)
    site.backend._shares.all[0]._handles = None  # as after NFS4ERR_STALE
    with pytest.raises(Unavailable, match="has the id"):
        site.delete_once(site.volume(made))
    with pytest.raises(Unavailable, match="no share of this driver has the id"):
        site.again().start().delete_once(site.volume(made))
    assert kept.children


def test_a_full_file_system_is_told_before_anything_is_made(site: Site, model: ModelServer) -> None:
    model.available = MIB
    with pytest.raises(ResourceExhausted, match="bytes left") as caught:
        site.provision(capacity_bytes=2 * MIB)
    assert caught.value.nothing_done
    assert site.listed() == []
    site.again(check_free_space=False).start().provision(capacity_bytes=2 * MIB)


def test_a_file_system_that_fills_in_the_middle_leaves_nothing_unseen(site: Site, model: ModelServer) -> None:
    request = site.demand()

    def fault(requests: list[Request]) -> None:
        if any(each.operation is nfs.CREATE for each in requests):
            model.available = 0

    model.fault = fault
    with pytest.raises(ResourceExhausted):
        site.again(check_free_space=False).start().provision(request)
    model.fault, model.available = lambda _requests: None, MIB
    assert site.find(request) == Absent()
    assert site.listed() == []


# --- delete ---------------------------------------------------------------------------------------------------------


def test_a_deleted_volume_leaves_neither_marker_nor_parents(site: Site, client: Client, root: bytes) -> None:
    made = site.provision()
    grow(client, _handle(client, root, made[1]), width=3, depth=2)
    assert site.delete(site.volume(made)) == 1
    assert names(client, root) == [b".volplane"]
    control = directory_handle(client, root, (b".volplane",))
    assert control is not None
    for name in (b"volumes", b"trash", b"parents"):
        below = directory_handle(client, control, (name,))
        assert below is not None
        assert names(client, below) == []


def test_the_life_of_an_empty_volume_moves_nothing_between_directories(site: Site, model: ModelServer) -> None:
    # NFS-Ganesha 4 sleeps for a second in such a RENAME when another call holds one of the two directories.
    site.provision()
    sent: list[list[Request]] = []

    def record(requests: list[Request]) -> None:
        sent.append(requests)

    model.fault = record
    site.delete(site.volume(site.provision()))
    renames = [requests for requests in sent if any(request.operation is nfs.RENAME for request in requests)]
    assert renames
    for requests in renames:
        names_of_operations = [request.operation.name for request in requests]
        at = names_of_operations.index("RENAME")
        assert names_of_operations[at - 2 : at + 1] == ["PUTFH", "SAVEFH", "RENAME"]


def test_a_demand_goes_on_with_a_deletion_that_nobody_finishes(site: Site, client: Client, root: bytes) -> None:
    made = site.provision()
    grow(client, _handle(client, root, made[1]), width=2, depth=1)
    begin_deletion(client, root, made[0].name)
    with pytest.raises(Unavailable, match="is being deleted"):
        site.provision(made[0])
    assert site.provision(made[0])[1] == made[1]
    assert names(client, _handle(client, root, made[1])) == []


def begin_deletion(client: Client, root: bytes, name: str) -> None:
    """Do the first step of a deletion, as a process does that dies after it."""
    volumes = directory_handle(client, root, (b".volplane", b"volumes"))
    assert volumes is not None
    client.compound(*rename(volumes, name.encode(), volumes, f"{name}@1".encode()))


def _handle(client: Client, root: bytes, asset: Asset) -> bytes:
    handle = directory_handle(client, root, place(asset))
    assert handle is not None
    return handle


def test_a_parent_whose_former_marker_goes_while_it_is_made_is_the_drivers_own(site: Site, model: ModelServer) -> None:
    parents = model.share.children[b".volplane"].children[b"parents"]

    def a_deletion_ends(requests: list[Request]) -> None:
        if any(request.operation is nfs.CREATE and request.arguments[1] == b"default" for request in requests):
            model.fault = lambda _requests: None
            for name in list(parents.children):
                model.leave(parents, name)

    model.fault = a_deletion_ends
    site.provision()
    assert site.provision()[1].source.fields["path"].startswith("/vol/default/")


def test_the_parent_of_another_volume_stays(site: Site, client: Client, root: bytes) -> None:
    first, second = site.provision(), site.provision()
    site.delete(site.volume(first))
    assert exists(client, root, place(second[1]))
    assert site.find(second[0]) == second[1]


def test_a_large_tree_is_removed_in_slices_that_go_on_in_another_process(
    site: Site, client: Client, root: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = site.provision()
    grow(client, _handle(client, root, made[1]), width=3, depth=3)
    monkeypatch.setattr(delete, "SLICE", 0.0005)
    assert isinstance(site.delete_once(site.volume(made)), InProgress)
    assert not exists(client, root, place(made[1]))
    calls = site.again().start().delete(site.volume(made))
    assert calls > 1
    assert names(client, root) == [b".volplane"]


def test_a_tree_of_any_depth_is_removed(site: Site, client: Client, root: bytes) -> None:
    made = site.provision()
    handle = _handle(client, root, made[1])
    for _ in range(300):
        make_directory(client, handle, b"d" * 200, 0o700)
        below = directory_handle(client, handle, (b"d" * 200,))
        assert below is not None
        handle = below
    site.delete(site.volume(made))
    assert names(client, root) == [b".volplane"]


@pytest.mark.parametrize("moved", [False, True], ids=["in its place", "moved to the top"])
def test_a_link_that_is_swapped_in_during_a_scrub_leads_nowhere(
    site: Site, model: ModelServer, client: Client, root: bytes, moved: bool
) -> None:
    make_directory(client, root, b"precious", 0o755)
    write_file(client, directory_handle(client, root, (b"precious",)) or b"", b"data", b"keep")
    made = site.provision()
    volume = _handle(client, root, made[1])
    grow(client, volume, width=2, depth=4)
    swapped: list[bytes] = []

    def swap(requests: list[Request]) -> None:
        """Put a link to a foreign directory at the place of each directory that is about to be read."""
        for index, request in enumerate(requests):
            if request.operation is nfs.LOOKUP and any(each.operation is nfs.READDIR for each in requests[index:]):
                for node in model.nodes.copy().values():
                    child = node.children.get(request.arguments[0])
                    if child is not None and child.kind == 2 and (len(request.arguments[0]) == 24) is moved:
                        model.leave(node, request.arguments[0])
                        model.enter(node, request.arguments[0], model.make(5, node, data=b"/vol/precious"))
                        swapped.append(request.arguments[0])

    model.fault = swap
    site.delete(site.volume(made))
    model.fault = lambda _requests: None
    assert swapped
    precious = directory_handle(client, root, (b"precious",))
    assert precious is not None
    assert read_file(client, precious, b"data") == b"keep"


def test_a_volume_whose_directory_became_a_link_is_not_deleted(site: Site, client: Client, root: bytes) -> None:
    made = site.provision()
    path = place(made[1])
    make_directory(client, root, b"precious", 0o755)
    client.compound(*walk(root, path[:-1]), nfs.REMOVE(path[-1]))
    client.compound(*walk(root, path[:-1]), create_link(path[-1], b"../precious"))
    with pytest.raises(Unavailable, match="no link is followed"):
        site.delete_once(site.volume(made))
    assert exists(client, root, (b"precious",))
    assert exists(client, root, path)


def test_an_unmarked_directory_at_the_path_of_a_volume_is_not_deleted(site: Site, client: Client, root: bytes) -> None:
    made = site.provision()
    site.delete(site.volume(made))
    make_directory(client, root, b"default", 0o755)
    client.compound(*walk(root, (b"default",)), create_directory(place(made[1])[-1], 0o755))
    with pytest.raises(AlreadyExists, match="carries no mark"):
        site.delete_once(site.volume(made))
    assert exists(client, root, place(made[1]))


def test_a_marker_that_cannot_be_read_keeps_its_volume(site: Site, model: ModelServer) -> None:
    made = site.provision()
    control = model.share.children[b".volplane"]
    control.children[b"volumes"].children[made[0].name.encode()].data = b'{"format":1,"path":"../../etc"}'
    with pytest.raises(Unavailable, match="cannot be read"):
        site.delete_once(site.volume(made))
    assert [each.owner for each in site.listed() if each.name == made[0].name] == [None]


def test_retained_and_archived_directories_stay(site: Site, client: Client, root: bytes) -> None:
    kept = site.provision(parameters={"onDelete": "retain"})
    archived = site.provision(parameters={"onDelete": "archive", "archiveRetention": 3600.0})
    for made in (kept, archived):
        write_file(client, _handle(client, root, made[1]), b"data", b"of the tenant")
        site.delete(site.volume(made))
        site.delete(site.volume(made, source=site.static("/vol/nothing").source))
    assert exists(client, root, (*place(kept[1]), b"data"))
    assert not exists(client, root, place(archived[1]))
    archive = directory_handle(client, root, (b".volplane", b"archive"))
    assert archive is not None
    [entry] = names(client, archive)
    assert entry.startswith(archived[0].name.encode())
    assert exists(client, archive, (entry, b"data", b"data"))
    assert not [each for each in site.listed() if each.owner is not None]


@pytest.mark.parametrize("lost", ["the answer of the call", "the answer of the server"])
def test_a_volume_whose_directory_stays_is_deleted_though_the_first_answer_is_lost(
    site: Site, model: ModelServer, client: Client, root: bytes, lost: str
) -> None:
    made = site.provision(parameters={"onDelete": "retain"})
    if lost == "the answer of the server":

        def fault(requests: list[Request]) -> str | None:
            if requests[-1][0] not in {nfs.REMOVE, nfs.RENAME} or requests[-1][1][0] == made[0].name.encode():
                return None
            model.fault = lambda _requests: None
            return "lost after"

        model.fault = fault
    site.delete(site.volume(made))
    assert site.again().start().delete(site.volume(made)) == 1
    assert exists(client, root, place(made[1]))
    assert not [each for each in site.listed() if each.owner is not None]
    other = site.volume(made, owner=replace(made[0].owner, claim_uid="another"))
    with pytest.raises(AlreadyExists, match="carries no mark"):
        site.delete_once(other)
    retained = model.share.children[b".volplane"].children[b"retained"]
    retained_markers = list(retained.children)
    model.leave(model.share.children[b"default"], place(made[1])[-1])
    site.again().start()
    assert (len(retained_markers), len(retained.children)) == (1, 0), "its marker goes with the directory"


@pytest.mark.parametrize("renames_take_space", [False, True])
def test_a_full_share_has_room_for_no_note_of_what_stays(
    site: Site, model: ModelServer, client: Client, root: bytes, renames_take_space: bool
) -> None:
    made = site.provision(parameters={"onDelete": "retain"})
    model.available, model.renames_take_space = 0, renames_take_space
    assert site.delete(site.volume(made)) == 1
    assert exists(client, root, place(made[1]))
    assert not model.share.children[b".volplane"].children[b"volumes"].children


def test_an_archive_goes_when_its_time_is_over(site: Site, client: Client, root: bytes) -> None:
    made = site.provision(parameters={"onDelete": "archive", "archiveRetention": 0.0})
    grow(client, _handle(client, root, made[1]), width=2, depth=1)
    site.delete(site.volume(made))
    archive = directory_handle(client, root, (b".volplane", b"archive"))
    assert archive is not None
    assert len(names(client, archive)) == 1
    site.again().start().probe()
    assert names(client, archive) == []
    trash = directory_handle(client, root, (b".volplane", b"trash"))
    assert trash is not None
    assert names(client, trash) == []


def test_archives_of_one_name_do_not_collide(site: Site, client: Client, root: bytes) -> None:
    request = site.demand(parameters={"onDelete": "archive"})
    for _ in range(3):
        site.delete(site.volume(site.provision(request)))
    archive = directory_handle(client, root, (b".volplane", b"archive"))
    assert archive is not None
    assert len(names(client, archive)) == 3


def test_an_asset_that_never_became_a_volume_is_not_archived(site: Site, client: Client, root: bytes) -> None:
    made = site.provision(parameters={"onDelete": "archive"})
    site.delete(site.volume(made, uid=""))
    archive = directory_handle(client, root, (b".volplane", b"archive"))
    assert archive is not None
    assert names(client, archive) == []
    assert not exists(client, root, place(made[1]))


# --- recycle, expand, adopt, list -----------------------------------------------------------------------------------


def test_a_recycled_volume_is_empty_and_has_the_rights_of_its_class_again(
    site: Site, client: Client, root: bytes
) -> None:
    made = site.provision(parameters={"mode": 0o770})
    volume = _handle(client, root, made[1])
    grow(client, volume, width=3, depth=2)
    client.compound(nfs.PUTFH(volume), nfs.SETATTR((0, bytes(12)), {MODE: 0o777}))
    assert site.recycle(site.volume(made)) == Erased()
    assert names(client, volume) == []
    found = read_attributes(client, root, place(made[1]), mask_of(MODE))
    assert found == ({MODE: 0o770}, volume)


def test_recycling_goes_on_in_slices(site: Site, client: Client, root: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    made = site.provision()
    volume = _handle(client, root, made[1])
    grow(client, volume, width=3, depth=3)
    monkeypatch.setattr(delete, "SLICE", 0.0005)
    assert site.again().start().recycle(site.volume(made)) == Erased()
    assert names(client, volume) == []


def test_a_pod_recycles_where_the_operator_wants_that(model: ModelServer) -> None:
    site = Site(dial=model.dial, recycle="pod").start()
    made = site.provision()
    assert site.recycle(site.volume(made)) == PodScrub(volume={"nfs": dict(made[1].source.fields)})


def test_expanding_raises_what_is_promised(site: Site, model: ModelServer) -> None:
    made = site.provision()
    assert site.expand(site.volume(made), 5 * MIB).capacity_bytes == 5 * MIB
    assert site.again().start().find(made[0]).capacity_bytes == 5 * MIB
    model.available = MIB
    with pytest.raises(ResourceExhausted):
        site.expand(site.volume(made), 50 * MIB)


def test_a_listing_shows_volumes_foreign_directories_and_no_lost_ones(site: Site, client: Client, root: bytes) -> None:
    made, lost = site.provision(), site.provision()
    make_directory(client, root, b"\xff\nforeign", 0o755)
    path = place(lost[1])
    client.compound(*walk(root, path[:-1]), nfs.REMOVE(path[-1]))
    listed = site.listed()
    assert [each.handle for each in listed if each.owner is not None] == [made[1].handle]
    assert [each.name for each in listed if each.owner is None] == [r"\xff" + "\nforeign"]


# --- static volumes -------------------------------------------------------------------------------------------------


def test_a_listing_on_a_slow_disk_has_shorter_pages_and_is_complete(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "_PART", 2)
    monkeypatch.setattr(listing, "_PAGE_SECONDS", -1.0)
    made = {site.provision()[0].name for _ in range(5)}
    first = site.backend.list_assets(ListRequest(context=site.context(), page=None))
    assert len(first.assets) == 2
    assert {each.name for each in site.listed()} == made


def test_a_static_volume_below_the_share_is_deleted_and_recycled(site: Site, client: Client, root: bytes) -> None:
    make_directory(client, root, b"by-hand", 0o755)
    handle = directory_handle(client, root, (b"by-hand",))
    assert handle is not None
    grow(client, handle, width=2, depth=1)
    assert site.recycle(site.static("/vol/by-hand")) == Erased()
    assert names(client, handle) == []
    site.delete(site.static("/vol/by-hand"))
    assert not exists(client, root, (b"by-hand",))


@pytest.mark.parametrize("above", [True, False], ids=["above a volume", "in a volume"])
def test_a_static_volume_over_a_marked_one_is_refused(site: Site, client: Client, root: bytes, above: bool) -> None:
    made = site.provision(parameters={"pathTemplate": "team/${uid}"})
    path = "/vol/team" if above else f"/vol/{b'/'.join(place(made[1])).decode()}/inside"
    with pytest.raises(AlreadyExists, match="not touched"):
        site.delete_once(site.static(path))
    with pytest.raises((AlreadyExists, NotFound)):
        site.recycle(site.static(path))
    assert exists(client, root, place(made[1]))


@pytest.mark.parametrize(
    ("source", "owned"),
    [
        ({"server": "model.example.com", "path": "/vol/a"}, True),
        ({"server": "MODEL.example.com", "path": "/vol//a/./b/"}, True),
        ({"server": "model.example.com", "path": "/vol"}, False),
        ({"server": "model.example.com", "path": "/vol/a/../../etc"}, False),
        ({"server": "model.example.com", "path": "/vol/.volplane/volumes"}, False),
        ({"server": "model.example.com", "path": "vol/a"}, False),
        ({"server": "model.example.com", "path": "/vol/a\0"}, False),
        ({"server": "model.example.com", "path": "/vol/\ud800"}, False),
        ({"server": "model.example.com", "path": 7}, False),
        ({"server": None, "path": "/vol/a"}, False),
        ({"path": "/vol/a"}, False),
        ({"server": "other.example.com", "path": "/vol/a"}, False),
    ],
)
def test_what_is_owned_follows_from_server_and_path(site: Site, source: dict[str, Any], owned: bool) -> None:
    assert site.owns("nfs", **source) is owned
    assert site.owns("hostPath", **source) is False


# --- several servers ------------------------------------------------------------------------------------------------


class Two:
    """Two servers behind one way to connect."""

    def __init__(self) -> None:
        self.servers = {"a.example.com": ModelServer(), "b.example.com": ModelServer()}

    def dial(self, address: Any, seconds: float) -> Any:
        return self.servers[address.host].dial(address, seconds)

    def site(self, **options: Any) -> Site:
        return Site("nfs://a.example.com/vol,nfs://b.example.com/vol", self.dial, **options).start()


def test_a_volume_goes_where_most_space_is_free_after_the_choice_is_saved() -> None:
    two = Two()
    two.servers["a.example.com"].available = 10 * MIB
    site = two.site()
    request = site.demand()
    first = site.backend.provision(request)
    assert isinstance(first, InProgress)
    assert first.state == {"share": "b.example.com:/vol"}
    assert site.listed() == []
    two.servers["b.example.com"].available = MIB
    made = site.provision(replace(request, context=replace(request.context, state=first.state)))
    assert made[1].source.fields["server"] == "b.example.com"
    assert site.provision(request)[1] == made[1]


def test_one_dead_server_delays_no_other() -> None:
    two = Two()
    site = two.site()
    made = site.provision(parameters={"server": "b.example.com"})
    two.servers["a.example.com"].reachable = False
    two.servers["a.example.com"].restart()
    begun = time.monotonic()
    for _ in range(20):
        site.delete(site.volume(site.provision()))
    site.delete(site.volume(made))
    assert time.monotonic() - begun < 15.0
    assert site.capacity() > 0
    with pytest.raises(Unavailable):
        site.find(site.demand())
    with pytest.raises(Unavailable):
        site.listed()


def test_a_driver_starts_while_one_of_its_servers_is_dead() -> None:
    two = Two()
    two.servers["a.example.com"].reachable = False
    site = two.site()
    assert site.provision()[1].source.fields["server"] == "b.example.com"
    two.servers["b.example.com"].reachable = False
    with pytest.raises(Unavailable, match="refused"):
        two.site()


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"server": "modle.example.com"}, r"parameter server: 'modle.example.com' .* use 'model.example.com'"),
        ({"share": "/volume"}, r"parameter share: '/volume' .* use '/vol'"),
        ({"mode": 0o600}, "parameter mode: 0600 must be 07xx"),
        ({"pathTemplate": "../${uid}"}, "may not start with '.'"),
        ({"pathTemplate": "a//b"}, "no empty directory names"),
        ({"pathTemplate": "/abs"}, "no empty directory names"),
        ({"pathTemplate": "a b"}, "is not allowed"),
        ({"pathTemplate": "${pvc}"}, "no placeholder"),
        ({"pathTemplate": "${label:../x}"}, "no placeholder"),
        ({"pathTemplate": "/".join("abcdefghij")}, "at most 8 levels"),
        ({"archiveRetention": 5.0}, "is 5s: it says something only with onDelete archive"),
        ({"squash": "all_squash"}, "squash is all_squash: it needs the driver option mode: export"),
        ({"clients": ("10.0.0.0/8",)}, "clients is 10.0.0.0/8: it needs the driver option mode: export"),
    ],
)
def test_a_wrong_parameter_is_named_with_what_would_be_right(site: Site, parameters: Any, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        site.validate(**parameters)
    with pytest.raises(InvalidArgument, match=says):
        site.provision(parameters=parameters)
    assert site.listed() == []


@pytest.mark.parametrize("option", ["nfsvers=3", "vers=4.1,port", "port=111", "v3"])
def test_mount_options_that_contradict_the_volume_are_refused(site: Site, option: str) -> None:
    if option == "vers=4.1,port":
        site.provision(mount_options=("vers=4.1", "hard"))
        return
    with pytest.raises(InvalidArgument, match="mountOptions"):
        site.provision(mount_options=(option,))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"shares": ("filer:/export",)}, "is no such address"),
        ({"shares": ("nfs:///export",)}, "names no server"),
        ({"shares": ("nfs://filer:99999/x",)}, "cannot be read"),
        ({"shares": ("nfs://filer/a/../b",)}, "in its path"),
        ({"shares": ("nfs://fi ler/a",)}, "names no server"),
        ({"shares": ("nfs://user@filer/a",)}, "is no such address"),
        ({"shares": ()}, "at least one share"),
        ({"shares": ("nfs://filer/a", "nfs://filer/a/b")}, "overlap"),
        ({"mode": "export"}, "option server_path"),
        ({"mode": "export", "server_path": "/srv", "config_directory": '/etc/"; x'}, "option config_directory"),
        (
            {"mode": "export", "server_path": "/s", "config_directory": "/c", "shares": ("nfs://a/x", "nfs://b/x")},
            "one share of one server",
        ),
        ({"client": "pynfs"}, "cannot be imported"),
    ],
)
def test_a_wrong_option_is_named_with_what_would_be_right(options: dict[str, Any], says: str) -> None:

    from volplane_nfs import NfsBackend

    from .conftest import defaults

    with pytest.raises(InvalidArgument, match=says):
        NfsBackend({**defaults(NfsBackend.options_schema), "shares": (MODEL,), **options})


def test_block_volumes_and_copies_of_what_is_not_the_drivers_are_refused(site: Site) -> None:
    from volplane import VolumeMode

    with pytest.raises(Unsupported):
        site.provision(volume_mode=VolumeMode.BLOCK)
    for source in ({"source_snapshot": "s"}, {"source_volume": "v"}):
        with pytest.raises(NotFound, match="is none of this driver"):
            site.provision(**source)
    assert site.listed() == []


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (Status.NOSPC, ResourceExhausted),
        (Status.DQUOT, ResourceExhausted),
        (Status.ACCESS, PermissionDenied),
        (Status.PERM, PermissionDenied),
        (Status.WRONGSEC, PermissionDenied),
        (Status.BADOWNER, PermissionDenied),
        (Status.ROFS, Unavailable),
        (Status.DELAY, Unavailable),
        (Status.GRACE, Unavailable),
        (Status.LOCKED, Unavailable),
        (Status.FILE_OPEN, Unavailable),
        (Status.STALE, Unavailable),
        (Status.FHEXPIRED, Unavailable),
        (Status.IO, Unavailable),
        (Status.SERVERFAULT, Unavailable),
        (Status.MOVED, Unavailable),
        (Status.NOTEMPTY, VolumeInUse),
        (Status.XDEV, Unsupported),
        (Status.NAMETOOLONG, InvalidArgument),
        (Status.BADNAME, InvalidArgument),
        (Status.INVAL, InvalidArgument),
        (Status.NOENT, NotFound),
        (Status.BADXDR, BackendError),
    ],
)
def test_every_status_has_its_class_and_says_what_happened(status: Status, kind: type[BackendError]) -> None:
    error = to_backend_error(NfsError(status, "CREATE", 3), share="filer:/vol", doing="make pvc-1")
    assert type(error) is kind
    assert "cannot make pvc-1 on filer:/vol" in str(error)
    assert error.code == f"NFS4ERR_{status.name}"


@pytest.mark.parametrize("status", [Status.ACCESS, Status.ROFS, Status.NOSPC, Status.WRONGSEC, Status.GRACE])
def test_a_refused_write_leaves_nothing_unseen_and_succeeds_later(
    site: Site, model: ModelServer, status: Status
) -> None:
    request = site.demand()
    model.fault = lambda requests: status if any(each.operation is nfs.CREATE for each in requests) else None
    model.minor = 0
    other = site.again().start()
    with pytest.raises(BackendError) as caught:
        other.provision(request)
    assert not caught.value.proves_nothing_done
    model.fault = lambda _requests: None
    assert other.find(request) == Absent()
    assert isinstance(other.provision(request)[1], Asset)


def test_stale_handles_are_looked_up_again(site: Site, model: ModelServer) -> None:
    made = site.provision()
    for name, node in [*model.share.children[b".volplane"].children.items()]:
        if name in {b"volumes", b"trash", b"tmp", b"parents"}:
            del model.nodes[node.fileid]
            node.fileid = next(model.ids)
            model.nodes[node.fileid] = node
    assert site.find(made[0]) == made[1]
    site.delete(site.volume(made))
    site.provision()


def test_an_export_id_whose_volume_was_never_made_is_freed(model: ModelServer) -> None:
    site = Site(dial=model.dial).start()
    exports = model.share.children[b".volplane"].children[b"exports"]
    model.enter(exports, b"1234", model.make(5, exports, data=b'{"format":1,"owner":"pvc-1@1"}'))
    exports.children[b"1234"].time = time.time()
    site.listed()
    assert b"1234" in exports.children
    exports.children[b"1234"].time -= 7200.0
    site.listed()
    assert set(exports.children) == {b"1234.free"}


def test_probe_says_what_is_wrong(site: Site, model: ModelServer) -> None:
    assert site.probe() == Done()
    model.fault = lambda requests: Status.ROFS if requests[-1].operation is nfs.REMOVE else None
    with pytest.raises(BackendError):
        site.probe()
    model.fault = lambda _requests: None
    model.reachable = False
    model.restart()
    with pytest.raises(Unavailable):
        site.probe()


def test_find_removes_no_directory_that_holds_something(site: Site, client: Client, root: bytes) -> None:
    """Somebody gave it the mode that a directory has before it is finished."""
    made = site.provision()
    directory = directory_handle(client, root, place(made[1]))
    assert directory is not None
    client.compound(PUTFH(directory), SETATTR(ANONYMOUS, {MODE: 0o700}))
    make_directory(client, directory, b"data", 0o755)
    assert site.find(made[0]) == made[1]
    assert exists(client, root, (*place(made[1]), b"data"))


def test_a_look_at_a_volume_that_is_away_or_empty_or_being_deleted_changes_nothing(
    site: Site, model: ModelServer, client: Client, root: bytes
) -> None:
    made = site.provision()
    parent, volumes = model.share.children[b"default"], model.share.children[b".volplane"].children[b"volumes"]
    [(name, directory)] = parent.children.items()
    del parent.children[name]
    assert site.find(made[0], only_look=True) == Absent()
    parent.children[name] = directory
    found = directory_handle(client, root, place(made[1]))
    assert found is not None
    client.compound(PUTFH(found), SETATTR(ANONYMOUS, {MODE: 0o700}))
    assert site.find(made[0], only_look=True) == made[1]
    key = made[0].name.encode()
    volumes.children[key + b"@1"] = volumes.children.pop(key)
    with pytest.raises(Unavailable, match="being removed"):
        site.find(made[0], only_look=True)
    volumes.children[key] = volumes.children.pop(key + b"@1")
    assert site.expand(site.volume(made), 2 * MIB).capacity_bytes == 2 * MIB
    assert exists(client, root, place(made[1]))


def picture(node: Node) -> Any:
    """Everything below a node of the model."""
    return node.fileid, node.kind, node.mode, node.data, {name: picture(each) for name, each in node.children.items()}


@pytest.mark.parametrize("only_look", [False, True])
@pytest.mark.parametrize("state", ["whole", "unfinished", "away", "being deleted"])
def test_find_changes_nothing_and_what_it_finds_can_be_deleted(
    site: Site, model: ModelServer, state: str, only_look: bool
) -> None:
    made = site.provision()
    name, volumes = made[0].name.encode(), model.share.children[b".volplane"].children[b"volumes"]
    parent = model.share.children[b"default"]
    if state == "unfinished":
        next(iter(parent.children.values())).mode = 0o700
    elif state == "away":
        model.leave(parent, next(iter(parent.children)))
    elif state == "being deleted":
        model.enter(volumes, name + b"@1", volumes.children[name])
        model.leave(volumes, name)
    before, found = picture(model.root), None
    with suppress(Unavailable):
        found = site.find(made[0], only_look=only_look)
    assert picture(model.root) == before
    if only_look:
        assert found == {"away": Absent(), "being deleted": None}.get(state, made[1])
        return
    assert found == made[1]
    site.delete(site.volume((made[0], made[1]), uid=""))
    assert site.find(made[0]) == Absent()
    assert set(model.share.children) == {b".volplane"}


def test_a_deletion_that_was_begun_goes_on_as_the_class_says(site: Site, model: ModelServer, client: Client) -> None:
    made = site.provision(parameters={"onDelete": "archive"})
    [directory] = model.share.children[b"default"].children.values()
    make_directory(client, directory.fileid.to_bytes(8, "big"), b"data", 0o755)
    control = model.share.children[b".volplane"]
    name = made[0].name.encode()
    control.children[b"volumes"].children[name + b"@1"] = control.children[b"volumes"].children.pop(name)
    site.delete(site.volume((made[0], site.find(made[0])), uid=""))
    assert site.find(made[0]) == Absent()
    [archived] = control.children[b"archive"].children.values()
    assert b"data" in archived.children[b"data"].children


@pytest.mark.parametrize("minor", [0, 1])
@pytest.mark.parametrize("depth", range(1, 9))
def test_a_server_that_takes_16_operations_at_once_serves_paths_of_every_depth(minor: int, depth: int) -> None:
    """As Linux before 6.0 does."""
    model = ModelServer(minor=minor)
    model.operations = 16
    site = Site(dial=model.dial).start()
    template = "/".join([*(f"d{number}" for number in range(depth - 1)), "${claim}"])
    for on_delete in ("delete", "archive", "retain"):
        made = site.provision(parameters={"pathTemplate": template, "onDelete": on_delete})
        assert site.again().provision(made[0]) == made
        assert site.find(made[0]) == made[1]
        node = model.share
        for name in place(made[1]):
            node = node.children[name]
        for number in range(40):
            below = model.make(2, node)
            model.enter(node, b"%d" % number, below)
            model.enter(below, b"file", model.make(1, below))
        assert site.recycle(site.volume(made)) == Erased()
        assert site.expand(site.volume(made), 2 * MIB).capacity_bytes == 2 * MIB
        assert [each.name for each in site.listed() if each.owner] == [made[0].name]
        model.enter(node, b"file", model.make(1, node))
        site.delete(site.volume(made))
    [kept] = [each for each in site.listed() if each.owner is None]
    assert kept.handle.count("/") >= depth
    empty = site.provision(parameters={"pathTemplate": template.replace("d", "e")})
    site.delete(site.volume(empty))
    assert b"e0" not in model.share.children
