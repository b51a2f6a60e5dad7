"""What to do in a conflict over a record, which others overwrite or another installation has sealed. Pure.

A record of ours that is overwritten is written again after a growing delay. Otherwise a tenant who writes in a loop, a
process without an election beside one that was elected, or two installations that serve one driver name would make us
write without pause.

A record that another installation has sealed is left to it, and nothing is started for the claim. When it has not
changed for a while (`RECORD_OF_OTHERS`), ours replaces it. An installation that is at work then writes its own again,
and no hook is called before it had time for that (`TAKEOVER_GRACE`). So two installations never work on one claim at
once, and if one was stopped, renamed or removed, the other goes on without a person. A record that was sealed with a
former key of our own names our own namespace: there is no wait for it.
"""

from __future__ import annotations

from typing import Any

from volplane._delays import RECORD_OF_OTHERS, RECORD_OVERWRITTEN
from volplane.controller.actions import Wait, warning
from volplane.kube import names
from volplane.kube.kinds import CLAIMS, VOLUMES, Kind
from volplane.kube.objects import Claim, Volume
from volplane.state.cluster_state import ClusterState
from volplane.state.record_conflicts import TAKEOVER_GRACE, RecordConflict
from volplane.state.records import RecycleIntent, named_in_record

__all__ = ["claim_conflict", "scrub_conflict"]


def claim_conflict(claim: Claim, driver: str, cluster: ClusterState) -> Wait | None:
    """Return why the claim's record may be neither written nor acted upon now; None if it may. driver: its name."""
    known = cluster.record_conflicts.about(claim.uid)
    if known is None or not cluster.has_driver(driver):
        return None
    ours = cluster.record_conflicts.is_ours(claim)
    left = _ends(known, ours=ours) - cluster.monotonic()
    if left <= 0:
        return None
    if ours:
        reason = f"the installation in namespace {known.other} has time to answer that it works on the claim"
        return Wait(reason=reason, seconds=left)
    if not known.was_ours and named_in_record(claim.annotation(names.INTENT)).driver not in ("", driver):
        reason = f"the installation in namespace {known.other} removes what it has begun for it with another driver"
        return Wait(reason=reason, seconds=left)
    if known.other:
        message = (
            f'the installation of volplane in namespace {known.other} works on this claim: it serves driver "{driver}" '
            "too; give each installation driver names of its own, or stop one of them"
        )
        return _wait(CLAIMS, claim, "DriverServedTwice", message, left)
    message = (
        "the record of what is made for this claim (annotation volplane.dev/intent) is written over again and again; "
        "find out who writes it besides the volplane that leads"
    )
    return _wait(CLAIMS, claim, "IntentOverwritten", message, left)


def scrub_conflict(volume: Volume, intent: RecycleIntent | None, cluster: ClusterState) -> Wait | None:
    """Return why the scrub of this record may not be worked on now; None if it may, or there is no record.

    A scrub of another installation is never taken over: this process does not see that one's pods, so only that
    installation or a person can say that none of them erases the volume any more.
    """
    if intent is None:
        return None
    installation = cluster.sealer.installation
    if intent.installation and installation and intent.installation != installation:
        message = (
            f"the installation of volplane in namespace {intent.installation} scrubs this volume; give each "
            "installation driver names of its own. If that one is gone, and no pod of it uses the volume, remove the "
            "annotation volplane.dev/intent from the volume"
        )
        return _wait(VOLUMES, volume, "DriverServedTwice", message)
    known = cluster.record_conflicts.about(volume.uid)
    if known is None or (left := _ends(known, ours=intent.fence == cluster.fence()) - cluster.monotonic()) <= 0:
        return None
    message = (
        "the record of the scrub (annotation volplane.dev/intent) is written over again and again; find out who "
        "writes it besides the volplane that leads"
    )
    return _wait(VOLUMES, volume, "IntentOverwritten", message, left)


def _ends(known: RecordConflict, *, ours: bool) -> float:
    """Return the loop time from which the record may be written and acted upon. ours: it is ours now."""
    if ours:
        return known.since + (TAKEOVER_GRACE if known.taking_over else 0.0)
    if known.was_ours:
        return known.since + RECORD_OVERWRITTEN.delay(known.overwrites)
    return known.since + RECORD_OF_OTHERS.delay(known.undone_takeovers + 1)


def _wait(kind: Kind[Any], about: Claim | Volume, reason: str, message: str, seconds: float | None = None) -> Wait:
    """Wait, with a warning on the object. reason: of the Event."""
    return Wait(reason=message, seconds=seconds, events=(warning(kind, about, reason, message),))
