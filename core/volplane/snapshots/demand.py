"""What a VolumeSnapshot of a claim asks for, and everything that speaks against it. Pure.

All of it is asked before the first write: whatever is refused here leaves no finalizer and no content behind.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeVar

from volplane.controller.actions import Action, Settled
from volplane.drivers.driver import DriverView
from volplane.intents.ownership import driver_of
from volplane.kube import names
from volplane.kube.cache import Cache
from volplane.kube.objects import Claim, Volume
from volplane.snapshots.objects import VolumeSnapshot, VolumeSnapshotClass
from volplane.snapshots.parameters import class_flaw
from volplane.snapshots.state import SnapshotState
from volplane.state.matching import refers_to
from volplane.state.naming import handle_of

NOT_CREATED: Final = "Failed to create snapshot content with error "


class ClassWords(NamedTuple):
    """How classes of a kind are marked and spoken of."""

    default: str
    """Annotation of the default class."""
    no_default: str
    """Reason of the event, and with which words its message begins."""
    no_default_text: str
    unknown: str
    unknown_text: str


_SINGLE: Final = ClassWords(
    names.DEFAULT_SNAPSHOT_CLASS,
    "SetDefaultSnapshotClassFailed",
    "Failed to set default snapshot class with error ",
    "GetSnapshotClassFailed",
    "Failed to get snapshot class with error volumesnapshotclass.snapshot.storage.k8s.io ",
)


class Unchosen(NamedTuple):
    """Why there is no class."""

    reason: str
    message: str


C = TypeVar("C", bound=VolumeSnapshotClass)


def chosen_class(name: str | None, classes: Cache[C], driver: DriverView, words: ClassWords) -> C | Unchosen:
    """Return the class of this name, else the default class of the driver."""
    if name is not None:
        return classes.get(name) or Unchosen(words.unknown, f'{words.unknown_text}"{name}" not found')
    default = [
        each for each in classes.values() if each.driver == driver.name and each.annotation(words.default) == "true"
    ]
    if len(default) == 1:
        return default[0]
    several = ", ".join(sorted(each.name for each in default))
    none = f"cannot find default snapshot class of driver {driver.name}"
    count = f"{len(default)} default snapshot classes were found: {several}" if default else none
    return Unchosen(words.no_default, words.no_default_text + count)


class Wanted(NamedTuple):
    """What is cut, and how."""

    claim: Claim
    volume: Volume
    driver: DriverView
    of_class: VolumeSnapshotClass


class Demand(NamedTuple):
    """What is wanted, or why it cannot be had; as `DriverLookup`."""

    wanted: Wanted | None = None
    reason: str = ""
    """Of the event; "" if nothing is wrong."""
    message: str = ""
    next: Action | None = None
    """What comes first where the answer is not known yet, or instead where the snapshot is another controller's."""


def demand_of(snapshot: VolumeSnapshot, state: SnapshotState) -> Demand:
    """Return what the VolumeSnapshot asks for."""
    claim, name = state.claim_of(snapshot), snapshot.spec.volume_snapshot_class_name
    of_class = state.classes.get(name) if name is not None else None
    volume = state.cluster.volumes.get(claim.spec.volume_name) if claim is not None else None
    found = claim is not None and volume is not None and refers_to(volume, claim)
    lookup = driver_of(volume, state.cluster) if found and volume is not None else None
    unknown = lookup is None or (lookup.driver is None and lookup.next is None)
    if of_class is not None and unknown and not state.serves(of_class.driver):
        return Demand(next=Settled())  # Neither the class nor the volume is of a driver of ours.
    reason, prefix = "SnapshotContentCreationFailed", NOT_CREATED
    if name is None:
        reason, prefix = _SINGLE.no_default, _SINGLE.no_default_text
    if claim is None or volume is None or lookup is None or _unbound(claim):
        return Demand(None, reason, prefix + (_unbound(claim) or _unrelated(snapshot, claim, volume)))
    if lookup.next is not None:
        return Demand(next=lookup.next)
    if lookup.driver is None:
        why = _undriven(volume, lookup.reason, of_class, state)
        return Demand(None, reason, prefix + why) if why else Demand(next=Settled())
    return _of_class(snapshot, claim, volume, lookup.driver, state)


def _of_class(
    snapshot: VolumeSnapshot, claim: Claim, volume: Volume, driver: DriverView, state: SnapshotState
) -> Demand:
    """Return the demand for the class that is named, else for the default class of the driver."""
    chosen = chosen_class(snapshot.spec.volume_snapshot_class_name, state.classes, driver, _SINGLE)
    if isinstance(chosen, Unchosen):
        return Demand(None, chosen.reason, chosen.message)
    flaw = class_flaw(chosen, driver)
    if not flaw and not driver.supports("create_snapshot"):
        flaw = f'driver "{driver.name}" makes no snapshots'
    if not flaw and not handle_of(volume):
        flaw = f"the source of volume {volume.name} has nothing by which driver {driver.name} would know it"
    if flaw:
        return Demand(None, "SnapshotContentCreationFailed", NOT_CREATED + flaw)
    return Demand(Wanted(claim, volume, driver, chosen))


def _unbound(claim: Claim | None) -> str:
    """Return why the claim by itself cannot be cut; "" if nothing of it speaks against it."""
    if claim is None:
        return ""
    if claim.terminating and not claim.has_finalizer(names.CLAIM_AS_SOURCE):
        return "cannot add finalizer on claim because it is being deleted"
    if claim.status.phase != "Bound":
        return f"the PVC {claim.name} is not yet bound to a PV, will not attempt to take a snapshot"
    return ""


def _unrelated(snapshot: VolumeSnapshot, claim: Claim | None, volume: Volume | None) -> str:
    """Return which of the claim and its volume is missing, or that they do not belong together."""
    if claim is None:
        name = snapshot.spec.source.persistent_volume_claim_name
        return f'cannot get claim from snapshot: persistentvolumeclaim "{name}" not found'
    if volume is None:
        name = claim.spec.volume_name
        return f'failed to retrieve PV {name}: persistentvolume "{name}" not found'
    return f"claim in dataSource not bound or invalid: volume {volume.name} does not refer to it"


def _undriven(volume: Volume, reason: str, of_class: VolumeSnapshotClass | None, state: SnapshotState) -> str:
    """Return why no driver here cuts the volume; "" if it is another controller's matter."""
    maker = volume.annotation(names.PROVISIONED_BY) or ""
    if state.cluster.drivers.on_nodes(maker):
        return f"driver {maker} is served by the processes of the nodes, which make no snapshots"
    if reason:
        return f"volume {volume.name}: {reason}"
    if of_class is None:
        return ""
    theirs = (volume.spec.csi or {}).get("driver") or maker or "none here"
    return f'VolumeSnapshotClass "{of_class.name}" is of driver "{of_class.driver}", the volume is of "{theirs}"'
