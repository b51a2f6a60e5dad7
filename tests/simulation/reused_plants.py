"""Known bugs about names that are used again, each planted into the production code for as long as a test needs it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from simulation.planting import by_name, replace
from volplane.attach import desired, operation
from volplane.attach.operation import DetachOperation
from volplane.kube.objects import VolumeAttachment
from volplane.state.cluster_state import ClusterState


def take_every_registration_for_another_machine(stack: ExitStack) -> None:
    """Compare the uid of the Node alone, which a kubelet gets anew when it registers again."""
    replace(stack, desired, "same_machine", lambda *about: not desired.registered_again(*about))


def believe_an_empty_list(stack: ExitStack) -> None:
    """Take the list of a kubelet that has just been started for what is in use."""
    replace(stack, desired, "has_reported", lambda _: True)


def know_a_volume_by_its_name(stack: ExitStack) -> None:
    """Take what has the name of a volume for the volume, whatever its disk."""
    pair_of = desired.pair_of_attachment

    def named(attachment: VolumeAttachment, cluster: ClusterState) -> Any:
        known = cluster.volumes.get(attachment.spec.source.persistent_volume_name or "")
        pair = pair_of(attachment, cluster)
        return pair if known is None or (pair is not None and pair.volume == desired.unique_name(known)) else None

    replace(stack, ClusterState, "of_former_volume", lambda *_: False)
    replace(stack, desired, "pair_of_attachment", named)


def detach_under_the_other_attachment(stack: ExitStack) -> None:
    """Detach for every attachment that is deleted."""

    async def never(*_: Any) -> bool:
        return False

    replace(stack, DetachOperation, "_stands_for", never)


def take_an_unknown_attach_for_none(stack: ExitStack) -> None:
    """Refuse a second node only once the status says attached, as if a failed call had no effect."""
    replace(stack, operation, "may_be_attached", lambda other, _attachment, _cluster: other.status.attached)


REUSED_PLANTS = by_name(
    take_every_registration_for_another_machine,
    believe_an_empty_list,
    know_a_volume_by_its_name,
    detach_under_the_other_attachment,
    take_an_unknown_attach_for_none,
)
"""By name; each is caught in a seed of `recorded.CAUGHT_REUSED`."""
