"""The state of the model: its tree of files, and the sessions of its clients."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from volplane_nfs.nfs4.attributes import DIRECTORY

SPACE: Final = 1 << 40
"""Bytes of the whole file system."""
SLOTS: Final = 16
"""Of a session."""
BLOCK: Final = 4096
"""Bytes of a block of a file: a hole is made of whole ones."""


@dataclass(eq=False, slots=True)
class Node:
    """A directory (children), a symbolic link (target) or a file (data)."""

    kind: int
    fileid: int
    mode: int = 0o755
    owner: bytes = b"0"
    group: bytes = b"0"
    children: dict[bytes, Node] = field(default_factory=dict)
    data: bytes = b""
    blocks: set[int] = field(default_factory=set)
    """Numbers of the blocks of a file that are no holes."""
    stable: tuple[bytes, set[int]] | None = None
    """Data and blocks of a file that a restart leaves of it; None = what it has now."""
    links: int = 1
    """Names of a file."""
    modified: tuple[int, int] = (0, 0)
    xattrs: dict[bytes, bytes] = field(default_factory=dict)
    acl: tuple[Any, ...] = ()
    parent: Node | None = None
    change: int = 1
    cookies: OrderedDict[int, bytes] = field(default_factory=OrderedDict)
    time: float = 0.0
    exported: bool = False
    """Whether it is the path of an export: then it cannot be removed or renamed."""

    limit: int | None = None
    """Bytes of its project quota: a server counts the space of a directory by it."""
    used: int = 0
    """Bytes that are used of it."""
    files: tuple[int, int] | None = None
    """Inodes of its project quota, and how many of them are free."""
    quota: tuple[int, int] | None = None
    """QUOTA_AVAIL_HARD and QUOTA_USED of it and of everything below it."""

    def put(self, offset: int, data: bytes) -> None:
        """Write into a file."""
        if data:
            self.data = self.data[:offset].ljust(offset, b"\0") + data + self.data[offset + len(data) :]
            self.blocks.update(range(offset // BLOCK, (offset + len(data) - 1) // BLOCK + 1))

    def resize(self, size: int) -> None:
        """Cut a file, or lengthen it by a hole."""
        self.data = self.data[:size].ljust(size, b"\0")
        self.blocks = {block for block in self.blocks if block * BLOCK < size}

    def extents(self, start: int, size: int) -> Iterator[tuple[int, int]]:
        """Yield begin and end of the parts of a file that are no holes, from `start` for `size` bytes."""
        for block in range(start // BLOCK, (start + size - 1) // BLOCK + 1):
            if block in self.blocks:
                yield max(start, block * BLOCK), min(start + size, (block + 1) * BLOCK)

    def ancestry(self) -> Iterator[Node]:
        """Yield the node and all directories above it."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent


class State:
    """Files below one share, `/vol`, and sessions. now: the clock of file times, seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.available = SPACE
        self.largest_call = 1 << 18
        self.operations = 64
        """In one COMPOUND, at most."""
        self.endless: Node | None = None
        """A directory of which READDIR lists new names for ever, each with a new cookie."""
        self.renames_take_space = False
        """Whether a RENAME fails on a full file system, as on btrfs."""
        self.offloads: set[str] = set()
        """Those of CLONE, COPY and the operations for extended attributes that it does not refuse; and SEEK, which it
        otherwise answers with 0.
        """
        self.acls = False
        """Whether it has the attribute ACL."""
        self.largest_copy = 1 << 22
        """Bytes that one COPY does at most, as the Linux server's 4 MiB."""
        self.largest_io = 1 << 20
        """Bytes that one READ or WRITE does at most."""
        self.verifier = 0
        """Of WRITE and COMMIT: how often it was restarted."""
        self.opens: dict[bytes, Node] = {}
        """Files that clients have open."""
        self.repeats_pages = False
        """Whether READDIR answers with the first page, whatever the cookie."""
        self.ids = itertools.count(2)
        self._cookies = itertools.count(3)
        self.sessions: dict[bytes, dict[int, tuple[int, bytes]]] = {}
        self.nodes: dict[int, Node] = {}
        self.root = self.make(DIRECTORY, None)
        self.share = self.make(DIRECTORY, self.root)
        self.enter(self.root, b"vol", self.share)

    def make(self, kind: int, parent: Node | None, **fields: Any) -> Node:
        """Return a new node that no directory has an entry of yet. fields: of `Node`."""
        now = self.now()
        stamp = int(now), int(now % 1 * 1e9)
        node = Node(kind, next(self.ids), parent=parent, time=now, modified=stamp, **fields)
        self.nodes[node.fileid] = node
        return node

    def enter(self, directory: Node, name: bytes, node: Node) -> tuple[bool, int, int]:
        """Give a directory an entry; its ChangeInfo (atomic, before, after)."""
        before = directory.change
        directory.children[name] = node
        directory.cookies[next(self._cookies)] = name
        node.parent = directory
        directory.change += 1
        return True, before, directory.change

    def leave(self, directory: Node, name: bytes) -> tuple[bool, int, int]:
        """Take an entry from a directory; its ChangeInfo. The node stays in `nodes`."""
        before = directory.change
        del directory.children[name]
        for cookie, known in list(directory.cookies.items()):
            if known == name:
                del directory.cookies[cookie]
        directory.change += 1
        return True, before, directory.change

    def forget(self, node: Node) -> None:
        """Take a name from a node that no directory has under it any more."""
        node.links -= 1
        if node.kind == DIRECTORY or not node.links:
            del self.nodes[node.fileid]

    def lose(self) -> None:
        """Lose what is not on the disk, as in a restart."""
        self.verifier += 1
        self.opens.clear()
        for node in self.nodes.values():
            if node.stable is not None:
                (node.data, node.blocks), node.stable = node.stable, None

    def session(self, session: bytes) -> None:
        """Begin a session with this id; its slots are unused."""
        self.sessions[session] = {}
