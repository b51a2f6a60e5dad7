"""What to do about a record that somebody else writes over, or that another installation has sealed. Pure.

Where a record of ours does not stay, it is written again after a growing delay: a tenant who writes nonsense in a loop,
a process without an election beside one that was elected, or two installations that serve one driver name must not make
us write without pause.

A record that another installation has sealed is left to it: nothing is begun beside it. Once it has not changed for a
while, ours is put in its place. An installation that is at work then takes its own back, and no hook is called before
it had the time for that. So two that live do not work on one claim at once, and where one was stopped, renamed or
removed, the other goes on without a person. A record that was sealed with a former key of our own names our own
namespace, so nobody waits for it.
"""

from __future__ import annotations

from volplane.backoff import RECORD_OF_OTHERS, RECORD_OVERWRITTEN
from volplane.controller.actions import Wait, warning
from volplane.kube import names
from volplane.kube.kinds import CLAIMS, VOLUMES
from volplane.kube.objects import Claim, Volume
from volplane.state.cluster_state import ClusterState
from volplane.state.contests import STANDS_AFTER, Contest
from volplane.state.records import RecycleIntent, named_in_record

__all__ = ["contested", "scrub_contested"]


def contested(claim: Claim, driver: str, cluster: ClusterState) -> Wait | None:
    """Why the claim's record may be neither written nor acted upon now; None if it may. driver: its name."""
    known = cluster.contests.about(claim.uid)
    if known is None or not cluster.has_driver(driver):
        return None
    if cluster.contests.is_ours(claim):
        left = known.since + STANDS_AFTER - cluster.monotonic() if known.tried else 0.0
        reason = f"the installation in namespace {known.other} has time to answer that it works on the claim"
        return Wait(reason=reason, seconds=left) if left > 0 else None
    if not known.holds:
        left = known.since + RECORD_OF_OTHERS.delay(known.tries + 1) - cluster.monotonic()
    else:
        left = _left(known, cluster)
    if left <= 0:
        return None
    if not known.holds and named_in_record(claim.annotation(names.INTENT)).driver not in ("", driver):
        reason = f"the installation in namespace {known.other} removes what it has begun for it with another driver"
        return Wait(reason=reason, seconds=left)
    if known.other:
        message = (
            f'the installation of volplane in namespace {known.other} works on this claim: it serves driver "{driver}" '
            "too; give each installation driver names of its own, or stop one of them"
        )
        return Wait(reason=message, seconds=left, events=(warning(CLAIMS, claim, "DriverServedTwice", message),))
    message = (
        "the record of what is made for this claim (annotation volplane.dev/intent) is written over again and again; "
        "find out who writes it besides the volplane that leads"
    )
    return Wait(reason=message, seconds=left, events=(warning(CLAIMS, claim, "IntentOverwritten", message),))


def scrub_contested(volume: Volume, intent: RecycleIntent | None, cluster: ClusterState) -> Wait | None:
    """Why the scrub that this record is about may not be worked on now; None if it may, or there is no record.

    The pods of another installation are out of sight. So nobody but itself, or a person, can say that none of them
    erases the volume any more, and its scrub is never taken over.
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
        return Wait(reason=message, events=(warning(VOLUMES, volume, "DriverServedTwice", message),))
    known = cluster.contests.about(volume.uid)
    if known is None or intent.fence == cluster.fence() or (left := _left(known, cluster)) <= 0:
        return None
    message = (
        "the record of the scrub (annotation volplane.dev/intent) is written over again and again; find out who "
        "writes it besides the volplane that leads"
    )
    return Wait(reason=message, seconds=left, events=(warning(VOLUMES, volume, "IntentOverwritten", message),))


def _left(known: Contest, cluster: ClusterState) -> float:
    """Seconds until a record of ours, which did not stay, is written again."""
    return known.since + RECORD_OVERWRITTEN.delay(known.losses) - cluster.monotonic()
