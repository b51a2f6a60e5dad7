"""One engine for copies of directory trees: snapshots, clones and what is restored.

A copy is filled in slices below a directory that nobody sees, and renamed into place by its backend when it is whole.
Its tree is its own state of progress: a directory or file gets its attributes, the time of its last change at the very
end, when all of it is there. So a process that is killed leaves nothing but a tree to go on with, without a journal.

There are two passes. The first copies whatever the copy does not have yet. The second compares both trees, copies what
differs, and counts what has changed since the copy was begun: pods may write meanwhile, and a copy of a tree that
changes is no point in time. A tree in which nothing has changed is. What was removed or moved meanwhile stays in the
copy: the place it has moved to may have been passed already.

Nothing here does I/O, follows a path or recurses. A backend implements `Trees`, in which it opens one component of a
path at a time without following links: a tenant may change the source in any way meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from enum import Enum
from typing import Any, Final, Generic, Protocol, Self, TypeVar

from volplane.errors import Unsupported

__all__ = [
    "DEEPEST",
    "Copied",
    "CopyCounts",
    "Entry",
    "EntryKind",
    "Item",
    "Outcome",
    "Page",
    "Side",
    "TreeCopy",
    "Trees",
]

DEEPEST: Final = 2048
"""Levels of directories that can be copied: no absolute path of Linux names more (PATH_MAX)."""
_PAGE: Final = 256
_DEEP: Final = 32
_DEEP_PAGE: Final = 8
"""Below so many levels pages are so small: each level keeps what is left of its page."""
_LONGEST_HINT: Final = 2_200
"""Bytes of the path in `TreeCopy.hint`, of the 4 KiB that `InProgress.state` may have."""


class EntryKind(Enum):
    """What an entry of a directory is."""

    DIRECTORY = "directory"
    FILE = "file"
    LINK = "symbolic link"
    SPECIAL = "socket, pipe or device"


class Side(Enum):
    """One of the two trees."""

    SOURCE = "source"
    COPY = "copy"


class Outcome(Enum):
    """What became of an entry that was to be copied or compared."""

    DONE = "done"
    GONE = "gone"
    """The source has no such entry any more, or it is of another kind."""
    LEFT_OUT = "left out"
    """The storage can have no such entry: it is counted, and not tried again."""
    DIFFERENT = "different"
    """Of `Trees.compare`: the contents differ."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a directory."""

    name: bytes
    """Any bytes but 0 and "/"; never "." or ".."."""
    kind: EntryKind
    stamp: Hashable
    """What a finished copy has equal: at least the time of the last change of its contents, and the size of a file.
    What is being made must have another one, whenever it is interrupted."""
    changed: int
    """When the entry last changed in any way, by the clock of the file system (ctime)."""
    size: int = 0
    """Bytes of a file."""
    file_id: int = 0
    """The same for all names of a file."""
    links: int = 1
    """How many names a file has."""
    unfinished: bool = False
    """Of an entry of the copy: it does not have its attributes yet."""
    own: Any = None
    """What else the implementation needs, such as attributes to set."""


@dataclass(frozen=True, slots=True)
class Page:
    """Some entries of a directory."""

    entries: Sequence[Entry]
    cookie: int | None
    """Where the next page begins; None = there is none."""


P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Item(Generic[P]):
    """An entry of the source that is to be copied, or compared."""

    entry: Entry
    pair: P
    """The pair in whose source it is."""
    into: P
    """The pair in whose copy it is to be."""
    name: bytes
    """Its name there."""


@dataclass(frozen=True, slots=True)
class Copied:
    """How far a call of `Trees.copy` or `Trees.compare` came."""

    outcomes: Sequence[Outcome]
    """Of the first items, one for each. Fewer than there are items if the call stopped."""
    offset: int = 0
    """The bytes of the next item, a file, that are done: the next call begins with that item, and goes on there."""
    changed: int = 0
    """`Entry.changed` of that file when its first byte was copied."""


class Trees(Protocol[P]):
    """Two directory trees, source and copy, as pairs of open directories (P). Nothing else changes the copy.

    Calls raise what the storage says where nothing is said here; the copy can go on after any of it.
    """

    @property
    def open_pairs(self) -> int:
        """How many pairs may be open at once, besides the top and that of `links`; at least 4."""

    def top(self) -> P:
        """Open the pair of the two roots."""

    def links(self) -> P:
        """Open a pair whose copy is a directory outside the copied tree, on its file system, for files with several
        names; it is made if missing. Of its source nothing is asked.
        """

    def enter(self, above: P, name: bytes) -> P | None:
        """Open a pair one level below; None = the source has no directory of this name (any more)."""

    def leave(self, pair: P) -> None:
        """Close a pair."""

    def page(self, pair: P, side: Side, cookie: int, limit: int) -> Page:
        """List a directory from a cookie on; 0 = the start. Cookies stay good while the directory changes, and after
        it was closed. limit: of the entries. What vanishes meanwhile may be left out.
        """

    def look(self, pair: P, side: Side, names: Sequence[bytes]) -> Mapping[bytes, Entry]:
        """Return the entries with these names; what does not exist is left out."""

    def status(self, pair: P, side: Side) -> Entry:
        """Return the entry of the directory itself, with any name."""

    def make_directories(self, pair: P, names: Sequence[bytes]) -> None:
        """Make directories in the copy, for which the owner has all rights. They may exist."""

    def copy(self, items: Sequence[Item[P]], offset: int, changed: int, should_stop: Callable[[], bool]) -> Copied:
        """Copy entries that are no directories, each with its attributes, which come last.

        What is in the way in the copy is a file of ours with one name, whatever is in it: it is overwritten.
        A file is copied up to its present size. If it changes during the call it is copied again, three times at most,
        and gets the attributes that it had before the last time.
        offset, changed: what the last call returned for the first item; 0 and 0 = it is begun. A file that has changed
        since is not begun again, or one that is written all the time would never end: it gets another time of its last
        change than the source has. So the second pass copies it once more.
        should_stop: True = return soon. Each call does something.
        """

    def compare(self, items: Sequence[Item[P]], offset: int, should_stop: Callable[[], bool]) -> Copied:
        """Compare the contents of files with those of their copies, in the same way."""

    def link(self, items: Sequence[Item[P]]) -> Sequence[Outcome]:
        """Give files a second name: from `Item.pair` and the name of its entry to `Item.into` and `Item.name`, both in
        the copy, where nothing has that name. `LEFT_OUT` where the file can have no more names: it is copied.
        """

    def finish(self, pair: P, entry: Entry) -> None:
        """Give the directory in the copy the attributes of this entry, the time of its last change at the end."""

    def discard(self, pair: P, names: Sequence[bytes]) -> None:
        """Take entries out of the copy, directories with all that is in them. They may be gone."""


@dataclass(slots=True)
class CopyCounts:
    """What was done, as far as this and the calls before know. Those of the second pass are of the whole tree."""

    entries: int = 0
    """Entries of directories, and the top."""
    bytes: int = 0
    """Of their contents."""
    changed: int = 0
    """Entries that changed, came or went since the copy was begun, and directories in which one came or went."""
    mended: int = 0
    """Entries that the second pass found wrong although they had not changed."""
    left_out: int = 0
    """Entries that the storage can have no copy of."""

    @classmethod
    def of(cls, values: object) -> Self:
        """Return the counts of these JSON values, 0 for what they do not say."""
        known = values if isinstance(values, Mapping) else {}
        return cls(**{each.name: _number(known.get(each.name)) for each in fields(cls)})


@dataclass(slots=True)
class _Frame(Generic[P]):
    """A directory that is being copied."""

    name: bytes
    pair: P | None
    """None = it was closed, and is opened again when what is below is done."""
    side: Side = Side.SOURCE
    """Whose page is in hand: first those of the source, in the second pass then those of the copy."""
    cookie: int = 0
    """Of the page in hand."""
    empty: bool = False
    """The copy was made just now."""
    loaded: bool = False
    """The page was read, and its entries that are no directories are done."""
    directories: list[bytes] = field(default_factory=list)
    """Of the page, what is still to be done, the next one at the end."""
    made: frozenset[bytes] = frozenset()
    """Those of the page's that were made when it was read: their copies are empty."""
    following: int | None = None
    """Cookie of the next page."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A directory of the path to where a slice ended."""

    name: bytes = b""
    side: Side = Side.SOURCE
    cookie: int = 0
    following: bytes = b""
    """Of the last one: the next directory of the page in hand; b"" = the page is to be done."""


@dataclass(slots=True)
class _File:
    """The file in which a slice ended."""

    file_id: int = -1
    offset: int = 0
    changed: int = 0


class TreeCopy(Generic[P]):
    """A copy. Keep it between slices, with the trees of the next slice in `trees`: it holds nothing open then."""

    def __init__(
        self, trees: Trees[P], *, since: int, hint: Mapping[str, Any] | None = None, contents: bool = False
    ) -> None:
        """Go on with a copy, or begin it.

        since: by the clock of the file system, when the copy was begun; nothing was copied before, nor at that very
        moment. hint: of an earlier slice; without one what is done is found by comparing. contents: compare those too.
        """
        self.trees = trees
        """They may be exchanged between slices."""
        self._since = since
        self._contents = contents
        # Of a copy that was begun again it would leave out what is before its place.
        hint = hint if hint and hint.get("since") == since else {}
        self.checking = hint.get("pass") == 2
        """Whether this is the second pass."""
        self.counts = CopyCounts.of(hint.get("counts"))
        self.copied: CopyCounts | None = None
        """What the first pass has copied, if this process ended it."""
        self._path = _path_of(hint.get("path"), hint.get("following"))
        self._next = _name(hint.get("next"))
        """In a page: the first file that was not compared."""
        part = hint.get("file")
        self._file = _File(*map(_number, part)) if isinstance(part, Sequence) and len(part) == 3 else _File()
        self._stack: list[_Frame[P]] = []

    @property
    def offset(self) -> int:
        """Bytes of the file in which the last slice ended that are done, and not in `counts`."""
        return self._file.offset

    @property
    def hint(self) -> dict[str, Any]:
        """Return JSON values by which another process finds its place: at most 4 KiB, so not all of a deep path.

        They save time, and the counts of the second pass. What they say of files and directories is compared.
        """
        path: list[list[Any]] = []
        size = 0
        for place in self._path:
            size += 2 * len(place.name) + 40
            if size > _LONGEST_HINT:
                break
            path.append([place.name.hex(), place.side.value, place.cookie])
        following = self._path[-1].following if len(path) == len(self._path) > 0 else b""
        last = self._file
        return {
            "since": self._since,
            "pass": 2 if self.checking else 1,
            "path": path,
            "following": following.hex(),
            "next": self._next.hex(),
            "counts": asdict(self.counts),
            "file": [last.file_id, last.offset, last.changed],
        }

    def work(self, should_stop: Callable[[], bool]) -> bool:
        """Go on until should_stop returns True, which is asked between steps; True = the copy is whole.

        Each call does something. Raises Unsupported for a tree that cannot be copied, and what `Trees` raises.
        """
        try:
            self._open_path()
            while True:
                if not self._stack:
                    if self.checking:
                        return True
                    self.copied = self.counts
                    self.checking, self.counts, self._file = True, CopyCounts(), _File()
                    self._path = []
                    self._open_path()
                elif not self._step(should_stop):
                    return False
                last = self._stack[-1] if self._stack else None
                if last is not None and (last.directories or not last.loaded) and should_stop():
                    return False
        finally:
            self._close()

    # --- the way down and up -------------------------------------------------------------------------------------

    def _open_path(self) -> None:
        """Open the directories in which the last slice ended, as far as they are still there."""
        first, *below = self._path or [_Place()]
        self._stack = [_Frame(b"", self.trees.top(), first.side, first.cookie)]
        for place in below:
            if not self._passed_to(place.name) or not self._down(place):
                return
        if self._path and self._path[-1].following:
            self._passed_to(self._path[-1].following)

    def _passed_to(self, name: bytes) -> bool:
        """Pass what was done of the page in hand before this directory; False = it has gone."""
        frame = self._stack[-1]
        if not frame.loaded:
            self._load(frame)
        if name not in frame.directories:
            return False
        del frame.directories[frame.directories.index(name) + 1 :]
        return True

    def _close(self) -> None:
        """Close everything; keep the path."""
        self._path = [_Place(frame.name, frame.side, frame.cookie) for frame in self._stack]
        if self._stack and self._stack[-1].loaded and self._stack[-1].directories:
            self._path[-1] = replace(self._path[-1], following=self._stack[-1].directories[-1])
        for frame in self._stack:
            if frame.pair is not None:
                self.trees.leave(frame.pair)
        self._stack = []

    def _down(self, place: _Place, *, empty: bool = False) -> bool:
        """Enter the next directory of the page in hand; False = the source does not have it any more."""
        if len(self._stack) > DEEPEST:
            raise Unsupported(f"directories are nested more than {DEEPEST} levels deep: such a tree is not copied")
        above = self._stack[-1]
        above.directories.pop()
        pair = self.trees.enter(_open(above), place.name)
        if pair is None:
            return False
        self._stack.append(_Frame(place.name, pair, place.side, place.cookie, empty))
        # A tree may be deeper than directories can be open.
        index = len(self._stack) - self.trees.open_pairs
        if index > 0 and (far := self._stack[index].pair) is not None:
            self.trees.leave(far)
            self._stack[index].pair = None
        return True

    def _up(self) -> None:
        """Leave a directory that is done."""
        self.trees.leave(_open(self._stack.pop()))
        if not self._stack or self._stack[-1].pair is not None:
            return
        # Only the top is open: the others are opened again. Of what has gone meanwhile the rest is left out.
        keep = len(self._stack) - self.trees.open_pairs // 2
        for index in range(1, len(self._stack)):
            above = self._stack[index - 1]
            pair = self.trees.enter(_open(above), self._stack[index].name)
            if pair is None:
                del self._stack[index:]
                return
            self._stack[index].pair = pair
            if 1 < index < keep:
                self.trees.leave(_open(above))
                above.pair = None

    # --- a directory ---------------------------------------------------------------------------------------------

    def _step(self, should_stop: Callable[[], bool]) -> bool:
        """Do a page, or enter or leave a directory; False = stopped within a page."""
        frame = self._stack[-1]
        if not frame.loaded:
            if frame.side is Side.COPY:
                self._count_others(frame)
            elif not self._files(_open(frame), self._load(frame), should_stop):
                frame.loaded = False
                return False
        elif frame.directories:
            name = frame.directories[-1]
            self._down(_Place(name), empty=name in frame.made)
        elif frame.following is not None:
            frame.cookie, frame.loaded = frame.following, False
        elif self.checking and frame.side is Side.SOURCE and self._changed(frame):
            frame.side, frame.cookie, frame.loaded = Side.COPY, 0, False
        else:
            self._finish(_open(frame))
            self._up()
        return True

    def _changed(self, frame: _Frame[P]) -> bool:
        """Return whether entries may have come to a directory, or gone, since the copy was begun."""
        return self.trees.status(_open(frame), Side.SOURCE).changed > self._since

    def _finish(self, pair: P) -> None:
        """Give a directory its attributes, unless it has them."""
        entry = self.trees.status(pair, Side.SOURCE)
        if not self.checking or self.trees.status(pair, Side.COPY).stamp != entry.stamp:
            self.trees.finish(pair, entry)
        self.counts.entries += 1
        if self.checking:
            self.counts.changed += entry.changed > self._since

    def _count_others(self, frame: _Frame[P]) -> None:
        """Count what the copy has and the source does not have any more; what is not finished of it is taken out."""
        pair = _open(frame)
        page = self.trees.page(pair, Side.COPY, frame.cookie, self._limit)
        known = self.trees.look(pair, Side.SOURCE, [entry.name for entry in page.entries])
        gone = [entry for entry in page.entries if entry.name not in known]
        unfinished = [entry.name for entry in gone if entry.unfinished]
        if unfinished:
            self.trees.discard(pair, unfinished)
        self.counts.changed += len(gone)
        frame.following, frame.loaded = page.cookie, True

    @property
    def _limit(self) -> int:
        return _PAGE if len(self._stack) < _DEEP else _DEEP_PAGE

    def _load(self, frame: _Frame[P]) -> list[tuple[Entry, Entry | None]]:
        """Read the page of the source. Returns its entries that are no directories, each with what the copy has."""
        pair = _open(frame)
        page = self.trees.page(pair, Side.SOURCE, frame.cookie, self._limit)
        known = {} if frame.empty else self.trees.look(pair, Side.COPY, [entry.name for entry in page.entries])
        directories: list[bytes] = []
        others: list[tuple[Entry, Entry | None]] = []
        missing: list[bytes] = []
        wrong: list[bytes] = []
        for entry in page.entries:
            have = known.get(entry.name)
            if have is not None and have.kind is not entry.kind:
                wrong.append(entry.name)
                have = None
            if entry.kind is not EntryKind.DIRECTORY:
                others.append((entry, have))
                continue
            if have is None:
                missing.append(entry.name)
            elif have.stamp == entry.stamp and not self.checking:
                continue
            directories.append(entry.name)
        if wrong:
            self.trees.discard(pair, wrong)
        if missing:
            self.trees.make_directories(pair, missing)
        frame.made = frozenset(missing)
        directories.reverse()
        frame.directories, frame.following, frame.loaded = directories, page.cookie, True
        return others

    # --- what is no directory ------------------------------------------------------------------------------------

    def _files(self, pair: P, page: list[tuple[Entry, Entry | None]], should_stop: Callable[[], bool]) -> bool:
        """Copy what a page has besides directories, and count it; False = stopped: the page is to be done again."""
        counts = CopyCounts()
        todo: list[Entry] = []
        same: list[Item[P]] = []
        away: list[bytes] = []
        for entry, have in page:
            changed = entry.changed > self._since
            if have is None or have.stamp != entry.stamp:
                todo.append(entry)
                if have is not None and (have.kind is not EntryKind.FILE or have.links > 1 or entry.links > 1):
                    away.append(entry.name)
            elif self._contents and self.checking and not changed and entry.kind is EntryKind.FILE:
                same.append(Item(entry, pair, pair, entry.name))
            counts.bytes += entry.size
            counts.changed += changed
        counts.entries = len(page)
        if away:
            self.trees.discard(pair, away)
        if not self._copied(pair, todo, counts, should_stop) or not self._compared(same, counts, should_stop):
            return False
        counted = fields(counts) if self.checking else fields(counts)[:2]
        for each in counted:
            setattr(self.counts, each.name, getattr(self.counts, each.name) + getattr(counts, each.name))
        return True

    def _copied(self, pair: P, todo: list[Entry], counts: CopyCounts, should_stop: Callable[[], bool]) -> bool:
        begun = self._file.file_id
        todo.sort(key=lambda entry: entry.file_id != begun)  # Stable: what a slice has begun comes first.
        plain = [Item(entry, pair, pair, entry.name) for entry in todo if entry.links < 2]
        several = [entry for entry in todo if entry.links > 1]
        return self._run(plain, counts, should_stop) and (
            not several or self._linked(pair, several, counts, should_stop)
        )

    def _linked(self, pair: P, todo: list[Entry], counts: CopyCounts, should_stop: Callable[[], bool]) -> bool:
        """Copy files with several names: once each into the directory of links, from where they get their names.

        So which files are copied, and from where, needs no table, neither in memory nor after a crash.
        """
        links = self.trees.links()
        try:
            names = {entry.file_id: b"%d" % entry.file_id for entry in todo}
            known = self.trees.look(links, Side.COPY, list(names.values()))
            missing: dict[int, Entry] = {}
            stale: list[bytes] = []
            for number, name in names.items():
                entry = next(each for each in todo if each.file_id == number)
                have = known.get(name)
                if have is None or have.stamp != entry.stamp:
                    missing[number] = entry
                    if have is not None and (have.links > 1 or have.kind is not EntryKind.FILE):
                        stale.append(name)
            if stale:
                self.trees.discard(links, stale)
            items = [Item(entry, pair, links, names[number]) for number, entry in missing.items()]
            if not self._run(items, counts, should_stop):
                return False
            ready = self.trees.look(links, Side.COPY, list(names.values()))
            by_name = {entry.name: entry for entry in todo}
            items = [
                Item(ready[names[entry.file_id]], links, pair, entry.name)
                for entry in todo
                if names[entry.file_id] in ready
            ]
            outcomes = self.trees.link(items)
        finally:
            self.trees.leave(links)
        full = [
            Item(by_name[item.name], pair, pair, item.name)
            for item, outcome in zip(items, outcomes, strict=True)
            if outcome is Outcome.LEFT_OUT
        ]
        return self._run(full, counts, should_stop)

    def _run(self, items: Sequence[Item[P]], counts: CopyCounts, should_stop: Callable[[], bool]) -> bool:
        """Copy entries; False = stopped before the last."""
        while items:
            begun, self._file = self._file, _File()
            if begun.file_id != items[0].entry.file_id:
                begun = _File()
            copied = self.trees.copy(items, begun.offset, begun.changed, should_stop)
            for item, outcome in zip(items, copied.outcomes, strict=False):
                changed = item.entry.changed > self._since
                counts.left_out += outcome is Outcome.LEFT_OUT
                counts.changed += outcome is Outcome.GONE and not changed
                counts.mended += outcome is Outcome.DONE and not changed
            items = items[len(copied.outcomes) :]
            if items and copied.offset:
                self._file = _File(items[0].entry.file_id, copied.offset, copied.changed)
            if items and should_stop():
                return False
        return True

    def _compared(self, items: Sequence[Item[P]], counts: CopyCounts, should_stop: Callable[[], bool]) -> bool:
        """Compare contents, and copy what differs; False = stopped before the last."""
        # Nothing in the copy tells what was compared: the page is begun again with its next file.
        names = [item.name for item in items]
        items = items[names.index(self._next) :] if self._next in names else items
        while items:
            begun, self._file, self._next = self._file, _File(), b""
            offset = begun.offset if begun.file_id == items[0].entry.file_id else 0
            compared = self.trees.compare(items, offset, should_stop)
            outcomes = zip(items, compared.outcomes, strict=False)
            different = [item for item, outcome in outcomes if outcome is Outcome.DIFFERENT]
            if different:
                self.trees.discard(different[0].pair, [item.name for item in different])
                self._run(different, counts, lambda: False)
            items = items[len(compared.outcomes) :]
            if items:
                self._file, self._next = _File(items[0].entry.file_id, compared.offset), items[0].name
            if items and should_stop():
                return False
        return True


def _open(frame: _Frame[P]) -> P:
    if frame.pair is None:
        raise RuntimeError("a directory that is worked on is closed")
    return frame.pair


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _path_of(values: object, following: object) -> list[_Place]:
    """Return the path of a hint, as far as it can be read."""
    path: list[_Place] = []
    with suppress(TypeError, ValueError):
        for name, side, cookie in values if isinstance(values, Sequence) else ():
            path.append(_Place(bytes.fromhex(name), Side(side), int(cookie)))
        if path:
            path[-1] = replace(path[-1], following=_name(following))
    return path


def _name(value: object) -> bytes:
    try:
        return bytes.fromhex(value) if isinstance(value, str) else b""
    except ValueError:
        return b""
