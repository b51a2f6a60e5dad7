"""Decoding of request bodies, with the refusals of a stock server."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec
import yaml

from volplane_embedded.apiserver.errors import Cause, StatusError, bad_request, invalid
from volplane_embedded.apiserver.protobuf import MEDIA_TYPE, decode_protobuf
from volplane_embedded.apiserver.requests import parse_media_type
from volplane_embedded.apiserver.resources import Json, Resource
from volplane_embedded.apiserver.schema import check

_YamlLoader: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml where PyYAML was built with it: it is ten times as fast."""
_YAML_DEPTH: Final = 100
_BASE_60: Final = re.compile(r"[-+]?[0-9][0-9_]*(?::[0-9]{1,2}){8,}(?:\.[0-9_]*)?")
_YAML_TYPES: Final = frozenset({"application/yaml", "application/x-yaml", "text/yaml"})
_JSON_TYPES: Final = frozenset({"", "application/json", "*/*", "text/plain", "application/x-www-form-urlencoded"})

_decode = msgspec.json.Decoder().decode


def unsupported_media_type() -> StatusError:
    return StatusError(415, "UnsupportedMediaType", "415: Unsupported Media Type")


def decode(body: bytes, content_type: str) -> Any:
    """Decode a body: JSON, or YAML or protobuf by its content type. Raises StatusError (400, 415)."""
    media_type = parse_media_type(content_type)[0]
    if not body and not media_type:
        offered = "application/json, application/yaml, application/vnd.kubernetes.protobuf"
        why = f"the body of the request was in an unknown format - accepted media types include: {offered}"
        raise StatusError(415, "UnsupportedMediaType", why)
    if media_type == MEDIA_TYPE:
        return _decode_protobuf(body)
    if media_type in _YAML_TYPES:
        return _decode_yaml(body)
    if media_type not in _JSON_TYPES:
        raise unsupported_media_type()
    try:
        return _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as why:
        reason = "unexpected end of JSON input" if not body.strip() else str(why)
        raise bad_request(f"couldn't get version/kind; json parse error: {reason}") from None


def _decode_protobuf(body: bytes) -> Json:
    value = decode_protobuf(body)
    if value is None:
        raise unsupported_media_type()
    return value


def _refuse_tangled(body: bytes) -> None:
    """Refuse YAML with aliases, by which a few bytes become gigabytes, and YAML that is nested too deep.

    A long number in base 60 is refused too: to read it takes a time that grows with the square of its length.
    """
    depth = 0
    for event in yaml.parse(body, Loader=_YamlLoader):
        if isinstance(event, yaml.ScalarEvent) and event.implicit[0] and _BASE_60.fullmatch(event.value):
            raise yaml.YAMLError("numbers in base 60 are not accepted: put it in quotes")
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError(f"aliases are not accepted (*{event.anchor})")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _YAML_DEPTH:
            raise yaml.YAMLError(f"it is nested more than {_YAML_DEPTH} deep")


def _decode_yaml(body: bytes) -> Any:
    try:
        _refuse_tangled(body)
        value = yaml.load(body, Loader=_YamlLoader)  # noqa: S506 - a safe loader
        # Through JSON, so that dates and other YAML scalars become what kubectl sends.
        return _decode(msgspec.json.encode(value))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, msgspec.MsgspecError, TypeError, ValueError) as why:
        raise bad_request(f"error converting YAML to JSON: {why}") from None


def decode_object(
    resource: Resource, body: bytes, content_type: str, level: str, also: Collection[str] = ()
) -> tuple[Json, Sequence[str]]:
    """Decode and check an object of the resource. Returns it without kind and apiVersion, and warnings.

    also: other values of apiVersion that are accepted. Raises StatusError (400, 415).
    """
    try:
        value = decode(body, content_type)
    except StatusError as why:
        if why.code == 400:
            unrecognized = f"the object provided is unrecognized (must be of type {resource.kind})"
            raise bad_request(f"{unrecognized}: {why.message}") from None
        raise
    value = {} if value is None else value
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise bad_request(f"couldn't get version/kind; json parse error: cannot unmarshal {kind} into an object")
    if value.get("apiVersion") in also:
        del value["apiVersion"]
    check_kind(resource, value)
    is_json = parse_media_type(content_type)[0] in _JSON_TYPES
    return value, check_fields(resource, value, level, body if is_json else None)


def check_kind(resource: Resource, value: Json, *, patched: bool = False) -> None:
    """Remove kind and apiVersion from an object. Raises StatusError (400, 422) if they are not those of the resource.

    patched: whether the object is the result of a patch.
    """
    if resource.custom:
        _check_custom_kind(resource, value, patched=patched)
        return
    wanted = resource.kind
    found = value.pop("kind", None) or wanted
    version = value.pop("apiVersion", None) or resource.api_version
    if found != wanted:
        raise bad_request(f'{found} in version "{version}" cannot be handled as a {wanted}: unknown conversion')
    if version != resource.api_version:
        why = f'no kind "{wanted}" is registered for version "{version}"'
        raise bad_request(f'{wanted} in version "{version}" cannot be handled as a {wanted}: {why}')


def _check_custom_kind(resource: Resource, value: Json, *, patched: bool) -> None:
    """Do so for a custom kind: the body has to say its kind, and a wrong one is found with the other faults."""
    found, version = value.pop("kind", None), value.pop("apiVersion", None)
    if not found or not isinstance(found, str):
        raise bad_request(f"the object provided is unrecognized (must be of type {resource.kind}): its kind is missing")
    if version != resource.api_version and not patched:
        why = f"the API version in the data ({version or ''}) does not match the expected API version"
        raise bad_request(f"{why} ({resource.api_version})")
    causes = []
    if found != resource.kind:
        causes.append(Cause.invalid("kind", found, f"must be {resource.kind}"))
    if version != resource.api_version:
        causes.append(Cause.invalid("apiVersion", version or "", f"must be {resource.api_version}"))
    if causes:
        group, meta = str(version or "").rpartition("/")[0], value.get("metadata")
        raise invalid(found, group, str(meta.get("name", "")) if isinstance(meta, dict) else "", causes)


def check_fields(resource: Resource, obj: Json, level: str, body: bytes | None) -> Sequence[str]:
    """Check the types of an object in place and remove its unknown fields. Returns the warnings for the client.

    level: fieldValidation. body: the JSON text, searched for duplicate fields; None = no search. Raises StatusError
    (400) for a wrong type, and under Strict for an unknown or duplicate field.
    """
    report = check(resource, obj, None if level == "Ignore" else body)
    if report.error or (report.problems and level == "Strict"):
        raise bad_request(report.refusal(resource))
    return () if level == "Ignore" else report.problems
