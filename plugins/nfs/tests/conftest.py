"""Servers, and a driver on one of them with requests that have sensible defaults."""

from __future__ import annotations

import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from volplane import (
    Asset,
    CapacityRequest,
    ClaimIdentity,
    Context,
    DeleteRequest,
    Done,
    Erased,
    ExpandRequest,
    FindRequest,
    InProgress,
    ListedAsset,
    ListRequest,
    Ownership,
    OwnsRequest,
    ParameterSchema,
    PodScrub,
    ProbeRequest,
    ProvisionRequest,
    RecycleRequest,
    StartRequest,
    StopRequest,
    ValidateRequest,
    VolumeIdentity,
    VolumeSource,
)
from volplane_nfs import NfsBackend
from volplane_nfs.ganesha.bus import DBus, OpenBus
from volplane_nfs.nfs4 import Address, Client, Dial, dial_tcp
from volplane_nfs.nfs4.files import root_handle
from volplane_nfs.parameters import PARAMETERS
from volplane_nfs.testing import GaneshaServer, ModelServer, why_no_ganesha
from volplane_nfs.testing.subjects import backend_through

DRIVER = "nfs.volplane.dev"
MIB = 1 << 20
MODEL = "nfs://model.example.com/vol"


def defaults(schema: ParameterSchema) -> dict[str, Any]:
    return {each.name: each.default for each in schema.parameters}


class Site:
    """A driver on shares, as the core would call it."""

    def __init__(
        self,
        shares: str = MODEL,
        dial: Dial = dial_tcp,
        *,
        cluster: str = "cluster-1",
        open_bus: OpenBus = DBus,
        **options: Any,
    ) -> None:
        self.cluster = cluster
        self.shares = tuple(shares.split(","))
        self.dial = dial
        self.open_bus = open_bus
        self.options = options
        made = backend_through(dial, open_bus=open_bus)
        self.backend: NfsBackend = made({"shares": self.shares, "timeout": 5.0, **options})

    def again(self, **options: Any) -> Site:
        """The same driver in another process."""
        merged = {**self.options, **options}
        return Site(",".join(self.shares), self.dial, cluster=self.cluster, open_bus=self.open_bus, **merged)

    def context(self, **fields: Any) -> Context:
        return Context(driver=DRIVER, cluster_id=self.cluster, **fields)

    def start(self) -> Site:
        assert self.backend.start(StartRequest(context=self.context())) == Done()
        return self

    def stop(self) -> None:
        self.backend.stop(StopRequest(context=self.context()))

    def probe(self) -> Done:
        return self.backend.probe(ProbeRequest(context=self.context()))

    def validate(self, **parameters: Any) -> Done:
        return self.backend.validate(
            ValidateRequest(context=self.context(), parameters={**defaults(PARAMETERS), **parameters})
        )

    def owner(self, uid: str, generation: int = 1) -> Ownership:
        return Ownership(cluster_id=self.cluster, claim_uid=uid, volume_name=f"pvc-{uid}", generation=generation)

    def demand(self, uid: str = "", **fields: Any) -> ProvisionRequest:
        uid = uid or str(uuid.uuid4())
        parameters = {**defaults(PARAMETERS), **fields.pop("parameters", {})}
        claim = ClaimIdentity(namespace="default", name="data", uid=uid, **fields.pop("claim", {}))
        request = ProvisionRequest(
            context=self.context(),
            name=f"pvc-{uid}",
            capacity_bytes=MIB,
            owner=self.owner(uid),
            claim=claim,
            parameters=parameters,
        )
        return replace(request, **fields)

    def provision(self, request: ProvisionRequest | None = None, **fields: Any) -> tuple[ProvisionRequest, Asset]:
        """Provision to the end."""
        request = request or self.demand(**fields)
        for _ in range(5):
            answer = self.backend.provision(request)
            if isinstance(answer, Asset):
                return request, answer
            request = replace(request, context=replace(request.context, state=answer.state))
        raise AssertionError("it never ends")

    def volume(self, made: tuple[ProvisionRequest, Asset], **fields: Any) -> VolumeIdentity:
        request, asset = made
        known = {
            "name": request.name,
            "uid": f"pv-{request.claim.uid}",
            "handle": asset.handle,
            "source": asset.source,
            "capacity_bytes": asset.capacity_bytes,
            "owner": request.owner,
        }
        return VolumeIdentity(**{**known, **fields})

    def static(self, path: str, name: str = "by-hand") -> VolumeIdentity:
        host = self.shares[0].removeprefix("nfs://").partition("/")[0].partition(":")[0]
        source = VolumeSource(kind="nfs", fields={"server": host, "path": path})
        return VolumeIdentity(name=name, uid=f"pv-{name}", handle=path, source=source, capacity_bytes=MIB)

    def delete_once(self, volume: VolumeIdentity) -> Done | InProgress:
        return self.backend.delete(DeleteRequest(context=self.context(), volume=volume))

    def delete(self, volume: VolumeIdentity) -> int:
        """Delete to the end; after how many calls."""
        for count in range(1, 2000):
            if self.delete_once(volume) == Done():
                return count
        raise AssertionError("it never ends")

    def recycle(self, volume: VolumeIdentity) -> Erased | PodScrub:
        for _ in range(2000):
            answer = self.backend.recycle(RecycleRequest(context=self.context(), volume=volume))
            if not isinstance(answer, InProgress):
                return answer
        raise AssertionError("it never ends")

    def find(self, request: ProvisionRequest, **fields: Any) -> Any:
        question = FindRequest(context=self.context(), name=request.name, owner=request.owner)
        return self.backend.find(replace(question, **fields))

    def expand(self, volume: VolumeIdentity, size: int) -> Asset:
        return self.backend.expand(ExpandRequest(context=self.context(), volume=volume, capacity_bytes=size))

    def owns(self, kind: str, **fields: Any) -> bool:
        source = VolumeSource(kind=kind, fields=fields)
        return self.backend.owns(OwnsRequest(context=self.context(), source=source))

    def capacity(self, **parameters: Any) -> int:
        request = CapacityRequest(context=self.context(), parameters={**defaults(PARAMETERS), **parameters})
        return self.backend.get_capacity(request).available_bytes

    def listed(self) -> list[ListedAsset]:
        found: list[ListedAsset] = []
        page = None
        while True:
            answer = self.backend.list_assets(ListRequest(context=self.context(), page=page))
            found += answer.assets
            page = answer.next_page
            if page is None:
                return found


@pytest.fixture
def model() -> ModelServer:
    return ModelServer()


@pytest.fixture
def site(model: ModelServer) -> Site:
    return Site(dial=model.dial).start()


@pytest.fixture
def client(model: ModelServer) -> Client:
    """A client of the model, for a look at what is there."""
    return Client(Address("model.example.com"), dial=model.dial)


@pytest.fixture
def root(client: Client) -> bytes:
    return root_handle(client, (b"vol",))


@contextmanager
def mounted(point: Path, *arguments: str) -> Iterator[None]:
    """Mount something there, by these arguments of mount(8), until the block ends; the test is skipped if none may."""
    if subprocess.run(["mount", *arguments, str(point)], check=False, capture_output=True).returncode:
        pytest.skip("mount(2) is not allowed here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(point)], check=True)


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory in memory, for the disk of a Ganesha."""
    if reason := why_no_ganesha():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="volplane-", dir="/dev/shm") as directory:
        yield Path(directory)


@pytest.fixture(scope="session")
def ganesha() -> Iterator[GaneshaServer]:
    """One real server for all tests of a worker."""
    if reason := why_no_ganesha():
        pytest.skip(reason)
    with (
        tempfile.TemporaryDirectory(prefix="volplane-", dir="/dev/shm") as directory,
        GaneshaServer(Path(directory)) as server,
    ):
        yield server


@pytest.fixture
def live(ganesha: GaneshaServer) -> Iterator[Site]:
    """The driver on the real server."""
    site = Site(ganesha.share).start()
    yield site
    site.stop()
