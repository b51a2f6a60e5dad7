"""Two directory trees of one share, as the engine for copies walks them (volplane.directory).

The source is a tenant's, who may change it meanwhile: everything is named by file handles, which stay with a file
whatever becomes of its name, no link is followed, and no other file system is entered.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

from volplane import Unsupported
from volplane.directory import DEEPEST, Copied, Entry, EntryKind, Item, Outcome, Page, Side
from volplane_nfs.errors import printable
from volplane_nfs.nfs4 import Compounds, NfsError, Status, TransportError, values_of
from volplane_nfs.nfs4.attributes import (
    ACL,
    DIRECTORY,
    FILEHANDLE,
    FILEID,
    FSID,
    LINK,
    NUMLINKS,
    REGULAR,
    SIZE,
    SUPPORTED_ATTRS,
    TIME_MODIFY,
    TIME_MODIFY_SET,
    TYPE,
    XATTR_SUPPORT,
    mask_of,
)
from volplane_nfs.nfs4.copying import (
    GONE,
    NEW_MODE,
    Attributes,
    FileCopier,
    Job,
    Offloads,
    changed_at,
    copied_mode,
    final_attributes,
    owners_of,
    require_known,
)
from volplane_nfs.nfs4.files import (
    ANONYMOUS,
    FULL,
    MISSING,
    Pace,
    create_directory,
    directory_handle,
    make_directory,
    read_page,
    rename,
    several,
)
from volplane_nfs.nfs4.operations import (
    CREATE,
    GETATTR,
    GETFH,
    GETXATTR,
    LISTXATTRS,
    LOOKUP,
    PUTFH,
    READ,
    READLINK,
    REMOVE,
    SAVEFH,
    SETATTR,
    SETXATTR,
    Reply,
    Request,
)
from volplane_nfs.nfs4.operations import LINK as LINK_OPERATION

DATA: Final = b"data"
LINKS: Final = b"links"
"""In the directory of a copy: the copy itself, and files with several names, by their numbers."""
_XATTR_NAMES: Final = 1 << 16
_MANY: Final = 16
_WHOLE: Final = 1 << 16
_NEW_DIRECTORY: Final = 0o1700
_KINDS: Final = {REGULAR: EntryKind.FILE, DIRECTORY: EntryKind.DIRECTORY, LINK: EntryKind.LINK}
_NO_SUCH: Final = GONE | {Status.NOTDIR, Status.SYMLINK, Status.INVAL, Status.WRONG_TYPE}
"""What an entry answers that is no directory, or no link, any more."""
_NO_LINK: Final = frozenset({Status.MLINK, Status.NOTSUPP, Status.XDEV})
_NO_TIMES: Final = frozenset({Status.NOTSUPP, Status.ATTRNOTSUPP, Status.INVAL, Status.PERM})
"""What a server answers that sets no times of links."""
_SMALL, _LARGE, _LINK, _SPECIAL = "small", "large", "link", "special"
_COMPARED: Final = 4
"""Parts of a file and of its copy that are compared at once."""
_LOOKUPS: Final = 64
"""COMPOUNDs that look a name up each, at once."""
_LIMIT: Final = 3
"""Pages in a row that a server may list without any entry that exists."""


class Pair(NamedTuple):
    """The handles of a directory of the source and of that of the copy."""

    source: bytes
    copy: bytes

    def handle(self, side: Side) -> bytes:
        return self.source if side is Side.SOURCE else self.copy


class NfsTrees:
    """The trees below two directories of a share. container: of the copy; it has the directory `DATA`.

    trash: a directory that takes up what is taken out of the copy. owners: whether the driver's user may give files
    away; without that all files are its own.
    """

    open_pairs = DEEPEST + 2

    def __init__(
        self,
        client: Compounds,
        offloads: Offloads,
        *,
        source: bytes,
        container: bytes,
        trash: bytes,
        owners: bool,
    ) -> None:
        self._client = client
        self._offloads = offloads
        self._source = source
        self._container = container
        self._trash = trash
        self._owners = owners
        self._pace = Pace()
        self._copier = FileCopier(client, offloads, owners=owners)
        self._file_system: Any = None
        self._verifiers: dict[bytes, bytes] = {}
        self._large: set[bytes] = set()
        """Directories that are more than one page."""
        self._idle = 0

    # --- directories ---------------------------------------------------------------------------------------------

    def top(self) -> Pair:
        known = GETATTR(mask_of(SUPPORTED_ATTRS, FSID, XATTR_SUPPORT))
        values = self._client.compound(PUTFH(self._source), known, PUTFH(self._container), LOOKUP(DATA), GETFH())
        self._file_system = values[1].get(FSID)
        self._offloads.acls = bool(values[1].get(SUPPORTED_ATTRS, 0) & mask_of(ACL))
        self._offloads.xattrs = bool(values[1].get(XATTR_SUPPORT))
        return Pair(self._source, bytes(values[-1]))

    def links(self) -> Pair:
        handle = directory_handle(self._client, self._container, (LINKS,))
        if handle is None:
            make_directory(self._client, self._container, LINKS, 0o700)
            handle = directory_handle(self._client, self._container, (LINKS,))
        if handle is None:
            raise NfsError(Status.NOENT, "LOOKUP", 1)
        return Pair(handle, handle)

    def enter(self, above: Pair, name: bytes) -> Pair | None:
        look = [LOOKUP(name), GETATTR(mask_of(TYPE, FSID)), GETFH()]
        source, copy = self._client.pipeline([[PUTFH(above.source), *look], [PUTFH(above.copy), *look]])
        if source.status in _NO_SUCH:
            return None
        _, _, attributes, handle = values_of(source)
        if attributes.get(TYPE) != DIRECTORY:
            return None
        if attributes.get(FSID) != self._file_system:
            raise Unsupported(
                f"another file system is mounted at {printable(name)!r}: it is not copied with the volume"
            )
        return Pair(bytes(handle), bytes(values_of(copy)[-1]))

    def leave(self, pair: Pair) -> None:
        for handle in pair:
            self._verifiers.pop(handle, None)
            self._large.discard(handle)

    def page(self, pair: Pair, side: Side, cookie: int, limit: int) -> Page:
        handle = pair.handle(side)
        place = (cookie, self._verifiers.get(handle, bytes(8)))
        (reply,) = self._client.pipeline([[PUTFH(handle), read_page(*place, self._mask)]])
        if reply.status == Status.SERVERFAULT:
            # NFS-Ganesha 4.3: an entry was exchanged while its attributes were read. Names are looked up below.
            (reply,) = self._client.pipeline([[PUTFH(handle), read_page(*place, 0)]])
        if cookie and reply.status in {Status.BAD_COOKIE, Status.NOT_SAME}:
            return self.page(pair, side, 0, limit)
        if reply.status in GONE:
            return Page((), None)
        page = values_of(reply)[-1]
        listed = page.entries[:limit]
        if not listed:
            return Page((), None)
        last = listed[-1].cookie
        if last == cookie:
            raise TransportError(
                f"the server lists a directory without end: it answers READDIR with cookie {last} again"
            )
        self._verifiers[handle] = page.verifier
        known = [each for each in listed if TYPE in each.attributes and FILEHANDLE in each.attributes]
        found = [self._entry(each.name, each.attributes, each.attributes[FILEHANDLE]) for each in known]
        unknown = [each.name for each in listed if each not in known] if len(known) < len(listed) else []
        if unknown:
            found += self._looked_up(handle, unknown).values()
        self._idle = 0 if found else self._idle + 1
        if self._idle > _LIMIT:
            raise TransportError("the server lists a directory without end, of entries that do not exist")
        return Page(found, None if page.eof and len(listed) == len(page.entries) else last)

    def look(self, pair: Pair, side: Side, names: Sequence[bytes]) -> Mapping[bytes, Entry]:
        handle = pair.handle(side)
        found: dict[bytes, Entry] = {}
        if len(names) >= _MANY and handle not in self._large:
            # Most directories are one page: it is read faster than its entries are looked up.
            wanted, page = frozenset(names), self.page(pair, side, 0, _WHOLE)
            found = {entry.name: entry for entry in page.entries if entry.name in wanted}
            if page.cookie is None:
                return found
            self._large.add(handle)
        return {**found, **self._looked_up(handle, [name for name in names if name not in found])}

    def _looked_up(self, handle: bytes, names: Sequence[bytes]) -> dict[bytes, Entry]:
        """Look names up, each in a COMPOUND of its own: most may be missing, which ends a COMPOUND."""
        found: dict[bytes, Entry] = {}
        start = 0
        while start < len(names):
            part = names[start : start + max(1, min(_LOOKUPS, self._pace.operations // 4))]
            start += len(part)
            requests = [[PUTFH(handle), LOOKUP(name), GETATTR(self._offloads.mask), GETFH()] for name in part]
            for name, reply in zip(part, self._pace.run(self._client, requests), strict=True):
                if reply.status not in GONE:
                    attributes, own = values_of(reply)[-2:]
                    found[name] = self._entry(name, attributes, bytes(own))
        return found

    def status(self, pair: Pair, side: Side) -> Entry:
        handle = pair.handle(side)
        return self._entry(b"", self._client.compound(PUTFH(handle), GETATTR(self._mask))[-1], handle)

    def make_directories(self, pair: Pair, names: Sequence[bytes]) -> None:
        for reply in self._several([PUTFH(pair.copy), create_directory(name, _NEW_DIRECTORY)] for name in names):
            if reply.status != Status.EXIST:
                values_of(reply)

    def finish(self, pair: Pair, entry: Entry) -> None:
        handle, attributes = entry.own
        (xattrs,) = self._xattrs([handle])
        extra = [SETXATTR(0, name, value) for name, value in xattrs]
        self._client.compound(PUTFH(pair.copy), *extra, *self._finishing(attributes))

    def discard(self, pair: Pair, names: Sequence[bytes]) -> None:
        for name, reply in zip(names, self._several([PUTFH(pair.copy), REMOVE(name)] for name in names), strict=True):
            if reply.status in FULL:
                # The driver's probes empty it.
                new = f"copy-{secrets.token_hex(8)}".encode()
                (reply,) = self._client.pipeline([rename(pair.copy, name, self._trash, new)])  # noqa: PLW2901
            if reply.status not in MISSING:
                values_of(reply)

    @property
    def _mask(self) -> int:
        return self._offloads.mask | mask_of(FILEHANDLE)

    def _xattrs(self, handles: Sequence[bytes]) -> list[list[tuple[bytes, bytes]]]:
        """Return the extended attributes of files or directories; of one that is gone there are none."""
        if not self._offloads.xattrs:
            return [[] for _ in handles]
        found: list[list[tuple[bytes, bytes]]] = []
        lists = self._several([PUTFH(handle), LISTXATTRS(0, _XATTR_NAMES)] for handle in handles)
        for handle, listed in zip(handles, lists, strict=True):
            names = [] if listed.status in GONE else values_of(listed)[-1].names
            values = self._several([PUTFH(handle), GETXATTR(name)] for name in names)
            gone = GONE | {Status.NOXATTR}
            pairs = zip(names, values, strict=True)
            found.append([(name, values_of(each)[-1]) for name, each in pairs if each.status not in gone])
        return found

    def _several(self, groups: Iterable[Sequence[Request]]) -> list[Reply]:
        return several(self._client, list(groups), self._pace)

    def _finishing(self, attributes: Attributes) -> list[Request]:
        owners = owners_of(attributes) if self._owners else {}
        first = [SETATTR(ANONYMOUS, owners)] if owners else []
        return [*first, SETATTR(ANONYMOUS, final_attributes(attributes))]

    def _entry(self, name: bytes, attributes: Attributes, handle: bytes) -> Entry:
        kind = _KINDS.get(require_known(attributes).get(TYPE, 0), EntryKind.SPECIAL)
        directory, file = kind is EntryKind.DIRECTORY, kind is EntryKind.FILE
        size = attributes[SIZE] if not directory else 0
        owners = tuple(owners_of(attributes).values()) if self._owners else ()
        mode = copied_mode(attributes, owners=self._owners or not file)
        time = attributes[TIME_MODIFY]
        if kind is EntryKind.LINK:  # It cannot change, only be replaced.
            mode, time = 0, time if self._offloads.link_times else 0
        return Entry(
            name=name,
            kind=kind,
            stamp=(size, time, mode, owners),
            changed=changed_at(attributes),
            size=size if file else 0,
            file_id=attributes.get(FILEID, 0),
            links=1 if directory else attributes.get(NUMLINKS, 1),
            unfinished=mode == (_NEW_DIRECTORY if directory else NEW_MODE),
            own=(handle, attributes),
        )

    # --- what is no directory ------------------------------------------------------------------------------------

    def copy(self, items: Sequence[Item[Pair]], offset: int, changed: int, should_stop: Callable[[], bool]) -> Copied:
        outcomes: list[Outcome] = []
        for (way, _), group in groupby(items, self._way):
            run = list(group)
            due = len(outcomes) + len(run)
            if way == _LARGE:
                (xattrs,) = self._xattrs([run[0].entry.own[0]])
                done = self._copier.copy_large(_job(run[0], xattrs), offset, changed, should_stop)
                if done is not None and done[0] >= 0:
                    return Copied(outcomes, *done)
                outcomes.append(Outcome.GONE if done is None else Outcome.DONE)
            elif way == _SMALL:
                outcomes += self._copy_small(run, should_stop)
            elif way == _LINK:
                outcomes += self._copy_links(run)
            else:
                outcomes += [Outcome.LEFT_OUT] * len(run)
            offset = changed = 0
            if len(outcomes) < due or should_stop():
                break
        return Copied(outcomes)

    def _copy_small(self, items: Sequence[Item[Pair]], should_stop: Callable[[], bool]) -> Iterator[Outcome]:
        """Yield what became of small files, as far as the time allows."""
        xattrs = self._xattrs([item.entry.own[0] for item in items])
        for has, group in groupby(zip(items, xattrs, strict=True), lambda each: bool(each[1])):
            jobs = [_job(item, extra) for item, extra in group]
            count = 0
            for there in self._one_by_one(jobs) if has else self._copier.copy_small(jobs, should_stop):
                count += 1
                yield Outcome.DONE if there else Outcome.GONE
            if count < len(jobs) or should_stop():
                return

    def _one_by_one(self, jobs: Sequence[Job]) -> Iterator[bool]:
        for job in jobs:
            yield self._copier.copy_large(job, 0, 0, lambda: False) is not None

    def _way(self, item: Item[Pair]) -> tuple[str, bytes]:
        """Return how an entry is copied. Each large file is by itself."""
        kind, size = item.entry.kind, item.entry.size
        if kind is EntryKind.FILE and size > self._copier.largest_small:
            return _LARGE, item.name
        return (_SMALL if kind is EntryKind.FILE else _LINK if kind is EntryKind.LINK else _SPECIAL), b""

    def _copy_links(self, items: Sequence[Item[Pair]]) -> list[Outcome]:
        reads = self._several([PUTFH(item.entry.own[0]), READLINK()] for item in items)
        there = [reply.status not in _NO_SUCH for reply in reads]
        targets = [values_of(reply)[-1] if found else None for reply, found in zip(reads, there, strict=True)]
        groups = [self._link(item, bytes(to)) for item, to in zip(items, targets, strict=True) if to is not None]
        for group, reply in zip(groups, self._several(groups), strict=True):
            if reply.status == Status.EXIST:
                (reply,) = self._client.pipeline([[group[0], REMOVE(group[1].arguments[1]), *group]])  # noqa: PLW2901
            wanted = group[2].arguments[1][TIME_MODIFY_SET][1]
            if reply.status in _NO_TIMES and reply.results[-1].operation is SETATTR:
                self._offloads.link_times = False
            elif values_of(reply)[-1].get(TIME_MODIFY) != wanted:
                self._offloads.link_times = False  # NFS-Ganesha 4.3 says that it has set it
        return [Outcome.DONE if found else Outcome.GONE for found in there]

    def _link(self, item: Item[Pair], target: bytes) -> list[Request]:
        attributes = item.entry.own[1]
        create = CREATE((LINK, target), item.name, owners_of(attributes) if self._owners else {})
        time = SETATTR(ANONYMOUS, {TIME_MODIFY_SET: (1, attributes[TIME_MODIFY])})
        return [PUTFH(item.into.copy), create, time, GETATTR(mask_of(TIME_MODIFY))]

    def link(self, items: Sequence[Item[Pair]]) -> Sequence[Outcome]:
        groups = [
            [
                *(PUTFH(item.pair.copy), LOOKUP(item.entry.name), SAVEFH()),
                *(PUTFH(item.into.copy), LINK_OPERATION(item.name)),
            ]
            for item in items
        ]
        replies = self._several(groups)
        for reply in replies:
            if reply.status not in _NO_LINK:
                values_of(reply)
        return [Outcome.LEFT_OUT if reply.status else Outcome.DONE for reply in replies]

    def compare(self, items: Sequence[Item[Pair]], offset: int, should_stop: Callable[[], bool]) -> Copied:
        equal: list[Outcome] = []
        at = offset
        while len(equal) < len(items) and not (equal and should_stop()):
            outcome, at = self._compare_file(items[len(equal)], at, should_stop)
            if outcome is None:
                break
            equal.append(outcome)
        return Copied(equal, at)

    def _compare_file(
        self, item: Item[Pair], offset: int, should_stop: Callable[[], bool]
    ) -> tuple[Outcome | None, int]:
        """Return the outcome, None if the time was up before it was known, and how far it was then."""
        (look,) = self._client.pipeline([[PUTFH(item.into.copy), LOOKUP(item.name), GETFH()]])
        copy = bytes(values_of(look)[-1])
        while (outcome := self._compare_part(item, copy, offset)) is None:
            offset += self._compared
            if should_stop():
                return None, offset
        return outcome, 0

    @property
    def _compared(self) -> int:
        return _COMPARED * self._client.data_bytes

    def _compare_part(self, item: Item[Pair], copy: bytes, offset: int) -> Outcome | None:
        """Compare some of a file; None = they are equal so far."""
        most, size = self._client.data_bytes, item.entry.size
        offsets = range(offset, min(size, offset + self._compared), most)
        groups = [
            [PUTFH(file), READ(ANONYMOUS, at, min(most, size - at))]
            for at in offsets
            for file in (item.entry.own[0], copy)
        ]
        replies = self._several(groups)
        if any(reply.status in GONE for reply in replies[::2]):
            return Outcome.GONE
        data = [values_of(reply)[-1].data for reply in replies]
        if data[::2] != data[1::2]:
            return Outcome.DIFFERENT
        return Outcome.DONE if offset + self._compared >= size else None


def _job(item: Item[Pair], xattrs: Sequence[tuple[bytes, bytes]]) -> Job:
    handle, attributes = item.entry.own
    return Job(handle, attributes, item.into.copy, item.name, xattrs)
