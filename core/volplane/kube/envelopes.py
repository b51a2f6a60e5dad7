"""What the API server sends around objects: pages of lists, and lines of watches. The objects are left encoded."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from volplane.kube.metadata import Fields

__all__ = ["Page", "WatchEvent"]

T = TypeVar("T")


class ListMetadata(Fields):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Page(Fields, Generic[T]):
    """One page of a list. `items` are left encoded, so that one bad object is skipped alone."""

    metadata: ListMetadata = msgspec.field(default_factory=ListMetadata)
    items: list[msgspec.Raw] = msgspec.field(default_factory=list)


class WatchEvent(Fields):
    """One line of a watch; `object` is left encoded."""

    type: str
    object: msgspec.Raw
