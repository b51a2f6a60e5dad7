"""From the bytes of a request to those of its response, or an error that is safe to send. Knows nothing of gRPC."""

from __future__ import annotations

import hashlib
import logging
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from volplane._messages import one_line, shortened
from volplane.controller import logs
from volplane.csi.bridge import Bridge
from volplane.csi.codes import CsiError, code_of
from volplane.csi.controller import Volumes as Controller
from volplane.csi.controller import capabilities_of
from volplane.csi.groups import GROUP_HOOKS, Groups
from volplane.csi.identity import Identity
from volplane.csi.node import Node
from volplane.csi.snapshots import Snapshots
from volplane.csi.volumes import Volumes
from volplane.csi.wire import DecodeError, build, message, without_secrets
from volplane.errors import BackendError
from volplane.secret import redacted

log = logging.getLogger(__name__)

MARGIN: Final = 0.2
"""Seconds before a caller's deadline at which it is answered: a call without an answer tells it nothing."""
LONGEST_CALL: Final = 600.0
"""Seconds that a caller without a deadline waits."""
LARGEST_MESSAGE: Final = 4 << 20
"""Bytes of a request, and of a response that callers take. gRPC itself gives a code that sidecars take for final."""

Handler = Callable[[Any, bytes, float], Awaitable[Any]]


class Dispatch:
    """The methods of a bridge."""

    def __init__(self, bridge: Bridge, node: Node | None = None, *, controls: bool = True) -> None:
        """node: the service Node. controls: whether there is the service Controller."""
        self._bridge = bridge
        identity, volumes, controller, snapshots = (
            Identity(bridge, controls=controls),
            Volumes(bridge),
            Controller(bridge),
            Snapshots(bridge),
        )
        self._always: Mapping[str, Handler] = {
            "GetPluginInfo": lambda _request, _digest, _seconds: identity.plugin_info(),
            "GetPluginCapabilities": lambda _request, _digest, _seconds: identity.capabilities(),
            "Probe": lambda _request, _digest, _seconds: identity.probe(),
        }
        self._handlers: Mapping[str, Handler] = {}
        if controls:
            self._serve_controller(volumes, controller, snapshots)
        if node is not None:
            self._serve_node(node)

    def _serve_controller(self, volumes: Volumes, controller: Controller, snapshots: Snapshots) -> None:
        self._always = {**self._always, "ControllerGetCapabilities": self._capabilities}
        self._handlers = {
            **self._handlers,
            "CreateVolume": volumes.create,
            "DeleteVolume": volumes.delete,
            "ControllerExpandVolume": controller.expand,
            "ControllerModifyVolume": controller.modify,
            "ValidateVolumeCapabilities": lambda request, _digest, _seconds: controller.validate(request),
            "ControllerGetVolume": lambda request, _digest, _seconds: controller.get(request),
            "ListVolumes": lambda request, _digest, _seconds: controller.list(request),
            "GetCapacity": lambda request, _digest, _seconds: controller.capacity(request),
            "CreateSnapshot": snapshots.create,
            "DeleteSnapshot": snapshots.delete,
            "ListSnapshots": lambda request, _digest, _seconds: snapshots.list(request),
            "GetSnapshot": lambda request, _digest, _seconds: snapshots.get(request),
        }
        if self._bridge.view.info.attach_required:
            attaching = {
                "ControllerPublishVolume": controller.publish,
                "ControllerUnpublishVolume": controller.unpublish,
            }
            self._handlers = {**self._handlers, **attaching}
        if self._bridge.supports(*GROUP_HOOKS):
            groups = Groups(self._bridge)
            self._always = {
                **self._always,
                "GroupControllerGetCapabilities": lambda _request, _digest, _seconds: groups.capabilities(),
            }
            self._handlers = {
                **self._handlers,
                "CreateVolumeGroupSnapshot": groups.create,
                "DeleteVolumeGroupSnapshot": groups.delete,
                "GetVolumeGroupSnapshot": lambda request, _digest, _seconds: groups.get(request),
            }

    def _serve_node(self, node: Node) -> None:
        self._always = {
            **self._always,
            "NodeGetInfo": lambda _request, _digest, _seconds: node.info(),
            "NodeGetCapabilities": lambda _request, _digest, _seconds: node.capabilities(),
            # Pods end also while the storage is out of order.
            "NodeUnpublishVolume": lambda request, digest, seconds: node.unpublish(request, digest, before(seconds)),
        }
        self._handlers = {
            **self._handlers,
            "NodePublishVolume": node.publish,
            "NodeGetVolumeStats": node.stats,
            "NodeExpandVolume": node.expand,
        }

    @property
    def methods(self) -> frozenset[str]:
        """The methods that are served; callers get UNIMPLEMENTED for any other."""
        return frozenset({*self._always, *self._handlers})

    async def _capabilities(self, _request: Any, _digest: bytes, _seconds: float) -> Any:
        rpc = message("ControllerServiceCapability.RPC")
        found = [{"rpc": rpc(type=each)} for each in capabilities_of(self._bridge)]
        return build("ControllerGetCapabilitiesResponse", capabilities=found)

    async def call(self, method: str, content: bytes, seconds: float) -> bytes:
        """Return the response of a method, in a task of its own. seconds: until the caller gives up.

        Raises CsiError, and nothing else.
        """
        logs.bind(method=method)
        try:
            return await self._call(method, content, min(seconds, LONGEST_CALL))
        except CsiError as error:
            # A message of gRPC is a header, which has one line.
            raise CsiError(error.code, shortened(redacted(one_line(error.message)))) from None
        except BackendError as error:
            code = code_of(error, method, nothing_there=False)
            raise CsiError(code, shortened(redacted(one_line(error)))) from None
        except Exception as error:  # noqa: BLE001 - it must not reach gRPC
            # A code of gRPC's own choice would be taken for final. The text may hold what is in the request.
            frame = traceback.extract_tb(error.__traceback__)[-1]
            log.error("%s failed: %s in %s", method, type(error).__name__, frame.name)  # noqa: TRY400
            raise CsiError("ABORTED", f"{method} failed by an error of the bridge; its log has more") from None

    async def _call(self, method: str, content: bytes, seconds: float) -> bytes:
        if len(content) > LARGEST_MESSAGE:
            raise CsiError("ABORTED", f"the request has {len(content)} bytes, at most {LARGEST_MESSAGE} are read")
        try:
            request = without_secrets(message(f"{method}Request").FromString(content))
        except DecodeError:
            raise CsiError("ABORTED", f"the request is no {method}Request") from None
        if (always := self._always.get(method)) is not None:
            response = await always(request, b"", seconds)
        else:
            self._bridge.require_ready()
            digest = hashlib.sha256(method.encode() + b"\0" + request.SerializeToString(deterministic=True)).digest()
            response = await self._handlers[method](request, digest, before(seconds))
        answer: bytes = response.SerializeToString()
        if len(answer) > LARGEST_MESSAGE:
            raise CsiError("ABORTED", f"the response has {len(answer)} bytes, callers take {LARGEST_MESSAGE}")
        return answer


def before(seconds: float) -> float:
    """Return the seconds after which a caller is answered that waits so long."""
    return max(seconds - MARGIN, seconds / 2)
