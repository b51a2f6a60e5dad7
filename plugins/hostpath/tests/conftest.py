"""A root in a temporary directory, a driver on it, and requests with sensible defaults."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from volplane import (
    Asset,
    CapacityRequest,
    ClaimIdentity,
    Context,
    DeleteRequest,
    DescribeRequest,
    Done,
    ExpandRequest,
    FindRequest,
    InProgress,
    ListRequest,
    ListSnapshotsRequest,
    Ownership,
    OwnsRequest,
    ProbeRequest,
    ProvisionRequest,
    RecycleRequest,
    Snapshot,
    StartRequest,
    ValidateRequest,
    VolumeIdentity,
    VolumeSource,
)
from volplane_hostpath import HostPathBackend
from volplane_hostpath.testing import FakeQuotas

DRIVER = "hostpath.volplane.dev"
MIB = 1 << 20


class Site:
    """A driver on a root, as the core would call it."""

    def __init__(
        self,
        root: Path,
        *,
        cluster: str = "cluster-1",
        driver: str = DRIVER,
        quotas: FakeQuotas | None = None,
        **options: Any,
    ) -> None:
        self.root = root
        self.cluster = cluster
        self.driver = driver
        self.options = {"root": str(root), "node_name": "node-a", **options}
        self.quotas = quotas
        self.backend = HostPathBackend(self.options, quotas=quotas)

    @classmethod
    def grow(cls, directory: Path, *, width: int = 3, depth: int = 3) -> None:
        """Fill a directory with `width` files, and as many directories of the same kind, `depth` levels down."""
        for number in range(width):
            (directory / f"file{number}").write_text("x")
        if depth:
            for number in range(width):
                below = directory / f"dir{number}"
                below.mkdir()
                cls.grow(below, width=width, depth=depth - 1)

    def again(self, **options: Any) -> Site:
        """The same driver in another process."""
        known = {key: value for key, value in self.options.items() if key != "root"}
        return Site(self.root, cluster=self.cluster, driver=self.driver, quotas=self.quotas, **{**known, **options})

    def context(self, **fields: Any) -> Context:
        return Context(driver=self.driver, cluster_id=self.cluster, **fields)

    def start(self, node_name: str | None = None) -> Site:
        assert self.backend.start(StartRequest(context=self.context(), node_name=node_name)) == Done()
        return self

    def describe(self) -> Any:
        return self.backend.describe(DescribeRequest(context=self.context()))

    def probe(self) -> Done:
        return self.backend.probe(ProbeRequest(context=self.context()))

    def validate(self, **parameters: Any) -> Done:
        return self.backend.validate(ValidateRequest(context=self.context(), parameters=parameters))

    def owner(self, uid: str, generation: int = 1) -> Ownership:
        return Ownership(cluster_id=self.cluster, claim_uid=uid, volume_name=f"pvc-{uid}", generation=generation)

    def request(self, uid: str = "u1", size: int = MIB, *, generation: int = 1, **fields: Any) -> ProvisionRequest:
        claim = fields.pop("claim", "data")
        namespace = fields.pop("namespace", "default")
        return ProvisionRequest(
            **{
                "context": self.context(generation=generation),
                "name": f"pvc-{uid}",
                "capacity_bytes": size,
                "owner": self.owner(uid, generation),
                "claim": ClaimIdentity(namespace=namespace, name=claim, uid=uid),
                **fields,
            }
        )

    def provision(self, uid: str = "u1", size: int = MIB, **fields: Any) -> Any:
        return self.backend.provision(self.request(uid, size, **fields))

    def find(self, uid: str = "u1", generation: int = 1, *, only_look: bool = False, **context: Any) -> Any:
        owner, given = self.owner(uid, generation), self.context(**context)
        return self.backend.find(FindRequest(context=given, name=f"pvc-{uid}", owner=owner, only_look=only_look))

    def volume(self, asset: Asset | None = None, uid: str = "u1", **fields: Any) -> VolumeIdentity:
        given = {
            "name": f"pvc-{uid}",
            "uid": f"pv-{uid}",
            "handle": asset.handle if asset else "",
            "source": asset.source if asset else VolumeSource(kind="local", fields={}),
            "capacity_bytes": asset.capacity_bytes if asset else MIB,
            "owner": self.owner(uid),
        }
        return VolumeIdentity(**{**given, **fields})

    def static(
        self, path: Path | str, name: str = "pv-static", kind: str = "hostPath", **fields: Any
    ) -> VolumeIdentity:
        return VolumeIdentity(
            name=name,
            uid=f"uid-{name}",
            handle=str(path),
            source=VolumeSource(kind=kind, fields={"path": str(path), **fields}),
            capacity_bytes=MIB,
        )

    def delete_once(self, volume: VolumeIdentity, **context: Any) -> Any:
        return self.backend.delete(DeleteRequest(context=self.context(**context), volume=volume))

    def delete(self, volume: VolumeIdentity, **context: Any) -> int:
        """Call until done; returns how many calls it took."""
        calls = 1
        while isinstance(self.delete_once(volume, **context), InProgress):
            calls += 1
            assert calls < 100_000
        return calls

    def recycle(self, volume: VolumeIdentity) -> Any:
        return self.backend.recycle(RecycleRequest(context=self.context(), volume=volume))

    def expand(self, volume: VolumeIdentity, size: int) -> Asset:
        return self.backend.expand(ExpandRequest(context=self.context(), volume=volume, capacity_bytes=size))

    def owns(self, path: str, kind: str = "hostPath", **fields: Any) -> bool:
        source = VolumeSource(kind=kind, fields={"path": path, **fields})
        return self.backend.owns(OwnsRequest(context=self.context(), source=source))

    def room(self, segment: Any = None) -> int:
        return self.backend.get_capacity(CapacityRequest(context=self.context(), segment=segment)).available_bytes

    def listed(self) -> dict[str, Any]:
        """All pages, by name."""
        assets, page = [], None
        while True:
            answer = self.backend.list_assets(ListRequest(context=self.context(), page=page))
            assets += answer.assets
            page = answer.next_page
            if page is None:
                return {asset.name: asset for asset in assets}

    def snapshots(self) -> list[Snapshot]:
        """Those of the first page."""
        return [*self.backend.list_snapshots(ListSnapshotsRequest(context=self.context())).snapshots]

    def path(self, asset: Asset) -> Path:
        return Path(asset.source.fields["path"])

    def marker(self, uid: str = "u1") -> Path:
        return self.root / ".volplane/volumes" / f"pvc-{uid}.json"

    def root_id(self) -> str:
        return str(json.loads((self.root / ".volplane/root.json").read_text())["root_id"])

    def leftovers(self) -> list[str]:
        """Whatever lies under the root besides the driver's fixed files."""
        found = []
        for above, directories, files in os.walk(self.root):
            inside = Path(above).relative_to(self.root)
            if inside.parts[:2] == (".volplane", "locks"):
                continue
            found += [str(inside / name) for name in (*directories, *files)]
        fixed = {".volplane", ".volplane/root.json", ".volplane/ledger"}
        fixed |= {f".volplane/{name}" for name in ("copies", "locks", "parents", "retained", "snapshots", "tmp")}
        fixed |= {f".volplane/{name}" for name in ("trash", "volumes")}
        return sorted(set(found) - fixed)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A started driver on an empty root."""
    root = tmp_path / "root"
    root.mkdir()
    return Site(root).start()


@pytest.fixture
def new_site(tmp_path: Path) -> Any:
    """Makes drivers that are not started, on a root that is an empty directory unless `path` says otherwise."""

    def make(path: Path | None = None, **options: Any) -> Site:
        if path is None:
            path = tmp_path / "root"
            path.mkdir(exist_ok=True)
        return Site(path, **options)

    return make


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """An empty directory of a user who may not write everywhere; the test runs as that user."""
    nobody = 65534
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        directory = Path(name) / "root"
        directory.mkdir()
        if os.geteuid() != 0:
            yield directory
            return
        os.chown(name, nobody, nobody)
        os.chown(directory, nobody, nobody)
        os.seteuid(nobody)
        try:
            yield directory
        finally:
            os.seteuid(0)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[tuple[Path, Callable[[str], None]]]:
    """A tmpfs of 8 MiB at tmp_path/disk, with a way to remount it."""
    point = tmp_path / "disk"
    point.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(point)], check=False).returncode:
        pytest.skip("this machine does not let root mount")

    def remount(option: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{option}", str(point)], check=True)

    yield point, remount
    subprocess.run(["umount", str(point)], check=True)


@pytest.fixture
def btrfs(tmp_path: Path) -> Iterator[Path]:
    yield from file_system("btrfs", tmp_path)


def file_system(kind: str, directory: Path) -> Iterator[Path]:
    """Yield the mount point of a small file system of this kind, directory/disk; else the test is skipped."""
    point, image = directory / "disk", directory / "image"
    point.mkdir()
    image.touch()
    os.truncate(image, 400 * MIB)
    mkfs = shutil.which(f"mkfs.{kind}")
    if mkfs is None or os.geteuid() != 0:
        pytest.skip(f"mkfs.{kind} is not installed, or this is not root")
    made = subprocess.run([mkfs, "-q", str(image)], check=False, capture_output=True).returncode
    if made or subprocess.run(["mount", "-o", "loop", str(image), str(point)], check=False).returncode:
        pytest.skip("mount(2) is not allowed here")
    try:
        yield point
    finally:
        subprocess.run(["umount", "-l", str(point)], check=True)
