"""Snapshots of hostpath on a directory of this machine: small files, a large one, and the memory of many.

    python -m bench.copies DIRECTORY [--files 10000] [--bytes 4096] [--large 1073741824] [--json]

A volume gets so many files in directories of 100, half of their content random, and one large file; both are copied
by `create_snapshot` in turn, then removed. Seconds are from the first call to the snapshot on the disk, without the
pauses of the controller between slices. Memory is what a process that only copies takes more than before.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.hostpath import CONTEXT, provision_request

from volplane import (
    DeleteSnapshotRequest,
    InProgress,
    SnapshotIdentity,
    SnapshotOwnership,
    SnapshotRequest,
    StartRequest,
    StopRequest,
    VolumeIdentity,
)
from volplane_hostpath import HostPathBackend


def snapshot(backend: HostPathBackend, volume: VolumeIdentity, uid: str) -> dict[str, Any]:
    """Make a snapshot; returns what it took."""
    owner = SnapshotOwnership(cluster_id="bench", snapshot_uid=uid, content_name=f"snapcontent-{uid}")
    request = SnapshotRequest(
        context=CONTEXT,
        name=f"snapshot-{uid}",
        volume=volume,
        owner=owner,
        snapshot=SnapshotIdentity(namespace="bench", name=uid, content=owner.content_name),
    )
    before = resource.getrusage(resource.RUSAGE_SELF)
    began, calls = time.perf_counter(), 1
    while isinstance(made := backend.create_snapshot(request), InProgress):
        calls += 1
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF)
    deletion = DeleteSnapshotRequest(context=CONTEXT, handle=made.handle, owner=owner)
    began = time.perf_counter()
    while isinstance(backend.delete_snapshot(deletion), InProgress):
        pass
    return {
        "seconds": round(seconds, 3),
        "calls": calls,
        "cpu_seconds": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 3),
        "memory_mib": round((after.ru_maxrss - before.ru_maxrss) / 1024, 1),
        "delete_seconds": round(time.perf_counter() - began, 3),
    }


def run(directory: Path, *, files: int, size: int, large: int) -> dict[str, Any]:
    """Both snapshots on a new root."""
    with tempfile.TemporaryDirectory(prefix="volplane-bench-", dir=directory) as root:
        backend = HostPathBackend({"root": root, "node_name": "node-a", "overcommit_percent": 100_000})
        backend.start(StartRequest(context=CONTEXT))
        results: dict[str, Any] = {}
        for number, what in enumerate(("files", "large")):
            request = provision_request(number)
            asset = backend.provision(request)
            if isinstance(asset, InProgress):
                raise TypeError(asset)
            volume = VolumeIdentity(
                name=request.name,
                uid=f"pv-{number}",
                handle=asset.handle,
                source=asset.source,
                capacity_bytes=asset.capacity_bytes,
                owner=request.owner,
            )
            fill(Path(asset.source.fields["path"]), files, size, large if what == "large" else 0)
            results[what] = snapshot(backend, volume, what)
        backend.stop(StopRequest(context=CONTEXT))
    return results


def fill(path: Path, files: int, size: int, large: int) -> None:
    """Write what is to be copied, and wait until it is on the disk."""
    if large:
        with (path / "large").open("wb") as file:
            for _ in range(large // (2 << 20)):
                file.write(os.urandom(1 << 20) + bytes(1 << 20))
    else:
        content = os.urandom(size // 2) + bytes(size - size // 2)
        for number in range(files):
            if number % 100 == 0:
                below = path / f"d{number // 100}"
                below.mkdir()
            (below / f"f{number}").write_bytes(content)
    os.sync()


def main(arguments: Sequence[str]) -> int:
    """Print a line for each."""
    parser = argparse.ArgumentParser(prog="bench.copies", description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--bytes", type=int, default=4096)
    parser.add_argument("--large", type=int, default=1 << 30)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    results = run(given.directory, files=given.files, size=given.bytes, large=given.large)
    for what, figures in results.items():
        line = json.dumps({what: figures}) if given.json else f"{what}: {figures}"
        sys.stdout.write(line + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
