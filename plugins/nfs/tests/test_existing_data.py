"""Exact paths, and directories that a class lets volumes use as they are."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from volplane import AlreadyExists, Asset, BackendError, Done, InvalidArgument, Unavailable, Unsupported
from volplane_nfs import share as shares
from volplane_nfs.nfs4.attributes import DIRECTORY, LINK, REGULAR
from volplane_nfs.nfs4.operations import Request
from volplane_nfs.testing import GaneshaServer, ModelServer
from volplane_nfs.testing.model.state import Node
from volplane_nfs.testing.subjects import export_options

from .conftest import Site

USE = {"pathTemplate": "${namespace}/${claim}", "exactPath": True, "onExisting": "use"}
EXACT = {**USE, "onExisting": "refuse"}


@pytest.fixture
def data(model: ModelServer) -> Node:
    """A directory of another provisioner, in the place of the claim `data` of the namespace `default`."""
    return put(model)


def put(model: ModelServer) -> Node:
    above, directory = model.make(DIRECTORY, None, mode=0o755), model.make(DIRECTORY, None, mode=0o751)
    model.enter(model.share, b"default", above)
    model.enter(above, b"data", directory)
    model.enter(directory, b"file", model.make(REGULAR, None, data=b"kept"))
    return directory


def kept(model: ModelServer, data: Node) -> bool:
    there = model.share.children[b"default"].children.get(b"data")
    return there is data and data.children[b"file"].data == b"kept" and data.mode == 0o751


def volumes(model: ModelServer) -> list[bytes]:
    return sorted(model.share.children[b".volplane"].children[b"volumes"].children)


def test_an_exact_path_is_what_the_template_says(site: Site, model: ModelServer) -> None:
    made = site.provision(parameters=EXACT)
    assert made[1].source.fields["path"] == "/vol/default/data"
    assert site.provision(made[0]) == made
    site.delete(site.volume(made))
    assert list(model.share.children) == [b".volplane"]
    assert b"turn" not in model.share.children[b".volplane"].children


def test_a_second_claim_gets_no_exact_path_that_a_volume_has(site: Site, model: ModelServer) -> None:
    made = site.provision(parameters=USE)
    with pytest.raises(AlreadyExists, match=f"carries the mark of volume {made[0].name}"):
        site.provision(parameters=USE)
    assert volumes(model) == [made[0].name.encode()]


def test_data_that_is_there_is_used_as_it_is_and_stays_when_its_volume_is_deleted(
    site: Site, model: ModelServer, data: Node
) -> None:
    made = site.provision(parameters={**USE, "mode": 0o700, "gid": 7})
    assert made[1].source.fields["path"] == "/vol/default/data"
    assert kept(model, data)
    assert site.find(made[0]) == made[1]
    assert site.again().start().provision(made[0]) == made
    assert [each.owner for each in site.listed() if each.owner] == [made[0].owner]
    for _ in range(2):
        site.delete(site.volume(made))
        assert kept(model, data)
        assert volumes(model) == []


def test_without_consent_data_that_is_there_is_refused(site: Site, model: ModelServer, data: Node) -> None:
    with pytest.raises(AlreadyExists, match="it is not touched"):
        site.provision(parameters=EXACT)
    assert kept(model, data)
    assert volumes(model) == []


def test_a_claim_that_is_made_again_gets_what_the_former_one_left(site: Site, model: ModelServer) -> None:
    for name in (b"1", b"2", b"3"):
        made = site.provision(parameters=USE)
        directory = model.share.children[b"default"].children[b"data"]
        model.enter(directory, name, model.make(REGULAR, None))
        site.delete(site.volume(made))
    assert sorted(directory.children) == [b"1", b"2", b"3"]
    site.start()
    assert len(model.share.children[b".volplane"].children[b"retained"].children) == 1


def test_a_class_that_says_delete_removes_what_was_there(site: Site, model: ModelServer, data: Node) -> None:
    made = site.provision(parameters={**USE, "onDelete": "delete"})
    assert kept(model, data)
    site.delete(site.volume(made))
    assert model.share.children[b"default"].children == {}


def test_what_never_became_a_volume_keeps_its_data_whatever_the_class_says(
    site: Site, model: ModelServer, data: Node
) -> None:
    made = site.provision(parameters={**USE, "onDelete": "delete"})
    site.delete(site.volume(made, uid=""))
    assert kept(model, data)
    assert volumes(model) == []


def test_data_that_was_there_is_emptied_only_where_the_class_says_delete(
    site: Site, model: ModelServer, data: Node
) -> None:
    made = site.provision(parameters=USE)
    with pytest.raises(Unsupported, match="onDelete: delete"):
        site.recycle(site.volume(made))
    assert kept(model, data)
    site.delete(site.volume(made))
    site.recycle(site.volume(site.provision(parameters={**USE, "onDelete": "delete"})))
    assert (data.children, data.mode) == ({}, 0o751)


def test_what_a_claim_of_another_namespace_left_is_not_used(site: Site, model: ModelServer) -> None:
    left = site.provision(parameters={"pathTemplate": "team/${claim}", "exactPath": True, "onDelete": "retain"})
    site.delete(site.volume(left))
    request = site.demand(parameters=USE)
    with pytest.raises(AlreadyExists, match="left by a volume of namespace default"):
        site.provision(replace(request, claim=replace(request.claim, namespace="team")))
    assert volumes(model) == []


@pytest.mark.parametrize("template", ["${namespace}", "${namespace}/data/below"])
def test_a_directory_above_or_below_a_volume_is_not_used(site: Site, model: ModelServer, template: str) -> None:
    made = site.provision(parameters=USE)
    model.enter(model.share.children[b"default"].children[b"data"], b"below", model.make(DIRECTORY, None))
    with pytest.raises(AlreadyExists, match=r"carries the mark of|made by volplane to hold volumes"):
        site.provision(parameters={**USE, "pathTemplate": template})
    assert volumes(model) == [made[0].name.encode()]


def test_no_link_is_used(site: Site, model: ModelServer) -> None:
    above = model.make(DIRECTORY, None, mode=0o755)
    model.enter(model.share, b"default", above)
    model.enter(above, b"data", model.make(LINK, None, data=b"../elsewhere"))
    with pytest.raises(BackendError, match="no link is followed"):
        site.provision(parameters=USE)
    assert volumes(model) == []


def test_below_a_directory_that_others_can_write_into_nothing_is_used(
    site: Site, model: ModelServer, data: Node
) -> None:
    model.share.children[b"default"].mode = 0o777
    with pytest.raises(AlreadyExists, match="could exchange volumes"):
        site.provision(parameters=USE)
    assert volumes(model) == []


def test_beside_data_that_is_there_a_new_directory_is_made(site: Site, model: ModelServer, data: Node) -> None:
    request = site.demand(parameters=USE)
    made = site.provision(replace(request, claim=replace(request.claim, name="other")))
    assert model.share.children[b"default"].children[b"other"].mode == 0o777
    site.delete(site.volume(made))
    assert kept(model, data)


def test_no_copy_is_put_onto_data_that_is_there(site: Site, model: ModelServer, data: Node) -> None:
    source = site.provision(parameters={"pathTemplate": "${volume}"})
    request = site.demand(parameters=USE, source_volume=source[1].handle)
    with pytest.raises(AlreadyExists, match="without a source"):
        site.provision(request)
    assert kept(model, data)
    assert volumes(model) == [source[0].name.encode()]


def test_a_copy_gets_an_exact_path_that_is_free(site: Site, model: ModelServer) -> None:
    source = site.provision(parameters={"pathTemplate": "${volume}"})
    made = site.provision(parameters=EXACT, source_volume=source[1].handle)
    assert made[1].source.fields["path"] == "/vol/default/data"
    with pytest.raises(AlreadyExists, match="it is not touched"):
        site.provision(parameters=EXACT, source_volume=source[1].handle)


def changing(model: ModelServer, step: int, do: Callable[[], None]) -> list[int]:
    """Do something before a call that changes something, the first of which is 1; how many there were."""
    count = [0]

    def fault(requests: Sequence[Request]) -> None:
        if any(request.operation.changes for request in requests):
            count[0] += 1
            if count[0] == step:
                do()

    model.fault = fault
    return count


class Crash(BaseException):
    """The process is gone."""


def crash() -> None:
    raise Crash


@pytest.mark.parametrize("on_delete", ["retain", "delete"])
def test_data_that_was_there_outlives_every_crash(on_delete: str) -> None:
    use = {**USE, "onDelete": on_delete}

    def run(step: int) -> int:
        model = ModelServer()
        site = Site(dial=model.dial).start()
        data = put(model)
        request = site.demand(parameters=use)
        count = changing(model, step, crash)
        with suppress(Crash):
            made = site.provision(request)
            # What a class lets be removed all the same outlives an asset that never becomes a volume.
            site.delete(site.volume(made, **({"uid": ""} if on_delete == "delete" else {})))
        changing(model, 0, crash)
        again = site.again().start()
        found = again.find(request)
        if isinstance(found, Asset):
            assert again.delete_once(again.volume((request, found), uid="")) == Done()
        assert kept(model, data)
        model.share.children[b".volplane"].children.pop(b"turn", None)
        again.provision(parameters=use)
        assert kept(model, data)
        assert len(volumes(model)) == 1
        return count[0]

    for step in range(1, run(0) + 1):
        run(step)


def test_what_appears_while_a_volume_is_made_is_not_taken(site: Site, model: ModelServer) -> None:
    site.provision()  # The directory above is there.
    request = site.demand(parameters=EXACT)

    def appear() -> None:
        model.enter(model.share.children[b"default"], b"data", model.make(DIRECTORY, None, mode=0o700))

    changing(model, 2, appear)  # After the turn is taken.
    with pytest.raises(Unavailable, match="appeared while"):
        site.provision(request)
    with pytest.raises(AlreadyExists, match="not touched"):
        site.provision(request)
    assert len(volumes(model)) == 1


def test_a_turn_of_a_process_that_ended_ends_after_a_while(
    site: Site, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = site.demand(parameters=USE)
    changing(model, 2, crash)
    with pytest.raises(Crash):
        site.provision(request)
    model.enter(model.share.children[b".volplane"], b"turn", model.make(LINK, None, data=b"another's.0"))
    changing(model, 0, crash)
    again = site.again().start()
    for _ in range(3):
        with pytest.raises(Unavailable, match="another process has its turn"):
            again.provision(request)
    monkeypatch.setattr(shares, "_ENDED", 0.0)
    with pytest.raises(Unavailable):
        again.provision(request)
    again.provision(request)
    assert volumes(model) == [request.name.encode()]


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"onExisting": "use"}, "needs exactPath"),
        ({**USE, "pathTemplate": "${claim}"}, "namespace"),
        ({**USE, "pathTemplate": "${namespace}-${claim}"}, "namespace"),
        ({**USE, "pathTemplate": "${label:namespace}/${claim}"}, "namespace"),
    ],
)
def test_a_class_by_which_tenants_could_choose_anothers_directory_is_refused(
    site: Site, parameters: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidArgument, match=says):
        site.validate(**parameters)


def test_a_class_that_uses_data_names_its_share(model: ModelServer) -> None:
    site = Site("nfs://model.example.com/a,nfs://model.example.com/b", dial=model.dial)
    with pytest.raises(InvalidArgument, match="name the share"):
        site.validate(**USE)
    assert site.validate(**USE, share="/b") == Done()


@pytest.mark.parametrize("mode", ["subdirectory", "export"])
def test_a_real_server_shows_data_that_was_there_and_keeps_them(ganesha: GaneshaServer, mode: str) -> None:
    claim = f"old-{mode}"
    data = ganesha.data / "team" / claim
    data.mkdir(parents=True, mode=0o755)
    (data / "file").write_text("kept")
    os.chown(data, 1000, 1000)
    data.chmod(0o750)
    site = Site(ganesha.share, **(export_options(ganesha) if mode == "export" else {})).start()
    request = site.demand(parameters=USE)
    made = site.provision(replace(request, claim=replace(request.claim, namespace="team", name=claim)))
    site.delete(site.volume(made))
    site.stop()
    assert (data / "file").read_text() == "kept"
    assert (data.stat().st_uid, data.stat().st_mode & 0o7777) == (1000, 0o750)
