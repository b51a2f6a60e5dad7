"""The Accept header: an object as it is, as a `Table`, or only its metadata."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final, Literal

from volplane_embedded.apiserver.errors import Failure

__all__ = ["PLAIN", "Form", "negotiate", "parameters"]

_META_GROUP: Final = "meta.k8s.io"
_KINDS: Final = ("Table", "PartialObjectMetadata", "PartialObjectMetadataList")
_MEDIA_TYPES: Final = frozenset({"application/json", "application/*", "*/*", ""})


@dataclass(frozen=True, slots=True)
class Form:
    """How objects are shown; `version` is that of group meta.k8s.io."""

    shape: Literal["object", "table", "metadata"]
    version: str = "v1"


PLAIN: Final = Form("object")


def parameters(choice: str) -> tuple[str, dict[str, str]]:
    """Media type and parameters of one choice of an Accept header."""
    media_type, *rest = (part.strip() for part in choice.split(";"))
    pairs = (part.partition("=") for part in rest)
    return media_type.lower(), {name.strip(): value.strip() for name, _, value in pairs}


@functools.lru_cache(maxsize=256)
def negotiate(accept: str) -> Form:
    """The first choice that can be met. Raises Failure (406) where none can (protobuf alone, for example)."""
    if not accept:
        return PLAIN
    for choice in accept.split(","):
        media_type, wanted = parameters(choice)
        if media_type not in _MEDIA_TYPES:
            continue
        kind = wanted.get("as")
        if kind is None:
            return PLAIN
        version = wanted.get("v", "v1")
        if kind in _KINDS and wanted.get("g", _META_GROUP) == _META_GROUP and version in ("v1", "v1beta1"):
            return Form("table" if kind == "Table" else "metadata", version)
    offered = "application/json, application/json;as=Table, application/json;as=PartialObjectMetadata"
    message = f"only the following media types are accepted: {offered}"
    raise Failure(406, "NotAcceptable", message)
