"""The service Identity: who this is, what it can do, whether it is ready."""

from __future__ import annotations

from typing import Any

from volplane.csi.bridge import Bridge
from volplane.csi.codes import CsiError
from volplane.csi.groups import GROUP_HOOKS
from volplane.csi.wire import build, message


class Identity:
    """Answers from what is known: no hook is called."""

    def __init__(self, bridge: Bridge, *, controls: bool = True) -> None:
        """controls: whether there is the service Controller."""
        self._bridge = bridge
        self._controls = controls

    async def plugin_info(self) -> Any:
        return build(
            "GetPluginInfoResponse", name=self._bridge.view.name, vendor_version=self._bridge.view.info.version
        )

    async def capabilities(self) -> Any:
        service, growth = message("PluginCapability.Service"), message("PluginCapability.VolumeExpansion")
        capabilities = [{"service": service(type="CONTROLLER_SERVICE")}] if self._controls else []
        if self._controls and self._bridge.supports(*GROUP_HOOKS):
            capabilities.append({"service": service(type="GROUP_CONTROLLER_SERVICE")})
        if self._bridge.keys:
            capabilities.append({"service": service(type="VOLUME_ACCESSIBILITY_CONSTRAINTS")})
        if self._bridge.supports("expand"):
            capabilities.append({"volume_expansion": growth(type="ONLINE")})
        return build("GetPluginCapabilitiesResponse", capabilities=capabilities)

    async def probe(self) -> Any:
        """Answer whether the driver has started. A storage that is out of order is no reason to end this process, which
        is what becomes of an error; threads that hang for ever are.
        """
        drivers, name = self._bridge.drivers, self._bridge.view.name
        if drivers.all_hang:
            raise CsiError("FAILED_PRECONDITION", "; ".join(each.error for each in drivers.status()))
        return build("ProbeResponse", ready={"value": drivers.get(name) is not None})
