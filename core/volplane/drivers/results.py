"""What each hook may return, and the check of what it did return. Third-party code is checked at run time."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Final, get_args

from volplane import requests
from volplane.assets import Asset, AssetPage, InProgress, ListedAsset, Ownership, VolumeSource
from volplane.requests import HookRequest

__all__ = ["LONGEST_HANDLE", "LONGEST_STATE", "RESULTS", "result_flaw"]

LONGEST_HANDLE: Final = 1024
LONGEST_STATE: Final = 4096

RESULTS: Final[Mapping[str, tuple[type, ...]]] = {
    request.hook: get_args(result) or (result,)
    for request in map(vars(requests).get, requests.__all__)
    if isinstance(request, type) and issubclass(request, HookRequest) and request is not HookRequest
    for result in get_args(vars(request)["__orig_bases__"][0])
}
"""Hook -> the types that it may return, as its request names them."""


def result_flaw(hook: str, result: object) -> str | None:
    """What is wrong with a result of `hook`, as the end of a sentence about it; None = nothing."""
    expected = RESULTS[hook]
    names = " or ".join(t.__name__ for t in expected)
    if result is None:
        return f"returned None, expected {names}: a return is missing"
    if any(result is t for t in expected):
        return f"returned the class {names} itself, expected an instance of it"
    if not any(isinstance(result, t) for t in expected):
        return f"returned {type(result).__name__}, expected {names}"
    return _content_flaw(result)


def _content_flaw(result: object) -> str | None:
    if isinstance(result, Asset):
        return _asset_flaw(result)
    if isinstance(result, AssetPage):
        return _page_flaw(result)
    return _in_progress_flaw(result) if isinstance(result, InProgress) else None


def _asset_flaw(asset: Asset) -> str | None:
    if not isinstance(asset.handle, str) or not 0 < len(asset.handle) <= LONGEST_HANDLE:
        return f"returned an Asset with handle {str(asset.handle)[:60]!r}, expected 1 to {LONGEST_HANDLE} characters"
    if isinstance(asset.capacity_bytes, bool) or not isinstance(asset.capacity_bytes, int) or asset.capacity_bytes < 0:
        return f"returned an Asset with capacity_bytes {asset.capacity_bytes!r}, expected whole bytes"
    source: object = asset.source
    if not isinstance(source, VolumeSource):
        return f"returned an Asset with a source of type {type(source).__name__}, expected VolumeSource"
    return _unwritable(asset)


def _unwritable(asset: Asset) -> str | None:
    """Why the asset cannot be written into a volume as JSON; None: it can."""
    try:
        parts = [asset.handle, asset.source.kind, dict(asset.source.fields), dict(asset.attributes)]
        json.dumps([*parts, list(asset.mount_options), [dict(segment) for segment in asset.node_affinity]]).encode()
        # Escapes hide bytes of file names that are no UTF-8.
        json.dumps(parts, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        return f"returned an Asset that cannot be written as JSON: {error}"
    return None


def _page_flaw(page: AssetPage) -> str | None:
    following: object = page.next_page
    if following is not None and not (isinstance(following, str) and following):
        return f"returned an AssetPage with next_page {following!r}, expected text, or None on the last page"
    for asset in page.assets:
        listed: object = asset
        if not isinstance(listed, ListedAsset):
            return f"returned an AssetPage with an entry of type {type(listed).__name__}, expected ListedAsset"
        if not isinstance(asset.handle, str) or not 0 < len(asset.handle) <= LONGEST_HANDLE:
            return f"listed an asset with handle {str(asset.handle)[:60]!r}, expected 1 to {LONGEST_HANDLE} characters"
        owner: object = asset.owner
        if owner is not None and not isinstance(owner, Ownership):
            return f"listed {asset.handle} with an owner of type {type(owner).__name__}, expected Ownership or None"
    return None


def _in_progress_flaw(result: InProgress) -> str | None:
    after = result.retry_after
    if isinstance(after, bool) or not isinstance(after, int | float) or not math.isfinite(after) or after < 0:
        return f"returned InProgress with retry_after {after!r}, expected seconds"
    try:
        size = len(json.dumps(dict(result.state), allow_nan=False))
    except (TypeError, ValueError) as error:
        return f"returned InProgress with a state that is not JSON: {error}"
    if size > LONGEST_STATE:
        return f"returned InProgress with a state of {size} bytes, at most {LONGEST_STATE} are kept"
    return None
