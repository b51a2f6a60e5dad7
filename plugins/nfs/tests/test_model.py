"""The model of a server answers as NFS-Ganesha does: random sequences of operations on both, compared."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from volplane_nfs.nfs4 import Address, Client
from volplane_nfs.nfs4 import operations as nfs
from volplane_nfs.nfs4.attributes import DIRECTORY, MODE, NUMLINKS, TYPE, mask_of
from volplane_nfs.nfs4.files import create_link, directory_handle, make_directory, names, rename, root_handle, walk
from volplane_nfs.nfs4.operations import Request
from volplane_nfs.testing import GaneshaServer, ModelServer

NAMES = st.sampled_from(
    [b"a", b"b", b"c", b"..", b".", b"", b"x" * 255, b"x" * 256, b"y/z", b"\xff\xfe", b"line\nfeed"]
)
PATHS = st.lists(st.sampled_from([b"a", b"b", b"c"]), max_size=2).map(tuple)
LOOK = mask_of(TYPE, MODE)


def steps() -> st.SearchStrategy[tuple[str, Any]]:
    return st.one_of(
        st.tuples(st.just("mkdir"), st.tuples(PATHS, NAMES)),
        st.tuples(st.just("link"), st.tuples(PATHS, NAMES, st.sampled_from([b"..", b"/etc", b"a", b"x" * 500]))),
        st.tuples(st.just("remove"), st.tuples(PATHS, NAMES)),
        st.tuples(st.just("rename"), st.tuples(NAMES, NAMES)),
        st.tuples(st.just("look"), PATHS),
        st.tuples(st.just("chmod"), st.tuples(PATHS, st.sampled_from([0o700, 0o2770, 0o1777]))),
        st.tuples(st.just("readlink"), PATHS),
        st.tuples(st.just("verify"), PATHS),
    )


def requests_of(handle: bytes, step: tuple[str, Any]) -> list[Request]:
    match step:
        case "mkdir", (path, name):
            return [*walk(handle, path), nfs.CREATE((DIRECTORY, None), name, {MODE: 0o755})]
        case "link", (path, name, target):
            return [*walk(handle, path), create_link(name, target)]
        case "remove", (path, name):
            return [*walk(handle, path), nfs.REMOVE(name)]
        case "rename", (old, new):
            return rename(handle, old, handle, new)
        case "look", path:
            return [*walk(handle, path), nfs.GETATTR(LOOK)]
        case "chmod", (path, mode):
            return [*walk(handle, path), nfs.VERIFY({TYPE: DIRECTORY}), nfs.SETATTR((0, bytes(12)), {MODE: mode})]
        case "readlink", path:
            return [*walk(handle, path), nfs.READLINK()]
        case _, path:
            return [*walk(handle, path), nfs.VERIFY({TYPE: DIRECTORY})]


def told(client: Client, handle: bytes, step: tuple[str, Any]) -> tuple[int, int, Any]:
    """Status, number of results, and attributes or target."""
    (reply,) = client.pipeline([requests_of(handle, step)])
    value = reply.results[-1].value if reply.results and not reply.status else None
    if isinstance(value, dict) and value.get(TYPE) == 5:
        value = {TYPE: 5}  # the mode of a link is anybody's choice
    return reply.status, len(reply.results), value if isinstance(value, dict | bytes) else None


@pytest.fixture
def both(ganesha: GaneshaServer, model: ModelServer) -> tuple[Client, Client]:
    return Client(Address("127.0.0.1", ganesha.port)), Client(Address("model.example.com"), dial=model.dial)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(plan=st.lists(steps(), max_size=12))
def test_the_model_answers_as_ganesha_does(both: tuple[Client, Client], plan: list[tuple[str, Any]]) -> None:
    place = uuid.uuid4().hex.encode()
    handles = []
    for client in both:
        root = root_handle(client, (b"vol",))
        make_directory(client, root, place, 0o755)
        handle = directory_handle(client, root, (place,))
        assert handle is not None
        handles.append(handle)
    for step in plan:
        real, modelled = (told(client, handle, step) for client, handle in zip(both, handles, strict=True))
        assert modelled == real, step
    real, modelled = (sorted(names(client, handle)) for client, handle in zip(both, handles, strict=True))
    assert modelled == real


def test_both_count_links_and_sizes_alike(both: tuple[Client, Client]) -> None:
    seen = []
    for client in both:
        root = root_handle(client, (b"vol",))
        place = uuid.uuid4().hex.encode()
        client.compound(*walk(root, ()), nfs.CREATE((DIRECTORY, None), place, {MODE: 0o755}))
        client.compound(*walk(root, (place,)), nfs.CREATE((DIRECTORY, None), b"below", {MODE: 0o755}))
        client.compound(*walk(root, (place,)), create_link(b"link", b"target"))
        links = client.compound(*walk(root, (place,)), nfs.GETATTR(mask_of(NUMLINKS)))[-1][NUMLINKS]
        seen.append((links, len(client.compound(*walk(root, (place, b"link")), nfs.READLINK())[-1])))
    assert seen[0] == seen[1] == (3, 6)
