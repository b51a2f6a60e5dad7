"""Attributes of files (RFC 7530 section 5, RFC 8881 section 5): one table of those that this client speaks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from volplane_nfs.nfs4.xdr import (
    BITMAP,
    BOOL,
    INT64,
    UINT32,
    UINT64,
    VOID,
    Array,
    Codec,
    MalformedData,
    Opaque,
    Reader,
    Struct,
    Union,
)

REGULAR, DIRECTORY, LINK = 1, 2, 5
"""Values of TYPE: NF4REG, NF4DIR, NF4LNK."""

SUPPORTED_ATTRS, TYPE, CHANGE, SIZE, FSID, RDATTR_ERROR, ACL, FILEHANDLE, FILEID = 0, 1, 3, 4, 8, 11, 12, 19, 20
FILES_FREE, FILES_TOTAL = 22, 23
MODE, NUMLINKS, OWNER, OWNER_GROUP = 33, 35, 36, 37
QUOTA_AVAIL_HARD, QUOTA_USED, SPACE_AVAIL, SPACE_TOTAL, SPACE_USED = 38, 40, 42, 44, 45
TIME_METADATA, TIME_MODIFY, TIME_MODIFY_SET, MOUNTED_ON_FILEID = 52, 53, 54, 55
XATTR_SUPPORT = 82

FILEHANDLE_BYTES: Final = 128
_NAME: Final = Opaque(1024)
_TIME: Final = Struct("Time", ("seconds", INT64), ("nanoseconds", UINT32))
_MOST_ACES: Final = 128
ACE: Final = Struct("Ace", ("type", UINT32), ("flag", UINT32), ("mask", UINT32), ("who", _NAME))

ATTRIBUTES: Final[Mapping[int, Codec]] = {
    SUPPORTED_ATTRS: BITMAP,
    TYPE: UINT32,
    CHANGE: UINT64,
    SIZE: UINT64,
    FSID: Struct("FsId", ("major", UINT64), ("minor", UINT64)),
    RDATTR_ERROR: UINT32,
    ACL: Array(ACE, _MOST_ACES),
    FILEHANDLE: Opaque(FILEHANDLE_BYTES),
    FILEID: UINT64,
    FILES_FREE: UINT64,
    FILES_TOTAL: UINT64,
    MODE: UINT32,
    NUMLINKS: UINT32,
    OWNER: _NAME,
    OWNER_GROUP: _NAME,
    QUOTA_AVAIL_HARD: UINT64,
    QUOTA_USED: UINT64,
    SPACE_AVAIL: UINT64,
    SPACE_TOTAL: UINT64,
    SPACE_USED: UINT64,
    TIME_METADATA: _TIME,
    TIME_MODIFY: _TIME,
    TIME_MODIFY_SET: Union({0: VOID, 1: _TIME}),
    MOUNTED_ON_FILEID: UINT64,
    XATTR_SUPPORT: BOOL,
}
"""Number -> type. A server returns a subset of what was asked for, never more."""

_LARGEST: Final = 8192
_CONTENT: Final = Opaque(_LARGEST)


def mask_of(*numbers: int) -> int:
    """Return the bitmap of these attributes."""
    mask = 0
    for number in numbers:
        mask |= 1 << number
    return mask


@lru_cache(maxsize=256)
def _type_of(mask: int) -> tuple[tuple[int, ...], Struct]:
    """Return the numbers of a bitmap, and the type of their values. Raises `MalformedData`."""
    numbers = tuple(number for number in range(mask.bit_length()) if mask >> number & 1)
    if unknown := [number for number in numbers if number not in ATTRIBUTES]:
        raise MalformedData(f"attribute {unknown[0]} was not asked for")
    return numbers, Struct("Values", *((f"attribute_{number}", ATTRIBUTES[number]) for number in numbers))


def _packed(items: tuple[tuple[int, Any], ...]) -> bytes:
    """Return `fattr4` of these."""
    value = dict(items)
    unknown = sorted(value.keys() - ATTRIBUTES.keys())
    if unknown:
        raise MalformedData(f"unknown attributes {unknown}")
    out, content = bytearray(), bytearray()
    BITMAP.pack(out, mask_of(*value))
    for number in sorted(value):
        ATTRIBUTES[number].pack(content, value[number])
    _CONTENT.pack(out, bytes(content))
    return bytes(out)


_kept: Final = lru_cache(maxsize=256)(_packed)
"""The same few are sent for all volumes of a class."""
_VARIED: Final = frozenset({ACL, TIME_MODIFY_SET})
"""Differ from file to file, or cannot be hashed."""


class _Attributes:
    """`fattr4`: a dict of numbers and values, in the order of the numbers."""

    def pack(self, out: bytearray, value: Mapping[int, Any]) -> None:
        out += (_kept if _VARIED.isdisjoint(value) else _packed)(tuple(value.items()))

    def unpack(self, reader: Reader) -> dict[int, Any]:
        numbers, codec = _type_of(BITMAP.unpack(reader))
        size = reader.uint32()
        start = reader.position
        if size > _LARGEST or size > reader.left:
            raise MalformedData(f"{size} bytes of attributes announced, {reader.left} left")
        values = codec.unpack_fields(reader)
        if reader.position - start != size + (-size & 3):
            raise MalformedData(f"{size} bytes of attributes announced, {reader.position - start} used")
        return dict(zip(numbers, values, strict=True))


FATTR: Final = _Attributes()
