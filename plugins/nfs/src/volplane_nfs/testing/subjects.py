"""The driver on servers for tests, as subjects of `volplane check` and `volplane sim`.

`volplane_nfs.testing:subject` works on a model in memory, `volplane_nfs.testing:ganesha_subject` on a real NFS-Ganesha
of this machine. The testing kit is imported when a subject is made.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

from volplane import Asset, VolumeSource
from volplane_nfs.backend import NfsBackend
from volplane_nfs.ganesha.bus import DBus, OpenBus
from volplane_nfs.nfs4 import Client, Compounds, Dial, dial_tcp
from volplane_nfs.nfs4.attributes import DIRECTORY, LINK, MODE, TYPE, mask_of
from volplane_nfs.nfs4.files import (
    create_directory,
    directory_handle,
    entries,
    make_directory,
    names,
    read_file,
    read_link,
    root_handle,
    write_file,
)
from volplane_nfs.nfs4.operations import PUTFH
from volplane_nfs.settings import ShareAddress
from volplane_nfs.testing.ganesha import GaneshaServer
from volplane_nfs.testing.model import DATA, ModelBus, ModelServer

if TYPE_CHECKING:
    from volplane_testing import Subject

MODEL: Final = "nfs://model.example.com/vol"
_RESTART: Final = 0.01
_FAULTS: Final = (("lost before", 0.02), ("lost after", 0.03))
_BUS_FAULTS: Final = (("lost before", 0.02), ("lost after", 0.04), ("busy", 0.06))
"""What happens to a call, and the chance of it and of those before it. A restart loses the call that finds it."""
MEMORY: Final = "/dev/shm"  # noqa: S108 - a directory with a random name is made below it
_CHANGING: Final = frozenset({b"tmp", b"exports", b"copies"})
"""Entries of `.volplane` that outlive a volume: Export_Ids rest when they are free, and the listing frees lost ones;
copies that nobody goes on with are removed after an hour.
"""


@contextmanager
def subject(**options: Any) -> Iterator[Subject]:
    """Yield the driver on a share of a server in memory. options: of the driver."""
    clock = _Clock()
    server = ModelServer(now=clock.now)
    made = subject_on(MODEL, server.dial, trouble=partial(trouble, server), **options)
    yield replace(made, factory=backend_through(server.dial, clock.now), advance=clock.advance)


@contextmanager
def export_subject(**options: Any) -> Iterator[Subject]:
    """Yield the driver in mode export, on a server in memory that is configured in a folder, as NFS-Ganesha is."""
    clock = _Clock()
    server = ModelServer(now=clock.now)
    with tempfile.TemporaryDirectory(prefix="volplane-", dir=MEMORY) as directory:
        files = Path(directory, "exports.d")
        files.mkdir()
        bus = ModelBus(server, files)
        mode: dict[str, Any] = {"mode": "export", "server_path": DATA, "config_directory": str(files)}
        made = subject_on(MODEL, server.dial, trouble=partial(trouble, server, bus=bus), **mode, **options)
        inspect = made.inspect
        yield replace(
            made,
            factory=backend_through(server.dial, clock.now, lambda _bus, _prefix: bus),
            advance=clock.advance,
            inspect=lambda: (inspect() if inspect is not None else None, bus.picture),
            parameters={},
            other_parameters={"gid": "3000"},
        )


class _Clock:
    """Seconds that pass only when they are told to."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def now(self) -> float:
        return self._seconds

    def advance(self, seconds: float) -> None:
        self._seconds += seconds


@contextmanager
def ganesha_subject(*, exports: bool = False, **options: Any) -> Iterator[Subject]:
    """Yield the driver on a new NFS-Ganesha. exports: in mode export. Raises RuntimeError if it cannot be started."""
    with (
        tempfile.TemporaryDirectory(prefix="volplane-", dir=MEMORY) as directory,
        GaneshaServer(Path(directory)) as server,
    ):
        mode = export_options(server) if exports else {}
        yield subject_on(server.share, dial_tcp, real_crashes=True, **mode, **options)


def export_options(server: GaneshaServer) -> dict[str, Any]:
    """Return the options of mode export on this server."""
    return {
        "mode": "export",
        "server_path": str(server.data),
        "config_directory": str(server.exports),
        "bus": server.bus,
    }


def subject_on(
    share: str,
    dial: Dial = dial_tcp,
    *,
    real_crashes: bool = False,
    trouble: Callable[[Random], AbstractContextManager[object]] | None = None,
    **options: Any,
) -> Subject:
    """Return the driver on a share, with what rules need to look into it."""
    subject_type = _subject_type()
    address = ShareAddress.parse(share)
    client = Client(address.server, dial=dial)
    host, path = address.server.host, address.text.rstrip("/")
    exported = options.get("mode") == "export"
    parameters = {"squash": "no_root_squash"} if exported else {}  # so that `fill` may write

    def volume(asset: Asset) -> bytes:
        root = root_handle(client, address.path)
        if exported:
            return root_handle(client, tuple(asset.source.fields["path"].encode().strip(b"/").split(b"/")))
        below = asset.source.fields["path"].removeprefix(path).strip("/").encode().split(b"/")
        handle = directory_handle(client, root, tuple(below))
        if handle is None:
            raise FileNotFoundError(asset.source.fields["path"])
        return handle

    return subject_type(
        backend_through(dial),
        {"shares": share, **options},
        parameters=parameters,
        other_parameters={**parameters, "mode": "0700"},
        backing_parameters={**parameters, "backingSnapshot": "true"},
        static_source=VolumeSource(kind="nfs", fields={"server": host, "path": f"{path}/by-hand"}),
        foreign_sources=(
            VolumeSource(kind="nfs", fields={"server": "other.example.com", "path": f"{path}/by-hand"}),
            VolumeSource(kind="nfs", fields={"server": host, "path": f"{path}-too/by-hand"}),
            VolumeSource(kind="nfs", fields={"server": host, "path": f"{path}/../elsewhere"}),
            VolumeSource(kind="nfs", fields={"server": host, "path": path or "/"}),
        ),
        inspect=lambda: picture(client, root_handle(client, address.path)),
        fill=lambda asset: fill(client, volume(asset)),
        is_empty=lambda asset: not names(client, volume(asset)),
        trouble=trouble,
        real_crashes=real_crashes,
        crash_points=8 if real_crashes else 16,
        storage_modules=("volplane_nfs.testing.model",),
    )


def _subject_type() -> type[Subject]:
    try:
        from volplane_testing import Subject  # noqa: PLC0415 - the extra `testing`
    except ModuleNotFoundError as error:
        if error.name != "volplane_testing":
            raise
        raise ModuleNotFoundError(
            'subject() needs the testing kit of volplane: pip install "volplane-nfs[testing]"', name=error.name
        ) from None
    return Subject


def backend_through(
    dial: Dial, now: Callable[[], float] = time.monotonic, open_bus: OpenBus = DBus
) -> type[NfsBackend]:
    """Return the backend, connecting by `dial` and `open_bus`."""

    class Dialling(NfsBackend):
        def __init__(self, options: Mapping[str, Any]) -> None:
            super().__init__(options, dial=dial, now=now, open_bus=open_bus)

    return NfsBackend if dial is dial_tcp else Dialling


def picture(client: Compounds, directory: bytes, above: str = "") -> Mapping[str, object]:
    """Return every path below a directory, with modes, targets of links and contents of files."""
    found: dict[str, object] = {}
    for entry in entries(client, directory, mask_of(TYPE, MODE)):
        kind, path = entry.attributes[TYPE], f"{above}{entry.name.decode(errors='replace')}"
        if kind == DIRECTORY and entry.name not in _CHANGING:
            below = directory_handle(client, directory, (entry.name,))
            found[path] = entry.attributes[MODE]
            found |= picture(client, below, f"{path}/") if below is not None else {}
        elif kind == LINK:
            found[path] = read_link(client, directory, entry.name)
        elif kind != DIRECTORY:
            found[path] = read_file(client, directory, entry.name)
    return found


def fill(client: Compounds, directory: bytes) -> None:
    """Write files as a pod would, hidden ones and deeper ones too."""
    make_directory(client, directory, b"a", 0o755)
    client.pipeline([[PUTFH(directory), create_directory(b".b", 0o755)]])
    below = directory_handle(client, directory, (b"a",))
    if below is not None:
        write_file(client, below, b"file", b"of the last claim")
    write_file(client, directory, b".hidden", b"of the last claim")


@contextmanager
def trouble(server: ModelServer, random: Random, bus: ModelBus | None = None) -> Iterator[None]:
    """Lose answers and restart, on the connection and on the bus, and keep the bus busy, while the block runs."""

    def drawn(faults: tuple[tuple[str, float], ...]) -> str | None:
        chance = random.random()
        if chance < _RESTART:
            server.restart()
            if bus is not None:
                bus.restart()
        return next((what for what, below in faults if chance < below), None)

    server.fault = lambda _requests: drawn(_FAULTS)
    if bus is not None:
        bus.fault = lambda _method: drawn(_BUS_FAULTS)
    try:
        yield
    finally:
        server.fault = lambda _requests: None
        if bus is not None:
            bus.fault = lambda _method: None
