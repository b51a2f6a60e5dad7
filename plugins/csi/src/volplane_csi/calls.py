"""The calls of the driver: within their time, with their secrets, counted, their errors translated."""

from __future__ import annotations

from threading import Lock
from typing import Any, Final

from volplane import Context, Unavailable, Unsupported
from volplane.cloud import measured
from volplane.csi.client import CallError, Channel, ask
from volplane.csi.wire import build
from volplane_csi.capabilities import Capabilities, read_capabilities, why_not
from volplane_csi.errors import DONE, Purpose, error_of, told
from volplane_csi.secrets import ControllerSecrets
from volplane_csi.settings import Settings

_SHARE: Final = 0.9
"""Of the time that a hook has: its answer comes before nobody waits for it any more."""


class Calls:
    """A driver behind its socket. Safe for threads."""

    def __init__(self, channel: Channel, settings: Settings) -> None:
        self.secrets: Final = ControllerSecrets(settings.controller_secret)
        self._channel = channel
        self._settings = settings
        self._lock = Lock()
        self._known: Capabilities | None = None

    def send(self, method: str, request: Any, context: Context) -> Any:
        """Call a method as it is. Raises CallError."""
        seconds = max(min(self._settings.timeout, context.timeout * _SHARE), 0.001)
        with measured("csi", method):
            return ask(self._channel, method, request, seconds)

    def make(self, method: str, request: Any, context: Context, purpose: Purpose, doing: str, **more: Any) -> Any:
        """Call a method; None: the driver says that there is nothing to do. Raises what `error_of` returns.

        more: for `error_of`.
        """
        try:
            return self.send(method, request, context)
        except CallError as error:
            if (purpose, error.code) in DONE:
                return None
            raise self.failed(error, doing, purpose, **more) from None

    def failed(self, error: CallError, doing: str, purpose: Purpose, **more: Any) -> Any:
        """Return the error of the contract."""
        if error.code == "UNIMPLEMENTED":
            # It was exchanged for a driver that can do less.
            self._known = None
        return error_of(error, doing, purpose, **more)

    # --- who it is ----------------------------------------------------------------------------------------------

    @property
    def latest(self) -> Capabilities | None:
        """What the driver could do when it was asked last; None = it was not."""
        return self._known

    def connect(self, context: Context) -> None:
        """Learn who answers and what it can do. Raises Unavailable if the options do not fit."""
        try:
            self._probe(context)
            found = read_capabilities(lambda method, request: self.send(method, request, context))
        except CallError as error:
            raise self.failed(error, f"reach the CSI driver at {self._settings.path}", Purpose.READ) from None
        if flaw := why_not(found, self._settings, context.driver):
            raise Unavailable(flaw)
        with self._lock:
            self._known = found

    def _probe(self, context: Context) -> None:
        try:
            answer = self.send("Probe", build("ProbeRequest"), context)
        except CallError as error:
            if error.code == "UNIMPLEMENTED":
                return
            if error.code == "FAILED_PRECONDITION":
                raise Unavailable(f"the CSI driver says that it cannot work: {told(error.message)}") from None
            raise
        if answer.HasField("ready") and not answer.ready.value:
            raise Unavailable("the CSI driver is not ready yet")

    def known(self, context: Context) -> Capabilities:
        """Return what the driver can do. Raises Unavailable if it cannot be asked now."""
        known = self._known
        if known is None:
            self.connect(context)
            known = self._known
        if known is None:
            raise Unavailable("the CSI driver was exchanged a moment ago")
        return known

    def require(self, capability: str, context: Context, what: str) -> Capabilities:
        """Return what the driver can do. Raises Unsupported without this. what: as in "grows no volumes"."""
        known = self.known(context)
        if not known.can(capability):
            raise Unsupported(f"CSI driver {known.name} {what} ({capability})", nothing_done=True)
        return known

    def close(self) -> None:
        """End the connection."""
        self._channel.close()
