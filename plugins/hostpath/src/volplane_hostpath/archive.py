"""Directories that a class keeps when their volumes are deleted: `.volplane/archive/<name>/data`, beside its `marker`.

The marker is on the disk before the directory is moved, and the directory before the volume's own marker goes. A crash
in between leaves an archive without `data`, which the next call removes.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import AbstractContextManager, ExitStack, suppress

from volplane import AssetPage, BackendError, Context, ListedArchive
from volplane.directory import (
    CONTROL,
    ArchivedDirectory,
    CorruptMarker,
    decode_fields,
    expires_at,
    listed_archive,
    named_until,
)
from volplane.directory.dirfd import (
    closing,
    create_file,
    entry_exists,
    names_in,
    open_directory,
    printable,
    read_file,
    remove_entry,
    split,
    sync,
)
from volplane_hostpath.delete import above_unused
from volplane_hostpath.index import VolumeIndex
from volplane_hostpath.locks import Deadline
from volplane_hostpath.markers import VolumeMarker
from volplane_hostpath.root import ARCHIVE_FOLDER, TRASH, Root

_DATA, _MARKER = "data", "marker"
_LARGEST = 1 << 16
PAGE = 500
"""Archives of one page, at most."""
_LOOK_AGAIN = 3600.0
"""Seconds after which archives are listed again, for those that others made."""


def archive_directory(root: Root, marker: VolumeMarker) -> float | None:
    """Move the directory of a volume into the archive; when the archive may go. Needs the volume's lock.

    A directory that is missing was moved by an earlier call.
    """
    with ExitStack() as opened:
        above = opened.enter_context(above_unused(root, marker.path))
        if above is None:
            return None
        with suppress(FileExistsError):
            os.mkdir(ARCHIVE_FOLDER, 0o700, dir_fd=root.control)
            sync(root.control)
        folder = opened.enter_context(_open_folder(root))
        for entry in names_in(folder):
            if entry.startswith(f"{marker.entry}.") and not entry_exists(f"{entry}/{_DATA}", folder):
                _discard(folder, entry)  # A crash left it before the directory was moved.
        archive = ArchivedDirectory.of(marker, marker.encode(), longest=_LARGEST)
        os.mkdir(archive.name, 0o700, dir_fd=folder)
        with closing(open_directory(archive.name, folder, root.mount, label=archive.name)) as container:
            try:
                create_file(_MARKER, container, archive.content, durable=True)
                sync(container)
                sync(folder)
                os.rename(split(marker.path)[1], _DATA, src_dir_fd=above, dst_dir_fd=container)
            except OSError:
                _discard(folder, archive.name)
                raise
            sync(container)
            sync(above)
        return archive.until


def _open_folder(root: Root) -> AbstractContextManager[int]:
    """Open the folder of archives. Not kept with the root: a person may remove it while calls run."""
    label = f"{root.path}/{CONTROL}/{ARCHIVE_FOLDER}"
    return closing(open_directory(ARCHIVE_FOLDER, root.control, root.mount, label=label))


def _discard(folder: int, name: str) -> None:
    """Remove an archive without `data`."""
    with suppress(OSError):
        remove_entry(f"{name}/{_MARKER}", folder)
        os.rmdir(name, dir_fd=folder)


def list_archives(root: Root, page: str | None) -> AssetPage:
    """Return the page of archives after that of this name; those without `data` are none."""
    if not entry_exists(ARCHIVE_FOLDER, root.control):
        return AssetPage(assets=())
    with _open_folder(root) as folder:
        found = sorted(name for name in names_in(folder) if page is None or name > page)
        listed = [_listed(root, folder, name) for name in found[:PAGE] if entry_exists(f"{name}/{_DATA}", folder)]
    return AssetPage(assets=(), archives=tuple(listed), next_page=found[PAGE - 1] if len(found) > PAGE else None)


def _listed(root: Root, folder: int, name: str) -> ListedArchive:
    place, fields = printable(f"{root.path}/{CONTROL}/{ARCHIVE_FOLDER}/{name}"), None
    with (
        suppress(BackendError, CorruptMarker, OSError),
        closing(open_directory(name, folder, root.mount, label=place)) as fd,
    ):
        fields = decode_fields(read_file(_MARKER, fd))
    return listed_archive(place, printable(name), fields)


class Expiry:
    """The archives of a root that are due, looked for only when one may be."""

    def __init__(self) -> None:
        self._working = threading.Lock()
        self._again = 0.0
        self._due: list[tuple[float, str]] = []

    def note(self, until: float | None) -> None:
        """Take note of an archive that was made, and of when it may go."""
        self._again = self._again if until is None else min(self._again, until)

    def work(self, root: Root, index: VolumeIndex, context: Context, deadline: Deadline) -> list[str]:
        """Move what is due into the trash, that with the earliest time first; the names that it has there.

        One thread at a time does: another one goes on without.
        """
        if not self._working.acquire(blocking=False):
            return []
        try:
            return self._work(root, index, context, deadline)
        finally:
            self._working.release()

    def _work(self, root: Root, index: VolumeIndex, context: Context, deadline: Deadline) -> list[str]:
        now = time.time()
        if not self._due and now >= self._again and entry_exists(ARCHIVE_FOLDER, root.control):
            self._again = now + _LOOK_AGAIN
            with _open_folder(root) as folder:
                found = names_in(folder)
            for name in found:
                _, until = named_until(name)
                if until is None or until > now:
                    self.note(until)
                else:
                    self._due.append((until, name))
            self._due.sort()
        moved: list[str] = []
        while self._due and not deadline.expired():
            _, name = self._due.pop(0)
            try:
                moved += self._take(root, name, now)
            except (BackendError, CorruptMarker, OSError) as error:
                index.reports.warn(context.log, f"{root.path}/{CONTROL}/{ARCHIVE_FOLDER}/{printable(name)}", error)
        return moved

    def _take(self, root: Root, name: str, now: float) -> list[str]:
        with (
            _open_folder(root) as folder,
            closing(open_directory(name, folder, root.mount, label=f"{root.path}/{CONTROL}/{ARCHIVE_FOLDER}")) as fd,
        ):
            until = expires_at(decode_fields(read_file(_MARKER, fd)))
            if until is None or until > now:
                self.note(until)  # A person has written another time.
                return []
            # Not the volume's: another one of that name may live, whose trash this is not.
            key = f"expired-{os.urandom(8).hex()}"
            os.rename(name, key, src_dir_fd=folder, dst_dir_fd=root.directory(TRASH))
            return [key]
