"""Which claims and volumes wait, and why, by what a controller tells of its queues. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from volplane.kube.objects import Claim, Volume
from volplane.process.duties import CHANGES
from volplane.trash.decide import in_trash

Reasons = Mapping[str, Mapping[str, str]]
"""Queue -> key -> why the key waits."""


def waits_of_claim(claim: Claim, reasons: Reasons) -> list[tuple[str, str]]:
    """Return (phase, reason) of a claim that is not bound, and of each change that a bound one waits for."""
    phase = "Terminating" if claim.terminating else claim.status.phase
    if phase != "Bound":
        # What is being deleted waits for its pods.
        held = reasons.get("pvcprotection", {}).get(claim.key) if claim.terminating else None
        return [(phase, held or reasons.get("claims", {}).get(claim.key, "-"))]
    found = [reasons.get(changes, {}).get(claim.key) for changes in CHANGES]
    return [(phase, why) for why in found if why is not None]


def waits_of_volume(volume: Volume, reasons: Reasons) -> list[tuple[str, str]]:
    """Return (phase, reason) of a volume that failed, is released or is being deleted, and is not in the trash."""
    phase = "Terminating" if volume.terminating else volume.status.phase
    if phase not in ("Failed", "Released", "Terminating") or in_trash(volume) is not None:
        return []
    return [(phase, reasons.get("volumes", {}).get(volume.key, volume.status.message or "-"))]
