"""Volumes as folders under one root."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from volplane import (
    AlreadyExists,
    Asset,
    BackendSpec,
    DeleteRequest,
    DescribeRequest,
    Done,
    DriverInfo,
    Parameter,
    ParameterSchema,
    ProvisionRequest,
    StartRequest,
    Unavailable,
    VolumeSource,
    hookimpl,
)


class FolderBackend(BackendSpec):
    options_schema = ParameterSchema(
        parameters=(Parameter(name="root", doc="Directory that holds the folders.", required=True),)
    )

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.root = Path(options["root"])

    @hookimpl
    def describe(self, request: DescribeRequest) -> DriverInfo:
        return DriverInfo(
            version="0.1.0",
            parameters=ParameterSchema(parameters=(Parameter(name="colour", doc="Written beside the folder."),)),
        )

    @hookimpl
    def start(self, request: StartRequest) -> Done:
        if not self.root.is_dir():
            raise Unavailable(f"{self.root} is no directory; mount the disk or change the option root")
        return Done()

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset:
        folder, label = self.root / request.name, self.root / f"{request.name}.label"
        demand = f"{request.capacity_bytes} {request.owner.claim_uid} {request.parameters.get('colour')}"
        if label.exists() and label.read_text() != demand:
            raise AlreadyExists(f"{folder} was made for another demand")
        label.write_text(demand)
        folder.mkdir(exist_ok=True)
        source = VolumeSource(kind="hostPath", fields={"path": str(folder), "type": "Directory"})
        return Asset(handle=request.name, source=source, capacity_bytes=request.capacity_bytes)

    @hookimpl
    def delete(self, request: DeleteRequest) -> Done:
        folder = self.root / request.volume.handle
        if folder.exists():
            shutil.rmtree(folder)
        folder.with_suffix(".label").unlink(missing_ok=True)
        return Done()
