"""What is reached after a snapshot was made: its lock, and its fast restores.

Both are states that each look compares with the wished ones. A snapshot is never given up because one is refused.
"""

from __future__ import annotations

from dataclasses import replace

from volplane import Snapshot
from volplane.cloud import BoundedCache, HookCall, RetryLater
from volplane_aws_ebs.api import Action, AwsError
from volplane_aws_ebs.ec2 import Ec2
from volplane_aws_ebs.snapshot_parameters import SnapshotParameters

_MAX_AGE = 2.5
_LOOK_AGAIN = 5.0
_REFUSED_RETRY = 60.0
_ACTIVE = ("enabling", "optimizing", "enabled")
_FOR_GOOD = ("Invalid", "Unsupported")
"""Beginnings of codes by which EC2 refuses what it never will do."""


class SnapshotSteps:
    """The steps of one driver. Safe for threads; what it keeps in memory only saves calls."""

    def __init__(self, ec2: Ec2) -> None:
        self._ec2 = ec2
        self._refused: BoundedCache[tuple[str, str], str] = BoundedCache()
        """By snapshot and zone: why there is no fast restore, and never will be."""

    def taken(self, shown: Snapshot, wanted: SnapshotParameters, call: HookCall) -> Snapshot:
        """Take the next step of the snapshot; return it, not ready and with the reason while one is missing.

        Raises AwsError where the state cannot be read.
        """
        missing = [self._lock(shown.handle, wanted, call), self._fast_restores(shown.handle, wanted, call)]
        texts = [text for text, _ in missing if text]
        pauses = [pause for _, pause in missing if pause]
        state = "; ".join(text for text in (shown.state, *texts) if text)
        if not pauses:
            return replace(shown, state=state)
        pause = min(pauses) if shown.ready else min(*pauses, shown.retry_after)
        pause = self._ec2.batches.snapshots.next_poll(shown.handle, after=pause)
        return replace(shown, ready=False, state=state, retry_after=pause)

    def _lock(self, id_: str, wanted: SnapshotParameters, call: HookCall) -> tuple[str, float]:
        """Return what is missing, for people, and in how many seconds to look again; 0 = it is locked."""
        if wanted.lock_mode is None:
            return "", 0.0
        state = self._ec2.batches.locks.observe(id_, max_age=_MAX_AGE).value
        if state == "expired" or (state or "").startswith(wanted.lock_mode):
            return "", 0.0
        try:
            self._ec2.change(Action.LOCK_SNAPSHOT, id_, call, SnapshotId=id_, **wanted.lock)
        except RetryLater as retry:
            return "it is not locked yet", retry.seconds
        except AwsError as error:
            return f"it is not locked: {self._ec2.backend_error(error, 'lock it').message}", _REFUSED_RETRY
        finally:
            self._ec2.batches.locks.invalidate(id_)
        return "it is being locked", _LOOK_AGAIN

    def _fast_restores(self, id_: str, wanted: SnapshotParameters, call: HookCall) -> tuple[str, float]:
        """Return the same of its fast restores; also what EC2 refuses for good, which is not waited for."""
        if not wanted.fast_restore_zones:
            return "", 0.0
        states = self._ec2.batches.fast_restores.observe(id_, max_age=_MAX_AGE).value or {}
        missing = [
            zone
            for zone in wanted.fast_restore_zones
            if states.get(zone) not in _ACTIVE and self._refused.get((id_, zone)) is None
        ]
        pause, later = 0.0, ""
        if missing:
            pause, later = self._enable(id_, missing, call)
        told = [f"{zone} {states[zone]}" for zone in wanted.fast_restore_zones if states.get(zone) in _ACTIVE]
        told += [f"{zone}: {why}" for zone in wanted.fast_restore_zones if (why := self._refused.get((id_, zone)))]
        told += [later] if later else []
        done = all(states.get(zone) == "enabled" for zone in wanted.fast_restore_zones)
        return "" if done else f"fast restore: {', '.join(told)}", pause

    def _enable(self, id_: str, zones: list[str], call: HookCall) -> tuple[float, str]:
        """Return in how many seconds to look again, 0 = everything was refused for good; and why not sooner."""
        try:
            answer = self._ec2.change(
                Action.ENABLE_FAST_SNAPSHOT_RESTORES, id_, call, AvailabilityZones=zones, SourceSnapshotIds=[id_]
            )
        except RetryLater as retry:
            return retry.seconds, f"{', '.join(zones)} waits for its turn"
        except AwsError as error:
            return _REFUSED_RETRY, self._ec2.backend_error(error, "enable it").message
        finally:
            self._ec2.batches.fast_restores.invalidate(id_)
        failed = {
            each.get("AvailabilityZone", ""): each.get("Error", {})
            for item in answer.get("Unsuccessful", ())
            for each in item.get("FastSnapshotRestoreStateErrors", ())
        }
        later = []
        for zone, why in failed.items():
            text = f"{why.get('Message', '').rstrip('.')} ({why.get('Code', 'no code')})"
            if why.get("Code", "").startswith(_FOR_GOOD):
                self._refused.put((id_, zone), text)
            else:
                later.append(f"{zone}: {text}; it is tried again")
        if later:
            return _REFUSED_RETRY, ", ".join(later)
        return (_LOOK_AGAIN, f"{', '.join(zones)} is being enabled") if set(zones) - set(failed) else (0.0, "")
