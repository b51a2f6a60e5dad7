"""The nfs backend against a real NFS-Ganesha of this machine: rates, memory, and what they are compared with.

    python -m bench.nfs [pairs|exports|scrub|listing|memory|copies|million]... [--quick] [--directory DIR]

Server and driver share the processors. Everything is in memory (/dev/shm), so that no disk is measured, unless another
directory is named. Ganesha keeps attributes for a minute, which is its default; parts that change files behind its back
let it keep none.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from volplane import (
    Asset,
    ClaimIdentity,
    Context,
    DeleteRequest,
    Done,
    ListRequest,
    Ownership,
    ProvisionRequest,
    Snapshot,
    SnapshotIdentity,
    SnapshotOwnership,
    SnapshotRequest,
    StartRequest,
    StopRequest,
    VolumeIdentity,
)
from volplane.directory import SNAPSHOT_PARAMETERS
from volplane_nfs import NfsBackend
from volplane_nfs.ganesha.bus import DBus
from volplane_nfs.ganesha.export_manager import ExportManager
from volplane_nfs.parameters import PARAMETERS
from volplane_nfs.testing import GaneshaServer, why_no_ganesha
from volplane_nfs.testing.subjects import export_options

CONTEXT: Final = Context(driver="nfs.volplane.dev", cluster_id="bench")
CLASS: Final = {each.name: each.default for each in PARAMETERS.parameters}
WORKERS: Final = 8


def started(server: GaneshaServer, **options: Any) -> NfsBackend:
    values = {each.name: each.default for each in NfsBackend.options_schema.parameters}
    backend = NfsBackend({**values, "shares": (server.share,), "timeout": 60.0, **options})
    backend.start(StartRequest(context=CONTEXT))
    return backend


def demand() -> ProvisionRequest:
    uid = str(uuid.uuid4())
    return ProvisionRequest(
        context=CONTEXT,
        name=f"pvc-{uid}",
        capacity_bytes=1 << 20,
        owner=Ownership(cluster_id="bench", claim_uid=uid, volume_name=f"pvc-{uid}"),
        claim=ClaimIdentity(namespace="default", name="data", uid=uid),
        parameters=CLASS,
    )


def provision(backend: NfsBackend) -> VolumeIdentity:
    request = demand()
    asset = backend.provision(request)
    if not isinstance(asset, Asset):
        raise TypeError(f"{asset!r} is no asset")
    return VolumeIdentity(
        name=request.name,
        uid=f"pv-{request.claim.uid}",
        handle=asset.handle,
        source=asset.source,
        capacity_bytes=asset.capacity_bytes,
        owner=request.owner,
    )


def delete(backend: NfsBackend, volume: VolumeIdentity) -> int:
    """Delete to the end; after how many calls."""
    for count in range(1, 1_000_000):
        if backend.delete(DeleteRequest(context=CONTEXT, volume=volume)) == Done():
            return count
    raise RuntimeError("it never ends")


def together(count: int, work: Callable[[], object], workers: int = WORKERS) -> float:
    """Calls a second, by several threads. Raises what the first of them raised that failed."""
    errors: list[BaseException] = []

    def several() -> None:
        try:
            for _ in range(count // workers):
                work()
        except Exception as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=several) for _ in range(workers)]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return count / (time.perf_counter() - begun)


@contextmanager
def processor_seconds(server: GaneshaServer) -> Iterator[list[float]]:
    """Processor time of this process and of the server while the block runs."""

    def seconds() -> tuple[float, float]:
        tasks = Path(f"/proc/{server.process.pid}/task").glob("*/schedstat")
        return time.process_time(), sum(int(task.read_text().split()[0]) for task in tasks) / 1e9

    found: list[float] = []
    before = seconds()
    yield found
    found += [after - start for after, start in zip(seconds(), before, strict=True)]


@contextmanager
def on_one_processor() -> Iterator[None]:
    """Keep this process on one processor while the block runs, as `taskset -c 0` does; the server may use all."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def pairs(server: GaneshaServer, quick: bool) -> None:
    backend = started(server)
    held = provision(backend)
    count = 800 if quick else 8000

    def several(workers: int, where: str) -> None:
        with processor_seconds(server) as used:
            rate = together(count, lambda: delete(backend, provision(backend)), workers)
        each = [seconds / count * 1e3 for seconds in used]
        print(
            f"  {rate:5.0f} by {workers} threads {where}; processor time of each: driver {each[0]:.2f} ms, "
            f"server {each[1]:.2f} ms"
        )

    print("pairs of provision and delete a second:")
    for workers in (1, 2, 4, WORKERS):
        several(workers, "on any processor")
    with on_one_processor():
        for workers in (1, 2, 4, WORKERS):
            several(workers, "on one processor")
    delete(backend, held)
    backend.stop(StopRequest(context=CONTEXT))


def exports(server: GaneshaServer, quick: bool) -> None:
    backend = started(server, **export_options(server))
    held = provision(backend)
    count = 80 if quick else 800
    rate = together(count, lambda: delete(backend, provision(backend)))
    print(f"exports added and removed a second, whole volumes: {rate:.0f}")
    delete(backend, held)
    backend.stop(StopRequest(context=CONTEXT))
    manager = ExportManager(DBus(server.bus, ""))
    (server.data / "plain").mkdir(exist_ok=True)
    file = server.directory / "plain.conf"
    text = 'EXPORT {{ Export_Id = {0}; Path = "{1}"; Pseudo = /plain; Access_Type = RW; FSAL {{ Name = VFS; }} }}\n'
    file.write_text(text.format(900, server.data / "plain"))
    begun = time.perf_counter()
    for _ in range(count):
        manager.add(str(file), 900, str(server.data / "plain"))
        manager.remove(900)
    print(f"  Ganesha's own limit, AddExport and RemoveExport alone: {count / (time.perf_counter() - begun):.0f}")


def tree(directory: Path, directories: int, files: int) -> int:
    """A tree of so many directories with so many files each; how many entries."""
    for number in range(directories):
        below = directory / f"d{number // 100}" / f"d{number}"
        below.mkdir(parents=True)
        for each in range(files):
            (below / f"file-{each:06}").touch()
    return directories * (files + 1) + -(-directories // 100)


def scrub(server: GaneshaServer, quick: bool) -> None:
    backend = started(server)
    part = 10 if quick else 1
    shapes = {"100 files a directory": (1_000 // part, 100), "one file a directory": (20_000 // part, 1)}
    shapes["one directory"] = (1, 100_000 // part)
    for shape, (directories, files) in shapes.items():
        volume = provision(backend)
        place = server.data / str(volume.source.fields["path"]).removeprefix("/vol/")
        entries = tree(place, directories, files)
        beside = server.directory / "beside"
        tree(beside, directories, files)
        begun = time.perf_counter()
        subprocess.run(["rm", "-rf", str(beside)], check=True)
        plain = entries / (time.perf_counter() - begun)
        begun = time.perf_counter()
        calls = delete(backend, volume)
        rate = entries / (time.perf_counter() - begun)
        print(f"{shape}: {rate:.0f} entries removed a second over NFS in {calls} calls; rm -rf beside it {plain:.0f}")
    backend.stop(StopRequest(context=CONTEXT))


def listing(server: GaneshaServer, quick: bool) -> None:
    backend = started(server)
    count = 1000 if quick else 10_000
    volumes: list[VolumeIdentity] = []
    together(count, lambda: volumes.append(provision(backend)))
    begun = time.perf_counter()
    page: str | None = None
    found = 0
    while True:
        answer = backend.list_assets(ListRequest(context=CONTEXT, page=page))
        found += len(answer.assets)
        page = answer.next_page
        if page is None:
            break
    print(f"{found} volumes listed in {time.perf_counter() - begun:.2f} s")
    for volume in volumes:
        delete(backend, volume)
    backend.stop(StopRequest(context=CONTEXT))


def memory(server: GaneshaServer, quick: bool) -> None:
    backend = started(server)
    count = 50_000 if quick else 1_000_000
    volume = provision(backend)
    place = server.data / str(volume.source.fields["path"]).removeprefix("/vol/")
    for number in range(count):
        (place / f"file-{number:07}").touch()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.perf_counter()
    longest = 0.0
    calls = 0
    while True:
        start = time.perf_counter()
        calls += 1
        answer = backend.delete(DeleteRequest(context=CONTEXT, volume=volume))
        longest = max(longest, time.perf_counter() - start)
        if answer == Done():
            break
    seconds = time.perf_counter() - begun
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"a directory of {count} entries: {seconds:.0f} s, {count / seconds:.0f} entries a second, {calls} calls")
    print(f"  the longest call {longest:.2f} s, {more:.1f} MiB more memory")
    backend.stop(StopRequest(context=CONTEXT))


def snapshot(backend: NfsBackend, volume: VolumeIdentity) -> int:
    """Take a snapshot to the end; in how many calls."""
    uid = str(uuid.uuid4())
    request = SnapshotRequest(
        context=CONTEXT,
        name=f"snapshot-{uid}",
        volume=volume,
        owner=SnapshotOwnership(cluster_id="bench", snapshot_uid=uid, content_name=f"snapcontent-{uid}"),
        snapshot=SnapshotIdentity(namespace="default", name="bench", content=f"snapcontent-{uid}"),
        parameters={each.name: each.default for each in SNAPSHOT_PARAMETERS.parameters},
    )
    for count in range(1, 1_000_000):
        answer = backend.create_snapshot(request)
        if isinstance(answer, Snapshot):
            return count
        request = replace(request, context=replace(request.context, state=answer.state))
    raise RuntimeError("it never ends")


def copies(server: GaneshaServer, quick: bool) -> None:
    """Print how fast volumes are copied by READ and WRITE; Ganesha 4.3 has neither CLONE nor COPY."""
    backend = started(server)
    many, mebibytes = (1000, 100) if quick else (10_000, 1024)
    small, large = provision(backend), provision(backend)
    places = [server.data / str(each.source.fields["path"]).removeprefix("/vol/") for each in (small, large)]
    content = os.urandom(2048) * 2
    for number in range(many):
        below = places[0] / f"d{number // 100}"
        below.mkdir(exist_ok=True)
        (below / f"file-{number:06}").write_bytes(content)
    with (places[1] / "large").open("wb") as file:
        for _ in range(mebibytes):
            file.write(os.urandom(1 << 20))
    for volume, amount, unit in ((small, many, "files of 4 KiB"), (large, mebibytes, "MiB of one file")):
        with processor_seconds(server) as used:
            begun = time.perf_counter()
            calls = snapshot(backend, volume)
            seconds = time.perf_counter() - begun
        print(
            f"{amount / seconds:.0f} {unit} a second, compared again, in {calls} calls; processor time: driver "
            f"{used[0]:.2f} s, server {used[1]:.2f} s of {seconds:.2f} s"
        )
    backend.stop(StopRequest(context=CONTEXT))


def million(server: GaneshaServer, quick: bool) -> None:
    """Print how fast a million small files are copied and compared, and the memory that it takes; nothing may differ.

    10 GiB of memory, or 8 GiB of a disk, are used meanwhile.
    """
    backend = started(server)
    count = 20_000 if quick else 1_000_000
    volume = provision(backend)
    top = server.data / str(volume.source.fields["path"]).removeprefix("/vol/")
    for number in range(count):
        below = top / f"d{number // 100_000}" / f"d{number // 1_000}"
        if not number % 1_000:
            below.mkdir(parents=True)
        (below / f"file-{number:07}").write_bytes(b"%d " % number * (number % 50))
    Path("/proc/self/clear_refs").write_text("5")  # The peak of what came before is none of the copy.
    before = resident("VmRSS")
    with processor_seconds(server) as used:
        begun = time.perf_counter()
        calls = snapshot(backend, volume)
        seconds = time.perf_counter() - begun
    more = (resident("VmHWM") - before) / 1024
    backend.stop(StopRequest(context=CONTEXT))
    different = sum(1 for number in range(count) if not same(server, top, number))
    print(
        f"{count:,} small files: {seconds:.0f} s, {count / seconds:.0f} a second, {calls} calls, {more:.1f} MiB more "
        f"memory, {different} that differ; processor time: driver {used[0]:.0f} s, server {used[1]:.0f} s"
    )


def same(server: GaneshaServer, top: Path, number: int) -> bool:
    """Return whether the copy of a file has its content and the time of its last change."""
    (data,) = (server.data / ".volplane/snapshots").glob("*/data")
    name = Path(f"d{number // 100_000}", f"d{number // 1_000}", f"file-{number:07}")
    one, other = top / name, data / name
    return one.read_bytes() == other.read_bytes() and one.stat().st_mtime_ns == other.stat().st_mtime_ns


def resident(figure: str) -> int:
    """Return a figure of this process's memory in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{figure}:"))


PARTS: Final = {each.__name__: each for each in (pairs, exports, scrub, listing, memory, copies, million)}
UNDISTURBED: Final = {"pairs", "exports", "listing"}
"""Parts that change files through the server alone."""
KEEPS_ATTRIBUTES: Final = "Attr_Expiration_Time = 60;"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="*", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="a tenth of everything, to see that it works")
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm"), help="on ext4, xfs or tmpfs")
    arguments = parser.parse_args()
    if unknown := [part for part in arguments.part if part not in PARTS]:
        parser.error(f"{unknown[0]!r} is none of {', '.join(PARTS)}")
    if reason := why_no_ganesha():
        sys.exit(f"bench.nfs: {reason}")
    for part in arguments.part or PARTS:
        directory = Path(tempfile.mkdtemp(prefix="volplane-bench-", dir=arguments.directory))
        try:
            with GaneshaServer(directory, export=KEEPS_ATTRIBUTES if part in UNDISTURBED else "") as server:
                PARTS[part](server, arguments.quick)
        finally:
            shutil.rmtree(directory)


if __name__ == "__main__":
    main()
