"""Makes the driver known to the kubelet of its machine, as node-driver-registrar does."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any, Final

from volplane.csi.codes import CsiError
from volplane.csi.wire import DecodeError, build, message

log = logging.getLogger(__name__)

SERVICES: Final = {"pluginregistration.Registration": ("GetInfo", "NotifyRegistrationStatus")}
_REQUESTS: Final = {"GetInfo": "InfoRequest", "NotifyRegistrationStatus": "RegistrationStatus"}
_VERSIONS: Final = ("1.0.0",)
"""Of CSI, as kubelets count them."""


def registration_path(kubelet_dir: Path, driver: str) -> Path:
    """Return the socket that a kubelet looks for. Removing it takes the driver from the node."""
    return kubelet_dir / "plugins_registry" / f"{driver}-reg.sock"


class Registration:
    """Answers the kubelet, which asks after each start of its own or of the driver."""

    methods = frozenset(_REQUESTS)

    def __init__(self, driver: str, endpoint: Path, refused: asyncio.Future[str]) -> None:
        """refused: gets why the kubelet does not take the driver."""
        self._driver = driver
        self._endpoint = endpoint
        self._refused = refused

    async def call(self, method: str, content: bytes, _seconds: float) -> bytes:
        """Return the response of a method. Raises CsiError."""
        try:
            request = message(_REQUESTS[method]).FromString(content)
        except DecodeError:
            raise CsiError("INVALID_ARGUMENT", f"the request is no {_REQUESTS[method]}") from None
        response: bytes = (self._info() if method == "GetInfo" else self._heard(request)).SerializeToString()
        return response

    def _info(self) -> Any:
        endpoint = str(self._endpoint)
        return build("PluginInfo", type="CSIPlugin", name=self._driver, endpoint=endpoint, supported_versions=_VERSIONS)

    def _heard(self, request: Any) -> Any:
        if request.plugin_registered:
            log.info("the kubelet has registered driver %s", self._driver)
        elif not self._refused.done():
            self._refused.set_result(request.error)
        return build("RegistrationStatusResponse")
