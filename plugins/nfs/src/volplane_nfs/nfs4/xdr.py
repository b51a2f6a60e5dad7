"""XDR (RFC 4506): codecs that pack and unpack, with a bound on everything whose length the other side chooses.

A codec packs a value into a bytearray and unpacks it from a `Reader`. Composite codecs are built from others, so that a
type is written once and serves both directions. A struct whose fields all have a fixed size is one call of the module
`struct`: these are most of what travels.
"""

from __future__ import annotations

import struct
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final, Protocol

_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_TWO: Final = struct.Struct(">II")
_MAXIMUM_BITMAP_WORDS: Final = 8
_PADDING: Final = (b"", b"\0", b"\0\0", b"\0\0\0")


class MalformedData(ValueError):
    """Bytes that are no value of the type: too short, too long, or a number that is not allowed."""


class Reader:
    """A position in received bytes."""

    __slots__ = ("data", "position")

    def __init__(self, data: bytes, position: int = 0) -> None:
        self.data = data
        self.position = position

    @property
    def left(self) -> int:
        return len(self.data) - self.position

    def uint32(self) -> int:
        value: int
        try:
            (value,) = _U32.unpack_from(self.data, self.position)
        except struct.error:
            raise MalformedData("the data ends within a number") from None
        self.position += 4
        return value

    def uint64(self) -> int:
        value: int
        try:
            (value,) = _U64.unpack_from(self.data, self.position)
        except struct.error:
            raise MalformedData("the data ends within a number") from None
        self.position += 8
        return value

    def two(self) -> tuple[int, int]:
        """Return two unsigned numbers of 32 bits."""
        pair: tuple[int, int]
        try:
            pair = _TWO.unpack_from(self.data, self.position)
        except struct.error:
            raise MalformedData("the data ends within a number") from None
        self.position += 8
        return pair

    def fixed(self, form: struct.Struct) -> tuple[Any, ...]:
        """Return the values of a form, all of whose parts have a fixed size."""
        try:
            values = form.unpack_from(self.data, self.position)
        except struct.error:
            raise MalformedData(f"{form.size} bytes are due, {self.left} left") from None
        self.position += form.size
        return values

    def take(self, size: int) -> bytes:
        """Read so many bytes and the padding behind them, which must be zero."""
        start = self.position
        end = start + size
        padded = end + (-size & 3)
        if padded > len(self.data):
            raise MalformedData(f"{size} bytes announced, {self.left} left")
        if padded != end and self.data[end:padded] != _PADDING[padded - end]:
            raise MalformedData("padding that is not zero")
        self.position = padded
        return self.data[start:end]

    def opaque(self, maximum: int) -> bytes:
        size = self.uint32()
        if size > maximum:
            raise MalformedData(f"{size} bytes where at most {maximum} are allowed")
        return self.take(size)


class Codec(Protocol):
    """A type. `pack` raises MalformedData for a value that is none of the type, `unpack` for such bytes."""

    def pack(self, out: bytearray, value: Any, /) -> None: ...

    def unpack(self, reader: Reader, /) -> Any: ...


class _Number:
    """letter: its format in the module `struct`."""

    def __init__(self, letter: str, read: Callable[[Reader], int]) -> None:
        self.letter = letter
        self._pack = struct.Struct(">" + letter).pack
        self.unpack = read

    def pack(self, out: bytearray, value: int) -> None:
        try:
            out += self._pack(value)
        except struct.error:
            raise MalformedData(f"{value!r} is out of range") from None


def _signed(reader: Reader) -> int:
    value = reader.uint64()
    return value - (1 << 64) if value >> 63 else value


UINT32: Final = _Number("I", Reader.uint32)
UINT64: Final = _Number("Q", Reader.uint64)
INT64: Final = _Number("q", _signed)


class _Bool:
    letter: Final = "I"

    def pack(self, out: bytearray, value: bool) -> None:
        out += b"\0\0\0\1" if value else b"\0\0\0\0"

    def unpack(self, reader: Reader) -> bool:
        value = reader.uint32()
        if value > 1:
            raise MalformedData(f"{value} is no boolean")
        return value == 1


class _Void:
    def pack(self, out: bytearray, value: None) -> None:
        if value is not None:
            raise MalformedData(f"{value!r} where nothing is allowed")

    def unpack(self, reader: Reader) -> None:
        return None


BOOL: Final = _Bool()
VOID: Final = _Void()


class Opaque:
    """Bytes of a length up to `maximum`."""

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum

    def encode(self, value: bytes) -> bytes:
        """Return the packed value by itself."""
        size = len(value)
        if size > self.maximum:
            raise MalformedData(f"{size} bytes where at most {self.maximum} are allowed")
        return _U32.pack(size) + value + _PADDING[-size & 3]

    def pack(self, out: bytearray, value: bytes) -> None:
        out += self.encode(value)

    def unpack(self, reader: Reader) -> bytes:
        return reader.opaque(self.maximum)


class Fixed:
    """Exactly `size` bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.letter = f"{size}s"

    def pack(self, out: bytearray, value: bytes) -> None:
        if len(value) != self.size:
            raise MalformedData(f"{len(value)} bytes where {self.size} are needed")
        out += value
        out += _PADDING[-self.size & 3]

    def unpack(self, reader: Reader) -> bytes:
        return reader.take(self.size)


@lru_cache(maxsize=256)
def _packed_bitmap(value: int) -> bytes:
    words = -(-value.bit_length() // 32)
    if value < 0 or words > _MAXIMUM_BITMAP_WORDS:
        raise MalformedData(f"bitmap {value:#x} is out of range")
    return _U32.pack(words) + b"".join(_U32.pack(value >> 32 * word & 0xFFFFFFFF) for word in range(words))


class _Bitmap:
    """`bitmap4`, as an int whose bit n stands for number n."""

    def pack(self, out: bytearray, value: int) -> None:
        out += _packed_bitmap(value)

    def unpack(self, reader: Reader) -> int:
        words = reader.uint32()
        if words > _MAXIMUM_BITMAP_WORDS:
            raise MalformedData(f"bitmap of {words} words")
        value = 0
        for word in range(words):
            value |= reader.uint32() << 32 * word
        return value


BITMAP: Final = _Bitmap()


class Array:
    """A list of at most `maximum` values of one type."""

    def __init__(self, item: Codec, maximum: int) -> None:
        self._item = item
        self.maximum = maximum

    def pack(self, out: bytearray, value: Sequence[Any]) -> None:
        if len(value) > self.maximum:
            raise MalformedData(f"{len(value)} values where at most {self.maximum} are allowed")
        out += _U32.pack(len(value))
        for item in value:
            self._item.pack(out, item)

    def unpack(self, reader: Reader) -> list[Any]:
        count = reader.uint32()
        if count > self.maximum:
            raise MalformedData(f"{count} values where at most {self.maximum} are allowed")
        return [self._item.unpack(reader) for _ in range(count)]


class Struct:
    """A named tuple of fields. A struct with a single field is the value of that field.

    Booleans of a struct whose fields all have a fixed size are 0 and 1.
    """

    def __init__(self, name: str, *fields: tuple[str, Codec]) -> None:
        self.name = name
        self.fields = fields
        self._codecs = tuple(codec for _, codec in fields)
        self._type: Callable[..., Any] = namedtuple(name, [field for field, _ in fields])  # type: ignore[misc]  # noqa: PYI024
        self._made_of = partial(tuple.__new__, self._type)
        """Faster than the type itself, which is a function of Python around this one."""
        self._form = _form_of(self._codecs)
        self._booleans = tuple(number for number, codec in enumerate(self._codecs) if codec is BOOL)
        self._sizes = tuple(
            (number - len(fields), each.size) for number, each in enumerate(self._codecs) if isinstance(each, Fixed)
        )
        """Of the fields that are bytes, counted from the end."""

    def __call__(self, *values: Any) -> Any:
        """Return a value of the struct."""
        return self._type(*values)

    def pack(self, out: bytearray, value: Any) -> None:
        if len(self._codecs) == 1:
            self._codecs[0].pack(out, value)
        elif self._codecs:
            self.pack_fields(out, value)
        else:
            VOID.pack(out, value)

    def pack_fields(self, out: bytearray, values: Sequence[Any]) -> None:
        """Pack all fields, also if there is only one or none."""
        if len(values) != len(self._codecs):
            raise MalformedData(f"{self.name} has {len(self._codecs)} fields, not {len(values)}")
        if self._form is not None:
            out += self._packed_form(self._form, *values)
            return
        for codec, field in zip(self._codecs, values, strict=True):
            codec.pack(out, field)

    def encoder(self, prefix: bytes) -> Callable[[Sequence[Any]], bytes | bytearray]:
        """Return a function that packs all fields behind these bytes.

        It is made once, so that a call finds nothing out.
        """
        if not self._codecs:
            return lambda _: prefix
        if len(self._codecs) == 1 and isinstance(only := self._codecs[0], Opaque):
            encode = only.encode
            return lambda values: prefix + encode(values[0])
        if self._form is not None:
            form = struct.Struct(f">{len(prefix)}s{self._form.format[1:]}")
            return lambda values: self._packed_form(form, prefix, *values)

        def encode_all(values: Sequence[Any]) -> bytearray:
            out = bytearray(prefix)
            self.pack_fields(out, values)
            return out

        return encode_all

    def _packed_form(self, form: struct.Struct, *values: Any) -> bytes:
        """values: of all fields, perhaps behind a prefix."""
        for number, size in self._sizes:
            if len(values[number]) != size:
                raise MalformedData(f"{len(values[number])} bytes where {size} are needed")
        try:
            return form.pack(*values)
        except struct.error as error:
            raise MalformedData(f"{self.name} {values!r}: {error}") from None

    def unpack(self, reader: Reader) -> Any:
        if self._form is None and len(self._codecs) < 2:
            return self._codecs[0].unpack(reader) if self._codecs else None
        return self._made_of(self.unpack_fields(reader))

    def unpack_fields(self, reader: Reader) -> Sequence[Any]:
        """Return the values of all fields, also if there is only one or none."""
        if self._form is None:
            return [codec.unpack(reader) for codec in self._codecs]
        values = reader.fixed(self._form)
        for number in self._booleans:
            if values[number] > 1:
                raise MalformedData(f"{values[number]} is no boolean")
        return values


def _form_of(codecs: Sequence[Codec]) -> struct.Struct | None:
    """Return the form of several codecs of fixed size; None if there are others among them."""
    letters = [getattr(codec, "letter", "") for codec in codecs]
    if len(codecs) < 2 or not all(letters) or any(isinstance(each, Fixed) and each.size % 4 for each in codecs):
        return None
    return struct.Struct(">" + "".join(letters))


class Union:
    """A discriminated union: the value is a pair of the number and of what belongs to it."""

    def __init__(self, arms: Mapping[int, Codec], default: Codec | None = None) -> None:
        self.arms = arms
        self.default = default

    def pack(self, out: bytearray, value: tuple[int, Any]) -> None:
        number, content = value
        out += _U32.pack(number)
        self._arm(number).pack(out, content)

    def unpack(self, reader: Reader) -> tuple[int, Any]:
        number = reader.uint32()
        return number, self._arm(number).unpack(reader)

    def _arm(self, number: int) -> Codec:
        arm = self.arms.get(number, self.default)
        if arm is None:
            raise MalformedData(f"{number} is none of {sorted(self.arms)}")
        return arm
