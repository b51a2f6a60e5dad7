"""The exact request of a call that makes something: kept with the claim before it is sent, and sent again as it is.

A driver compares a repeated request with the first one. What the cluster would ask for now may differ: a class that
was made again, nodes that come and go.
"""

from __future__ import annotations

import base64
import binascii
import json
import secrets
import threading
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from volplane import BackendError, InvalidArgument
from volplane.cloud import BoundedCache

__all__ = ["LONGEST_STATE", "Attempts", "SavedRequest"]

LONGEST_STATE: Final = 4096
"""Bytes of JSON that are kept."""
_LARGEST: Final = 1 << 20
"""Bytes of a request that is read back."""
_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRequest:
    """A request without its secrets, and what else of its class the result needs."""

    content: bytes
    """The message."""
    driver_version: str
    """Of the driver when the request was first made."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """JSON values."""
    mark: str = field(default_factory=lambda: secrets.token_hex(6))
    """Of this request alone."""

    def state(self) -> dict[str, Any]:
        """Return it as `InProgress.state`."""
        state: dict[str, Any] = {"v": _VERSION, "mark": self.mark, "version": self.driver_version, **self.about}
        small = zlib.compress(self.content, 9)
        key, content = ("z", small) if len(small) < len(self.content) else ("r", self.content)
        return {**state, key: base64.b64encode(content).decode()}

    def fits(self) -> bool:
        """Return whether it can be kept."""
        return len(json.dumps(self.state())) <= LONGEST_STATE

    def require_fits(self) -> None:
        """Raise InvalidArgument unless it can be kept."""
        if not self.fits():
            size = len(json.dumps(self.state()))
            raise InvalidArgument(
                f"the request for the CSI driver takes {size} bytes, at most {LONGEST_STATE} can be kept with the "
                "claim: shorten the parameters of the class",
                nothing_done=True,
            )

    @classmethod
    def read(cls, state: Mapping[str, Any]) -> SavedRequest:
        """Return what `state` has written. Raises BackendError."""
        known = state.get("v") == _VERSION
        try:
            if known and "z" in state:
                content = zlib.decompressobj().decompress(base64.b64decode(state["z"], validate=True), _LARGEST)
            else:
                content = base64.b64decode(state["r"] if known else "", validate=True)
            if not content:
                state = {}
            about = {key: value for key, value in state.items() if key not in ("v", "mark", "version", "r", "z")}
            return cls(content=content, driver_version=str(state["version"]), about=about, mark=str(state["mark"]))
        except (KeyError, TypeError, ValueError, binascii.Error, zlib.error):
            raise BackendError(
                "the saved request of an earlier version of volplane-csi cannot be read; go back to that version until "
                "this is done"
            ) from None


class Attempts:
    """Which requests of this process have certainly left nothing so far. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nothing: BoundedCache[str, bool] = BoundedCache()

    def saved(self, request: SavedRequest) -> None:
        """Note a new request, which was never sent."""
        self._nothing.put(request.mark, True)

    def begin(self, request: SavedRequest) -> bool:
        """Note that it is sent; return whether all that came before has left nothing."""
        with self._lock:
            nothing = self._nothing.get(request.mark) is True
            self._nothing.put(request.mark, False)
            return nothing

    def left_nothing(self, request: SavedRequest) -> None:
        """Note that nothing came of it after all."""
        self._nothing.put(request.mark, True)
