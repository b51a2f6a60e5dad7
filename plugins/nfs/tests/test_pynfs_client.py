"""`client: pynfs`, with modules of the shape of pynfs that pass every operation on to the built-in client."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from volplane_nfs.nfs4 import Address, Client, Credentials, NoAnswer, OutcomeUnknown, ServerUnavailable, Status
from volplane_nfs.nfs4 import operations as nfs
from volplane_nfs.nfs4.attributes import DIRECTORY, FSID, MODE, TIME_METADATA, TYPE, mask_of
from volplane_nfs.nfs4.files import create_directory, create_link, names, read_link, root_handle
from volplane_nfs.nfs4.operations import OPERATIONS, Request, Result
from volplane_nfs.pynfs_client import PynfsClient
from volplane_nfs.testing import ModelServer

BY_NAME = {operation.name.lower(): operation for operation in OPERATIONS.values()}


class NFS4ops:
    def __getattr__(self, name: str) -> Callable[..., tuple[str, tuple[Any, ...]]] | None:
        if name not in BY_NAME:
            return None
        return lambda *arguments: (name, arguments)


def _attributes(values: dict[int, Any]) -> dict[int, Any]:
    """Structs are objects: nfstime4 (seconds, nseconds) and fsid4 (major, minor)."""
    objects = dict(values)
    if TIME_METADATA in values:
        objects[TIME_METADATA] = SimpleNamespace(seconds=values[TIME_METADATA][0], nseconds=values[TIME_METADATA][1])
    if FSID in values:
        objects[FSID] = SimpleNamespace(major=values[FSID][0], minor=values[FSID][1])
    return objects


def _answer(result: Result) -> SimpleNamespace:
    answer = SimpleNamespace(status=result.status)
    match result.operation.name:
        case "GETFH":
            answer.object = result.value
        case "GETATTR":
            answer.obj_attributes = _attributes(result.value)
        case "READLINK":
            answer.link = result.value
        case "READDIR":
            page = result.value
            entries = [
                SimpleNamespace(cookie=e.cookie, name=e.name, attrs=_attributes(e.attributes)) for e in page.entries
            ]
            answer.cookieverf = page.verifier
            answer.reply = SimpleNamespace(entries=entries, eof=page.eof)
    return SimpleNamespace(status=result.status, **{f"op{result.operation.name.lower()}": answer})


@pytest.fixture
def pynfs(model: ModelServer, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What the fake modules did: who was called, and whether the next call fails."""
    told = SimpleNamespace(clients=[], credentials=[], failing=None, refused=False)

    class NFS4Client:
        def __init__(self, host: str, port: int, minorversion: int) -> None:
            if told.refused:
                raise ConnectionRefusedError("Connection refused")
            told.clients.append((host, port, minorversion))
            self._client = Client(Address(host), dial=model.dial)
            self._calls: dict[int, list[Request]] = {}

        def set_cred(self, credentials: object) -> None:
            told.credentials.append(credentials)

        def compound_async(self, calls: list[Any], version: int, tag: bytes) -> int:
            requests = []
            for name, arguments in calls:
                plain = [getattr(each, "plain", each) for each in arguments]
                requests.append(Request(BY_NAME[name], tuple(plain)))
            self._calls[len(self._calls)] = requests
            return len(self._calls) - 1

        def listen(self, xid: int, timeout: float) -> SimpleNamespace:
            if told.failing is not None:
                raise told.failing
            (reply,) = self._client.pipeline([self._calls[xid]])
            return SimpleNamespace(status=reply.status, resarray=[_answer(each) for each in reply.results])

    types4 = types.ModuleType("xdrdef.nfs4_type")
    types4.createtype4 = lambda kind, linkdata=None: SimpleNamespace(plain=(kind, linkdata))  # type: ignore[attr-defined]
    types4.stateid4 = lambda seqid, other: SimpleNamespace(plain=(seqid, other))  # type: ignore[attr-defined]
    security = types.ModuleType("rpc.security")
    security.AuthSys = lambda: SimpleNamespace(init_cred=lambda **who: who)  # type: ignore[attr-defined]
    client_module, operations_module = types.ModuleType("nfs4client"), types.ModuleType("nfs_ops")
    client_module.NFS4Client = NFS4Client  # type: ignore[attr-defined]
    operations_module.NFS4ops = NFS4ops  # type: ignore[attr-defined]
    for name, module in (
        ("nfs4client", client_module),
        ("nfs_ops", operations_module),
        ("xdrdef", types.ModuleType("xdrdef")),
        ("xdrdef.nfs4_type", types4),
        ("rpc", types.ModuleType("rpc")),
        ("rpc.security", security),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    return told


@pytest.fixture
def client(pynfs: SimpleNamespace) -> PynfsClient:
    return PynfsClient(Address("model.example.com"), credentials=Credentials(uid=7, gid=8), timeout=5.0)


def test_everything_that_the_driver_does_goes_through_pynfs(client: PynfsClient, pynfs: SimpleNamespace) -> None:
    root = root_handle(client, (b"vol",))
    client.compound(nfs.PUTFH(root), create_directory(b"made", 0o755))
    client.compound(nfs.PUTFH(root), create_link(b"mark", b"content"))
    client.compound(nfs.PUTFH(root), nfs.LOOKUP(b"made"), nfs.SETATTR((0, bytes(12)), {MODE: 0o700}))
    client.compound(nfs.PUTFH(root), nfs.LOOKUP(b"made"), nfs.VERIFY({TYPE: DIRECTORY}))
    client.compound(nfs.PUTFH(root), nfs.SAVEFH(), nfs.PUTFH(root), nfs.RENAME(b"made", b"moved"))
    assert client.compound(nfs.PUTFH(root), nfs.LOOKUP(b"moved"), nfs.GETATTR(mask_of(MODE)))[-1] == {MODE: 0o700}
    assert sorted(names(client, root)) == [b"mark", b"moved"]
    assert read_link(client, root, b"mark") == b"content"
    client.compound(nfs.PUTFH(root), nfs.REMOVE(b"moved"))
    assert pynfs.clients == [("model.example.com", 2049, 0)]
    assert pynfs.credentials == [{"uid": 7, "gid": 8}]


def test_an_error_of_the_server_is_the_same_error(client: PynfsClient) -> None:
    (reply,) = client.pipeline([[nfs.PUTROOTFH(), nfs.LOOKUP(b"missing"), nfs.GETFH()]])
    assert (reply.status, len(reply.results)) == (Status.NOENT, 2)


def test_times_and_numbers_of_file_systems_are_those_of_the_built_in_client(
    client: PynfsClient, model: ModelServer
) -> None:
    own = Client(Address("model.example.com"), dial=model.dial)
    look = (nfs.PUTROOTFH(), nfs.LOOKUP(b"vol"), nfs.GETATTR(mask_of(TIME_METADATA, FSID)))
    assert client.compound(*look)[-1] == own.compound(*look)[-1]
    listing = (nfs.PUTROOTFH(), nfs.READDIR(0, bytes(8), 4096, 4096, mask_of(TIME_METADATA)))
    assert client.compound(*listing)[-1].entries == own.compound(*listing)[-1].entries


def test_an_error_without_a_text_is_told_by_its_class(client: PynfsClient, pynfs: SimpleNamespace) -> None:
    class RPCTimeout(Exception):
        pass

    root = root_handle(client, (b"vol",))
    pynfs.failing = RPCTimeout()
    with pytest.raises(NoAnswer, match="pynfs: RPCTimeout"):
        names(client, root)


def test_a_client_that_failed_is_thrown_away(client: PynfsClient, pynfs: SimpleNamespace) -> None:
    root = root_handle(client, (b"vol",))
    pynfs.failing = ValueError("the polling thread died")
    with pytest.raises(NoAnswer):
        names(client, root)
    with pytest.raises(OutcomeUnknown):
        client.compound(nfs.PUTFH(root), create_directory(b"made", 0o755))
    pynfs.failing = None
    assert names(client, root) == []
    assert len(pynfs.clients) == 3


def test_a_server_that_cannot_be_reached_is_unavailable(client: PynfsClient, pynfs: SimpleNamespace) -> None:
    pynfs.refused = True
    with pytest.raises(ServerUnavailable, match="refused"):
        root_handle(client, (b"vol",))
