"""Read the VolumeAttributesClass of a claim before its asset is made, and apply it before the volume is created.

The volume names the class from its creation, so it must have the attributes by then.
Source: external-provisioner, which passes them to CreateVolume as mutable parameters; KEP-3751.
"""

from __future__ import annotations

from volplane.assets import Asset, InProgress
from volplane.drivers.view import DriverView
from volplane.errors import ApiNotFound, BackendError, InvalidArgument, NotFound, OutcomeUnknown
from volplane.intents.operation import OperationDeps
from volplane.intents.requests import asset_identity
from volplane.kube.kinds import VOLUME_ATTRIBUTES_CLASSES
from volplane.kube.objects import Claim, VolumeAttributesClass
from volplane.requests import ModifyRequest, ProvisionRequest

__all__ = ["apply_attributes", "read_attributes"]


async def read_attributes(name: str, driver: DriverView, deps: OperationDeps) -> VolumeAttributesClass:
    """Return the class of this name. Raises NotFound or InvalidArgument if it cannot be applied."""
    try:
        attributes = await deps.client.get(VOLUME_ATTRIBUTES_CLASSES, name)
    except ApiNotFound:
        raise NotFound(f'volumeattributesclass.storage.k8s.io "{name}" not found') from None
    if attributes.driver_name not in (driver.name, driver.info.csi_driver_name):
        raise InvalidArgument(
            f'VolumeAttributesClass "{name}" is of driver "{attributes.driver_name}", '
            f'the storage class of "{driver.info.csi_driver_name}"'
        )
    return attributes


async def apply_attributes(
    attributes: VolumeAttributesClass,
    asset: Asset,
    claim: Claim,
    *,
    driver: DriverView,
    request: ProvisionRequest,
    deps: OperationDeps,
) -> Asset | InProgress:
    """Give the asset that `request` made the attributes. `InProgress` carries the state of `provision`, which is called
    again first. Raises OutcomeUnknown: the asset is there, whatever the class of the backend's error proves.
    """
    change = ModifyRequest(
        context=request.context,
        volume=asset_identity(asset, claim, request.owner),
        parameters=dict(attributes.parameters or {}),
    )
    try:
        answer = await deps.hooks.call(driver, change)
    except BackendError as error:
        raise OutcomeUnknown(
            f'the asset is made, and is not changed to VolumeAttributesClass "{attributes.name}": {error.message}',
            code=error.code,
            retry_after=error.retry_after,
        ) from error
    if isinstance(answer, InProgress):
        return InProgress(retry_after=answer.retry_after, state=dict(request.context.state))
    return asset
