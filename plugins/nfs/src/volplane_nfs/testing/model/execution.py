"""What the operations of a COMPOUND do with the state of the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from volplane_nfs.nfs4 import operations as nfs
from volplane_nfs.nfs4.attributes import (
    ACL,
    CHANGE,
    DIRECTORY,
    FILEHANDLE,
    FILEID,
    FILES_FREE,
    FILES_TOTAL,
    FSID,
    LINK,
    MODE,
    NUMLINKS,
    OWNER,
    OWNER_GROUP,
    QUOTA_AVAIL_HARD,
    QUOTA_USED,
    RDATTR_ERROR,
    REGULAR,
    SIZE,
    SPACE_AVAIL,
    SPACE_TOTAL,
    SPACE_USED,
    SUPPORTED_ATTRS,
    TIME_METADATA,
    TIME_MODIFY,
    TIME_MODIFY_SET,
    TYPE,
    XATTR_SUPPORT,
    mask_of,
)
from volplane_nfs.nfs4.operations import Entry, Operation, Reply, Request, Result
from volplane_nfs.nfs4.status import Status
from volplane_nfs.testing.model.state import BLOCK, SLOTS, SPACE, Node, State

_NAME_BYTES: Final = 255
_OFFLOADS: Final = (nfs.CLONE, nfs.COPY, nfs.GETXATTR, nfs.SETXATTR, nfs.LISTXATTRS)
_ATTRIBUTES: Final = mask_of(
    *(SUPPORTED_ATTRS, TYPE, CHANGE, SIZE, FSID, RDATTR_ERROR, FILEHANDLE, FILEID, MODE, NUMLINKS, OWNER, OWNER_GROUP),
    *(SPACE_AVAIL, SPACE_TOTAL, SPACE_USED, TIME_METADATA, TIME_MODIFY, TIME_MODIFY_SET, XATTR_SUPPORT),
)


class Refused(Exception):
    """An operation failed."""

    def __init__(self, status: int) -> None:
        self.status = status


def failed(operation: Operation, status: int) -> Result:
    """Return the result of an operation that failed with this status."""
    return Result(operation, status, 0 if operation is nfs.SETATTR else None)


class Execution:
    """One COMPOUND. minor: the version in which it was sent."""

    def __init__(self, state: State, minor: int) -> None:
        self._state = state
        self._minor = minor
        self._current: Node | None = None
        self._saved: Node | None = None
        self._stateid: bytes | None = None
        """Of the last OPEN, until the file handle changes."""

    def run(self, requests: Sequence[Request]) -> Reply:
        results: list[Result] = []
        for operation, arguments in requests:
            try:
                value = self._method(operation)(*arguments)
            except Refused as refused:
                results.append(failed(operation, refused.status))
                return Reply(refused.status, results)
            results.append(Result(operation, 0, value))
        return Reply(0, results)

    def _method(self, operation: Operation) -> Callable[..., Any]:
        if operation.minor > self._minor:
            raise Refused(Status.OP_ILLEGAL)
        if operation in _OFFLOADS and operation.name not in self._state.offloads:
            raise Refused(Status.NOTSUPP)
        method: Callable[..., Any] = getattr(self, f"_{operation.name.lower()}")
        return method

    def _here(self) -> Node:
        if self._current is None:
            raise Refused(Status.NOFILEHANDLE)
        if self._current.fileid not in self._state.nodes:
            raise Refused(Status.STALE)
        return self._current

    def _directory(self) -> Node:
        here = self._here()
        if here.kind == LINK:
            raise Refused(Status.SYMLINK)
        if here.kind != DIRECTORY:
            raise Refused(Status.NOTDIR)
        return here

    def _named(self, name: bytes) -> bytes:
        if not name:
            raise Refused(Status.INVAL)
        if len(name) > _NAME_BYTES:
            raise Refused(Status.NAMETOOLONG)
        if name in (b".", b".."):
            raise Refused(Status.BADNAME)
        if b"/" in name or b"\0" in name:
            raise Refused(Status.BADCHAR)
        return name

    def _child(self, name: bytes) -> Node:
        directory = self._directory()
        child = directory.children.get(self._named(name))
        if child is None:
            raise Refused(Status.NOENT)
        return child

    # --- operations -----------------------------------------------------------------------------------------------

    def _putrootfh(self) -> None:
        self._current = self._state.root

    def _putfh(self, handle: bytes) -> None:
        self._stateid = None
        if len(handle) != 8:
            raise Refused(Status.BADHANDLE)
        node = self._state.nodes.get(int.from_bytes(handle, "big"))
        if node is None:
            raise Refused(Status.STALE)
        self._current = node

    def _savefh(self) -> None:
        self._saved = self._here()

    def _getfh(self) -> bytes:
        return self._here().fileid.to_bytes(8, "big")

    def _lookup(self, name: bytes) -> None:
        self._current = self._child(name)

    def _getattr(self, mask: int) -> dict[int, Any]:
        return self._attributes(self._here(), mask)

    def _attributes(self, node: Node, mask: int) -> dict[int, Any]:
        values: dict[int, Any] = {
            TYPE: node.kind,
            CHANGE: node.change,
            SIZE: len(node.data),
            FSID: (1, 1),
            RDATTR_ERROR: 0,
            FILEHANDLE: node.fileid.to_bytes(8, "big"),
            FILEID: node.fileid,
            MODE: node.mode,
            NUMLINKS: 2 + sum(child.kind == DIRECTORY for child in node.children.values())
            if node.kind == DIRECTORY
            else node.links,
            SUPPORTED_ATTRS: _ATTRIBUTES | (mask_of(ACL) if self._state.acls else 0),
            SPACE_USED: BLOCK * len(node.blocks),
            TIME_MODIFY: node.modified,
            XATTR_SUPPORT: "SETXATTR" in self._state.offloads,
            OWNER: node.owner,
            OWNER_GROUP: node.group,
            FILES_FREE: node.files[1] if node.files else SPACE,
            FILES_TOTAL: node.files[0] if node.files else SPACE,
            SPACE_AVAIL: min(self._state.available, max(0, (node.limit or SPACE) - node.used)),
            SPACE_TOTAL: node.limit or SPACE,
            TIME_METADATA: (int(node.time), int(node.time % 1 * 1e9)),
        }
        if self._state.acls:
            values[ACL] = list(node.acl)
        quota = next((above.quota for above in node.ancestry() if above.quota is not None), None)
        if quota is not None:
            values[QUOTA_AVAIL_HARD], values[QUOTA_USED] = quota
        return {number: values[number] for number in sorted(values) if mask >> number & 1}

    def _verify(self, attributes: dict[int, Any]) -> None:
        if self._attributes(self._here(), mask_of(*attributes)) != attributes:
            raise Refused(Status.NOT_SAME)

    def _setattr(self, stateid: object, attributes: dict[int, Any]) -> int:
        node = self._here()
        node.mode = attributes.get(MODE, node.mode)
        node.owner = attributes.get(OWNER, node.owner)
        node.group = attributes.get(OWNER_GROUP, node.group)
        node.acl = tuple(attributes.get(ACL, node.acl))
        if SIZE in attributes:
            if node.kind != REGULAR:
                raise Refused(Status.INVAL)
            node.resize(attributes[SIZE])
        self._touch(node)
        if TIME_MODIFY_SET in attributes and attributes[TIME_MODIFY_SET][0]:
            node.modified = attributes[TIME_MODIFY_SET][1]
        return mask_of(*attributes)

    def _touch(self, node: Node) -> None:
        now = self._state.now()
        node.change += 1
        node.modified = int(now), int(now % 1 * 1e9)

    def _create(self, kind: tuple[int, Any], name: bytes, attributes: dict[int, Any]) -> object:
        directory = self._directory()
        if self._named(name) in directory.children:
            raise Refused(Status.EXIST)
        if not self._state.available:
            raise Refused(Status.NOSPC)
        mode = attributes.get(MODE, 0o700) & (0o1777 if kind[0] == DIRECTORY else 0o777)
        data = kind[1] if kind[0] == LINK else b""
        node = self._state.make(kind[0], directory, mode=mode, data=data)
        node.owner, node.group = attributes.get(OWNER, b"0"), attributes.get(OWNER_GROUP, b"0")
        change = self._state.enter(directory, name, node)
        self._current = node
        return change, mask_of(*attributes)

    def _readlink(self) -> bytes:
        here = self._here()
        if here.kind != LINK:
            raise Refused(Status.INVAL)
        return here.data

    def _remove(self, name: bytes) -> object:
        directory, child = self._directory(), self._child(name)
        if child.children or child.exported:
            raise Refused(Status.NOTEMPTY)
        change = self._state.leave(directory, name)
        self._state.forget(child)
        return change

    def _link(self, name: bytes) -> object:
        target, source = self._directory(), self._saved
        if source is None:
            raise Refused(Status.NOFILEHANDLE)
        if source.kind == DIRECTORY:
            raise Refused(Status.ISDIR)
        if self._named(name) in target.children:
            raise Refused(Status.EXIST)
        if not self._state.available:
            raise Refused(Status.NOSPC)
        source.links += 1
        source.change += 1
        return self._state.enter(target, name, source)

    def _rename(self, old: bytes, new: bytes) -> object:
        target, source = self._directory(), self._saved
        if source is None:
            raise Refused(Status.NOFILEHANDLE)
        if source.kind != DIRECTORY:
            raise Refused(Status.NOTDIR)
        self._named(old)
        self._named(new)
        moved = source.children.get(old)
        if moved is None:
            raise Refused(Status.NOENT)
        if moved.exported:
            raise Refused(Status.NOTEMPTY)
        if moved in target.ancestry():
            raise Refused(Status.INVAL)
        return self._moved(source, old, target, new)

    def _moved(self, source: Node, old: bytes, target: Node, new: bytes) -> object:
        if self._state.renames_take_space and not self._state.available:
            raise Refused(Status.NOSPC)
        moved, present = source.children[old], target.children.get(new)
        unchanged = ((True, source.change, source.change), (True, target.change, target.change))
        if present is moved:
            return unchanged
        if present is not None:
            if (present.kind == DIRECTORY) != (moved.kind == DIRECTORY):
                raise Refused(Status.EXIST)
            if present.children:
                raise Refused(Status.NOTEMPTY)
            self._state.leave(target, new)
            self._state.forget(present)
        left = self._state.leave(source, old)
        return left, self._state.enter(target, new, moved)

    def _readdir(self, cookie: int, verifier: bytes, name_bytes: int, maximum: int, mask: int) -> object:
        directory = self._directory()
        if directory is self._state.endless:
            fresh = range(cookie + 3, cookie + 403)
            return bytes(8), [Entry(each, b"pvc-%d" % each, {RDATTR_ERROR: 0}) for each in fresh], False
        found: list[Entry] = []
        size, eof = 16, True
        for position, name in directory.cookies.items():
            if position <= cookie and not self._state.repeats_pages:
                continue
            size += 40 + len(name) + 24 * mask.bit_count()
            if size > maximum and found:
                eof = False
                break
            found.append(Entry(position, name, self._attributes(directory.children[name], mask)))
        return bytes(8), found, eof

    def _open(self, *arguments: Any) -> object:
        how, claim = arguments[-2:]
        directory, name = self._directory(), self._named(claim[1])
        node = directory.children.get(name)
        given: dict[int, Any] = how[1][1] if how[0] else {}
        if node is None:
            if not how[0]:
                raise Refused(Status.NOENT)
            if not self._state.available:
                raise Refused(Status.NOSPC)
            node = self._state.make(REGULAR, directory, mode=given.get(MODE, 0o600))
            node.owner, node.group = given.get(OWNER, b"0"), given.get(OWNER_GROUP, b"0")
            self._state.enter(directory, name, node)
        elif how[0] and how[1][0] == 1:
            raise Refused(Status.EXIST)
        elif node.kind != REGULAR:
            raise Refused(Status.ISDIR if node.kind == DIRECTORY else Status.SYMLINK)
        elif SIZE in given:
            node.resize(given[SIZE])
        self._current, self._stateid = node, next(self._state.ids).to_bytes(12, "big")
        self._state.opens[self._stateid] = node
        confirm = 2 if self._minor == 0 else 0
        return (1, self._stateid), (True, 0, 0), confirm, mask_of(*given), (0, None)

    def _open_confirm(self, stateid: Any, seqid: int) -> object:
        return stateid

    def _file(self) -> Node:
        node = self._here()
        if node.kind != REGULAR:
            raise Refused(Status.ISDIR if node.kind == DIRECTORY else Status.INVAL)
        return node

    def _check(self, stateid: Any) -> bytes | None:
        """Return the stateid of an open file; None for the anonymous one."""
        seqid, other = stateid
        if not any(other):
            if not seqid:
                return None
            if self._minor == 0 or self._stateid is None:
                raise Refused(Status.BAD_STATEID)
            return self._stateid
        if other not in self._state.opens:
            raise Refused(Status.BAD_STATEID)
        return bytes(other)

    def _change_data(self, node: Node, change: Callable[[], None], *, stable: bool) -> tuple[int, bytes]:
        """Change the data of a file; how stable that is, and the verifier."""
        if not stable and node.stable is None:
            node.stable = node.data, set(node.blocks)
        change()
        if stable:
            node.stable = None
        self._touch(node)
        return 2 if stable else 0, self._state.verifier.to_bytes(8, "big")

    def _write(self, stateid: Any, offset: int, stable: int, data: bytes) -> object:
        node = self._file()
        self._check(stateid)
        data = data[: self._state.largest_io]
        if self._state.available < len(data):
            raise Refused(Status.NOSPC)
        return len(data), *self._change_data(node, lambda: node.put(offset, data), stable=stable > 0)

    def _commit(self, offset: int, count: int) -> bytes:
        self._file().stable = None
        return self._state.verifier.to_bytes(8, "big")

    def _read(self, stateid: Any, offset: int, count: int) -> object:
        node = self._file()
        self._check(stateid)
        count = min(count, self._state.largest_io)
        return offset + count >= len(node.data), node.data[offset : offset + count]

    def _seek(self, stateid: Any, offset: int, what: int) -> object:
        node = self._file()
        self._check(stateid)
        if "SEEK" not in self._state.offloads:
            return False, 0  # as NFS-Ganesha 4.3 does, whatever it is asked
        if offset >= len(node.data):
            raise Refused(Status.NXIO)
        for block in range(offset // BLOCK, -(-len(node.data) // BLOCK)):
            if (block in node.blocks) != bool(what):
                return False, max(offset, block * BLOCK)
        return True, len(node.data)

    def _source(self) -> Node:
        if self._saved is None:
            raise Refused(Status.NOFILEHANDLE)
        if self._saved.kind != REGULAR:
            raise Refused(Status.WRONG_TYPE)
        return self._saved

    def _clone(self, source: Any, target: Any, begin: int, at: int, count: int) -> None:
        file, node = self._source(), self._file()
        if source[0] or target[0]:
            raise Refused(Status.BAD_STATEID)  # as the Linux server, which takes no current stateid here
        count = count or len(file.data) - begin
        if begin % BLOCK or at % BLOCK or (count % BLOCK and begin + count != len(file.data)):
            raise Refused(Status.INVAL)
        self._change_data(node, lambda: _transfer(file, begin, node, at, count), stable=True)

    def _copy(self, source: Any, target: Any, begin: int, at: int, count: int, *how: Any) -> object:
        file, node = self._source(), self._file()
        self._check(source)
        self._check(target)
        if not how[1]:  # the server is let do it later
            raise Refused(Status.NOTSUPP)
        count = min(count or len(file.data) - begin, len(file.data) - begin, self._state.largest_copy)
        if self._state.available < count:
            raise Refused(Status.NOSPC)
        stable, verifier = self._change_data(node, lambda: node.put(at, file.data[begin : begin + count]), stable=False)
        return [], count, stable, verifier, True, True

    def _getxattr(self, name: bytes) -> bytes:
        value = self._here().xattrs.get(name)
        if value is None:
            raise Refused(Status.NOXATTR)
        return value

    def _setxattr(self, option: int, name: bytes, value: bytes) -> object:
        node = self._here()
        node.xattrs[name] = value
        node.change += 1
        return True, node.change - 1, node.change

    def _listxattrs(self, cookie: int, maximum: int) -> object:
        return 0, sorted(self._here().xattrs), True

    def _close(self, seqid: int, stateid: Any) -> object:
        other = self._check(stateid)
        if other is None:
            raise Refused(Status.BAD_STATEID)
        del self._state.opens[other]
        return (0, other)

    def _setclientid(self, client: Any, callback: Any, ident: int) -> object:
        return 1, bytes(8)

    def _setclientid_confirm(self, clientid: int, verifier: bytes) -> None:
        return None

    def _exchange_id(self, client: Any, flags: int, protection: Any, implementation: Any) -> object:
        return next(self._state.ids), 1, 0, (0, None), (1, b"model"), b"model", []

    def _create_session(self, clientid: int, sequence: int, flags: int, fore: Any, back: Any, *_: Any) -> object:
        session = next(self._state.ids).to_bytes(16, "big")
        self._state.session(session)
        largest = self._state.largest_call
        limits: tuple[int, int, int, int, int, int, list[int]] = (
            0,
            largest,
            1 << 18,
            8192,
            self._state.operations,
            SLOTS,
            [],
        )
        return session, sequence, 0, limits, back

    def _destroy_session(self, session: bytes) -> None:
        self._state.sessions.pop(session, None)

    def _destroy_clientid(self, clientid: int) -> None:
        return None

    def _reclaim_complete(self, one: bool) -> None:
        return None


def _transfer(source: Node, begin: int, target: Node, at: int, count: int) -> None:
    """Copy a part of a file, with its holes."""
    target.resize(max(len(target.data), at + count))
    for start, end in list(source.extents(begin, count)):
        target.put(at + start - begin, source.data[start:end])
