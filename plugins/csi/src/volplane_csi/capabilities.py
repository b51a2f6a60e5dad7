"""What the driver says of itself, and whether the options fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from volplane.csi.client import CallError
from volplane.csi.wire import build
from volplane_csi.errors import told
from volplane_csi.settings import Settings

_MOST: Final = 1000
"""Entries of a list of capabilities that are read."""
TOPOLOGY: Final = "VOLUME_ACCESSIBILITY_CONSTRAINTS"

Ask = Callable[[str, Any], Any]
"""Calls a method with a request, and returns the response. Raises CallError."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Who the driver is and what it can do. The names are those of CSI."""

    name: str
    version: str
    plugin: frozenset[str]
    """PluginCapability: services, and ONLINE or OFFLINE for the growth of volumes."""
    controller: frozenset[str]
    """ControllerServiceCapability, and GroupControllerServiceCapability."""
    node: frozenset[str] = frozenset()
    """NodeServiceCapability, asked for only where the controller does not grow volumes."""

    def can(self, name: str) -> bool:
        """Return whether the services of the controller have this capability."""
        return name in self.controller


def read_capabilities(ask: Ask) -> Capabilities:
    """Ask the driver. Raises CallError."""
    info = ask("GetPluginInfo", build("GetPluginInfoRequest"))
    plugin = ask("GetPluginCapabilities", build("GetPluginCapabilitiesRequest")).capabilities
    of_plugin = {_name(each.service, "Type", each.service.type) for each in plugin[:_MOST] if each.HasField("service")}
    of_plugin |= {
        _name(each.volume_expansion, "Type", each.volume_expansion.type)
        for each in plugin[:_MOST]
        if each.HasField("volume_expansion")
    }
    controller: frozenset[str] = frozenset()
    if "CONTROLLER_SERVICE" in of_plugin:
        found = ask("ControllerGetCapabilities", build("ControllerGetCapabilitiesRequest")).capabilities
        controller = frozenset(_name(each.rpc, "Type", each.rpc.type) for each in found[:_MOST])
    if "GROUP_CONTROLLER_SERVICE" in of_plugin:
        found = ask("GroupControllerGetCapabilities", build("GroupControllerGetCapabilitiesRequest")).capabilities
        controller |= {_name(each.rpc, "Type", each.rpc.type) for each in found[:_MOST]}
    node: frozenset[str] = frozenset()
    if "EXPAND_VOLUME" not in controller and {"ONLINE", "OFFLINE"} & of_plugin:
        try:
            found = ask("NodeGetCapabilities", build("NodeGetCapabilitiesRequest")).capabilities
            node = frozenset(_name(each.rpc, "Type", each.rpc.type) for each in found[:_MOST])
        except CallError as error:
            if error.code != "UNIMPLEMENTED":
                raise
    return Capabilities(info.name, told(info.vendor_version)[:128], frozenset(of_plugin), controller, node)


def _name(message: Any, enum: str, number: int) -> str:
    value = message.DESCRIPTOR.enum_types_by_name[enum].values_by_number.get(number)
    return value.name if value is not None else str(number)


def why_not(found: Capabilities, settings: Settings, driver: str) -> str:
    """Explain why the driver cannot be served with these options; "" = it can."""
    if found.name != settings.csi_driver(driver):
        return (
            f"socket {settings.path} is of CSI driver {found.name[:64]!r}, expected was "
            f"{settings.csi_driver(driver)!r}: name the driver so, set csi_driver_name, or correct the socket"
        )
    if "CONTROLLER_SERVICE" not in found.plugin:
        return f"socket {settings.path} has no controller service: give the socket of the driver's controller"
    if settings.attach and not found.can("PUBLISH_UNPUBLISH_VOLUME"):
        return "the driver attaches no volumes (PUBLISH_UNPUBLISH_VOLUME): set the option attach to false"
    if settings.topology_keys and TOPOLOGY not in found.plugin:
        return f"the driver has no topology ({TOPOLOGY}): remove the option topology_keys"
    if TOPOLOGY in found.plugin and not settings.topology_keys:
        return (
            f"the driver has topology ({TOPOLOGY}): set the option topology_keys to the topologyKeys that it has in "
            "the CSINode objects"
        )
    return ""
