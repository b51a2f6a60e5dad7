"""Where the demo keeps its volumes: a directory of this machine, or a private NFS-Ganesha."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from volplane.controller.config import Configuration, DriverSettings
from volplane.errors import ConfigurationError
from volplane.kube.objects import Volume
from volplane_embedded.cli.development_cluster import DEFAULT_DRIVER
from volplane_embedded.kubelet.local_exports import LocalExport

_NFS_DRIVER: Final = "nfs.volplane.dev"


@dataclass(frozen=True, slots=True)
class DemoStorage:
    """driver: name. text: where volumes are, for people. root: the directory on this machine. configuration: drivers.

    export: the export that root is, None if volumes are directories of the node. scrubber: who empties volumes.
    """

    driver: str
    text: str
    root: Path
    configuration: Configuration
    export: LocalExport | None = None
    scrubber: str = "a sandboxed pod"

    def directory_of(self, volume: Volume) -> Path | None:
        """Return the directory of a volume on this machine."""
        if self.export is not None and volume.spec.nfs is not None:
            return self.root / str(volume.spec.nfs["path"]).removeprefix(self.export.path).lstrip("/")
        source = volume.spec.local or volume.spec.host_path
        return Path(source["path"]) if source is not None else None

    def static_source(self, directory: Path) -> Mapping[str, Any]:
        """Return the source of a volume that a person makes for a directory in the root."""
        if self.export is None:
            return {"hostPath": {"path": str(directory), "type": "Directory"}}
        return {"nfs": {"server": self.export.server, "path": f"{self.export.path}/{directory.name}"}}


def fakes_of(backend: str) -> Any:
    """Return the module with the storage that a backend brings for tests. Raises ModuleNotFoundError."""
    for point in importlib.metadata.entry_points(group="volplane.fakes", name=backend):
        return point.load()
    raise ModuleNotFoundError(f"no distribution has the backend {backend} with its storage for tests")


@contextmanager
def demo_storage(backend: Literal["hostpath", "nfs"], directory: Path, volumes: Path) -> Iterator[DemoStorage]:
    """Return the storage, for as long as the block runs. directory: an empty one. volumes: of the default driver.

    Raises ConfigurationError if it cannot be had here.
    """
    if backend == "hostpath":
        yield DemoStorage(DEFAULT_DRIVER, str(volumes), volumes, Configuration())
        return
    try:
        servers = fakes_of("nfs")
    except ModuleNotFoundError as error:
        raise ConfigurationError(f'the backend nfs is not installed ({error}): pip install "volplane[nfs]"') from None
    if reason := servers.why_no_ganesha():
        raise ConfigurationError(f"volplane demo --backend nfs runs a private NFS-Ganesha: {reason}")
    try:
        with servers.GaneshaServer(directory) as server:
            settings = DriverSettings(
                name=_NFS_DRIVER, backend="nfs", options={"shares": server.share}, where="the demo's driver"
            )
            yield DemoStorage(
                _NFS_DRIVER,
                f"{server.share} of a private NFS-Ganesha",
                server.data,
                Configuration(drivers=(settings,)),
                LocalExport("127.0.0.1", "/vol", server.data),
                "the backend's own client",
            )
    except RuntimeError as error:
        raise ConfigurationError(f"NFS-Ganesha: {error}") from error
