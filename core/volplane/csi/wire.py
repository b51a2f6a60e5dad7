"""Classes of the messages, made from the contract in a pool of descriptors of its own.

In the usual pool another package of the process that knows CSI would be a clash of symbols.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2, wrappers_pb2
from google.protobuf.message import DecodeError

from volplane.csi.contract import MESSAGES, PACKAGE, REGISTRATION, SERVICES

__all__ = ["DecodeError", "build", "message", "method_path", "without_secrets"]

_Field: Final = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final = {
    "string": _Field.TYPE_STRING,
    "bool": _Field.TYPE_BOOL,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "bytes": _Field.TYPE_BYTES,
}
_FILE: Final = "csi.proto"


@cache
def message(name: str) -> Any:
    """Return the class of a message, such as `CreateVolumeRequest` or `PluginCapability.Service`."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"{PACKAGE}.{name}"))


def build(kind: str, /, **fields: Any) -> Any:
    """Return a message with these fields; None leaves a field out."""
    return message(kind)(**{key: value for key, value in fields.items() if value is not None})


def method_path(method: str) -> str:
    """Return the path of a method, for channels."""
    service = next(name for name, methods in SERVICES.items() if method in methods)
    return f"/{PACKAGE}.{service}/{method}"


def without_secrets(request: Any) -> Any:
    """Empty the secret fields of a request: no hook takes any. Returns the request."""
    for name in _secrets().get(request.DESCRIPTOR.name, ()):
        request.ClearField(name)
    return request


# --- from the contract to descriptors ----------------------------------------------------------------------------


def _blocks() -> Iterator[tuple[str, bool, list[list[str]]]]:
    """Yield name, whether it is an enumeration, and the words of each field."""
    lines = [line for line in (MESSAGES + REGISTRATION).splitlines() if line]
    heads = [number for number, line in enumerate(lines) if not line.startswith(" ")]
    for begin, end in zip(heads, [*heads[1:], len(lines)], strict=True):
        *kind, name = lines[begin].split()
        yield name, kind == ["enum"], [line.split() for line in lines[begin + 1 : end]]


@cache
def _secrets() -> dict[str, tuple[str, ...]]:
    return {name: tuple(words[1] for words in fields if "secret" in words[3:]) for name, _, fields in _blocks()}


@cache
def _pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    for known in (wrappers_pb2, timestamp_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    file = descriptor_pb2.FileDescriptorProto(name=_FILE, package=PACKAGE, syntax="proto3")
    file.dependency.extend([wrappers_pb2.DESCRIPTOR.name, timestamp_pb2.DESCRIPTOR.name])
    blocks = list(_blocks())
    kinds = {name: of_values for name, of_values, _ in blocks}
    made: dict[str, Any] = {"": file}
    for name, of_values, fields in blocks:
        above, _, own = name.rpartition(".")
        scope = made[above]
        if of_values:
            values = scope.enum_type.add(name=own)
            for number, value in fields:
                values.value.add(name=value, number=int(number))
            continue
        nested = scope.nested_type if above else scope.message_type
        made[name] = nested.add(name=own)
        for number, field, type_, *more in fields:
            added = made[name].field.add(name=field, number=int(number))
            _type_field(made[name], added, type_, name, kinds)
            if "of" in more:
                added.oneof_index = _oneof(made[name], more[more.index("of") + 1])
    pool.Add(file)
    return pool


def _type_field(owner: Any, field: Any, type_: str, scope: str, kinds: Mapping[str, bool]) -> None:
    plain = type_.removesuffix("[]")
    field.label = _Field.LABEL_REPEATED if plain != type_ or plain == "map" else _Field.LABEL_OPTIONAL
    if plain in _SCALARS:
        field.type = _SCALARS[plain]
    elif plain == "map":
        entry = owner.nested_type.add(name="".join(part.title() for part in field.name.split("_")) + "Entry")
        entry.options.map_entry = True
        for number, part in ((1, "key"), (2, "value")):
            entry.field.add(name=part, number=number, label=_Field.LABEL_OPTIONAL, type=_Field.TYPE_STRING)
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{PACKAGE}.{scope}.{entry.name}"
    elif plain.startswith("."):
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".google.protobuf{plain}"
    else:
        found = _resolved(plain, scope, kinds)
        field.type = _Field.TYPE_ENUM if kinds[found] else _Field.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{found}"


def _oneof(owner: Any, name: str) -> int:
    known = [each.name for each in owner.oneof_decl]
    if name not in known:
        owner.oneof_decl.add(name=name)
        known.append(name)
    return known.index(name)


def _resolved(name: str, scope: str, kinds: Mapping[str, bool]) -> str:
    """Return the full name of a type as protocol buffers look for it: in the innermost scope first."""
    while True:
        full = f"{scope}.{name}" if scope else name
        if full in kinds:
            return full
        if not scope:
            raise LookupError(f"the contract has no type {name}")
        scope = scope.rpartition(".")[0]
