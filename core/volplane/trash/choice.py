"""How long the volume of a deleted claim is kept: the class sets the longest time, the claim chooses within it. Pure.

What claims say was written by tenants: it counts only if it can be met, and is then written on the volume.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from volplane._messages import age_text
from volplane.controller.actions import Action, Patch, Wait, warning
from volplane.drivers.parameters import read_value
from volplane.intents.requests import split_parameters, trash_of_class
from volplane.kube import names
from volplane.kube.kinds import CLAIMS, VOLUMES
from volplane.kube.objects import Claim, StorageClass, Volume
from volplane.schemas import Parameter, ParameterKind
from volplane.state.cluster_state import ClusterState
from volplane.state.records import may_be_kept

SKIP: Final = "skip"
"""What a claim says whose volume is not to be kept."""
OLDEST_FIRST: Final = "oldest-first"
"""What a class says whose volumes leave the trash early if room is short."""
_TIME: Final = Parameter(
    name=names.TRASH, doc="How long a deleted volume is kept.", kind=ParameterKind.DURATION, minimum=1.0
)
_LONGEST_SHOWN: Final = 40


def refusal_of(claim: Claim, storage_class: StorageClass) -> str:
    """Return why a volume of the class cannot be kept as class and claim want it, with what to change; or ""."""
    if claim.annotation(names.UNDELETE) is not None:
        return f"{names.UNDELETE} asks for a volume in the trash: name it in spec.volumeName, or remove the annotation"
    most, chosen = trash_of_class(storage_class), choice_of(claim)
    (parameters, release), of_class = split_parameters(storage_class), f'class "{storage_class.name}"'
    if most is None:
        if chosen in (None, SKIP):
            return ""
        keeps = f"{of_class} keeps no deleted volumes"
        return f'{keeps}, and the claim has {names.TRASH} {_shown(chosen)}; remove that or set it to "{SKIP}"'
    longest, flaw = _seconds(most)
    if flaw:
        return f"{of_class}: {names.TRASH} is {_shown(most)}: {flaw}"
    if storage_class.reclaim_policy != "Delete":
        return f"{of_class}: {names.TRASH} needs reclaimPolicy Delete, it has {storage_class.reclaim_policy}"
    if (early := trash_of_class(storage_class, names.TRASH_EARLY)) not in (None, OLDEST_FIRST):
        return f'{of_class}: {names.TRASH_EARLY} is {_shown(early or "")}; the only value is "{OLDEST_FIRST}"'
    if release == "recycle":
        return f"{of_class}: {names.TRASH} and {names.ON_RELEASE} recycle, which erases at once, exclude each other"
    for key, value in parameters.items():
        if key.endswith("secret-namespace") and "${pvc." in value:
            where = "which may be gone when the volume is deleted; name a namespace of its own"
            return f"{of_class}: with {names.TRASH} {key} cannot be {_shown(value)}, {where}"
    return "" if chosen is None else _flaw_of_choice(chosen, longest, most)


def flaw_of(volume: Volume) -> str:
    """Return what is wrong with the time on the volume, which an administrator may write; "" if nothing is."""
    most = volume.annotation(names.TRASH)
    flaw = _seconds(most)[1] if most not in (None, SKIP) else ""
    return f'{names.TRASH} on it is {_shown(most or "")}: {flaw}, or "{SKIP}"' if flaw else ""


def kept_for(volume: Volume) -> float:
    """Return for how many seconds the volume is kept once its claim is gone; 0: it is not kept."""
    most, choice = volume.annotation(names.TRASH), volume.annotation(names.TRASH_CHOICE)
    longest = _seconds(most or "")[0]
    if not longest or choice is None or _flaw_of_choice(choice, longest, most or ""):
        return longest
    return 0.0 if choice == SKIP else _seconds(choice)[0]


def after_claim(volume: Volume) -> Iterator[str]:
    """Yield, for explain, what becomes of the volume once its claim is deleted, if that is to be kept, or chose not to.

    Nothing is said of volumes that have nothing to do with the trash.
    """
    if may_be_kept(volume):
        seconds = kept_for(volume)
        becomes = f"kept for {age_text(seconds)}" if seconds else "destroyed at once"
        yield f"once the claim is deleted the volume is {becomes}"


def choice_step(volume: Volume, claim: Claim) -> Action | None:
    """Return the write of what the claim chooses, and of the end of an earlier release; None if the volume shows that.

    The claim is living, and the volume refers to it. A choice that cannot be met changes nothing, and an event says so.
    """
    annotations: dict[str, Any] = {}
    if volume.annotation(names.TRASHED) is not None:
        annotations = {names.TRASHED: None}  # Somebody took it out of the trash by writing its reference.
    most, chosen = volume.annotation(names.TRASH), choice_of(claim)
    longest, _ = _seconds(most or "")
    flaw = _flaw_of_choice(chosen, longest, most or "") if longest and chosen is not None else ""
    if longest and not flaw and chosen != volume.annotation(names.TRASH_CHOICE):
        annotations[names.TRASH_CHOICE] = chosen
    if annotations:
        body = {"metadata": {"annotations": annotations}}
        return Patch(kind=VOLUMES, target=volume, body=body, why="what its claim chooses outlives the claim")
    return Wait(reason=flaw, events=(warning(CLAIMS, claim, "TrashRefused", flaw),)) if flaw else None


def step_of_bound(volume: Volume, cluster: ClusterState) -> Action | None:
    """Return what `choice_step` does for a volume that is bound to a living claim, or will be; None for all others."""
    claim = cluster.claim_of(volume) if may_be_kept(volume) and not volume.terminating else None
    return choice_step(volume, claim) if claim is not None and claim.spec.volume_name == volume.name else None


def choice_of(claim: Claim) -> str | None:
    """Return what the claim says of the time for which its volume is kept; it may be anything."""
    said = claim.annotation(names.TRASH)
    return said.strip() if said is not None else None


def _flaw_of_choice(chosen: str, longest: float, most: str) -> str:
    """Return why the claim cannot have this; "" if it can. longest: seconds. most: the same as it is written."""
    if chosen == SKIP:
        return ""
    seconds, flaw = _seconds(chosen)
    if not flaw and seconds > longest:
        flaw = f"the longest time here is {most}"
    return f'the claim has {names.TRASH} {_shown(chosen)}: {flaw}, or "{SKIP}"' if flaw else ""


def _seconds(text: str | None) -> tuple[float, str]:
    """Return the time, and what would be right if it is none (0 then)."""
    try:
        return float(read_value(_TIME, text if text and len(text) <= _LONGEST_SHOWN else "")), ""
    except ValueError as error:
        return 0.0, str(error)


def _shown(text: str) -> str:
    return ascii(text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}...").replace("'", '"')
