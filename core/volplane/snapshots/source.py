"""What the volume of a claim is made of: the data source in its spec. Pure.

Source: prepareProvision of external-provisioner.
"""

from __future__ import annotations

from volplane.controller.actions import EventRecord, Wait
from volplane.kube.kinds import CLAIMS, VOLUME_SNAPSHOTS
from volplane.kube.objects import Claim, TypedReference

SNAPSHOT, CLAIM = VOLUME_SNAPSHOTS.kind, CLAIMS.kind


def is_populated(source: TypedReference) -> bool:
    """Return whether a populator has to fill the volume. It makes it as the volume of a claim of its own, and writes
    this claim into its claimRef.
    """
    return source.kind != SNAPSHOT and (source.kind, source.api_group or "") != (CLAIM, "")


def left_to_populator(claim: Claim, source: TypedReference) -> Wait:
    """Wait for the populator of this kind of source, whatever it may be."""
    what = f"{source.kind}.{source.api_group}" if source.api_group else source.kind
    message = "Assuming an external populator will provision the volume"
    event = EventRecord(CLAIMS, claim, "Normal", "Provisioning", message)
    return Wait(reason=f'a populator has to make its volume of {what} "{source.name}"', events=(event,))
