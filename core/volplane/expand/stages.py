"""Describe the progress of a claim's growth and of a change of its attributes. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from volplane.expand.change import CONTROLLER_RESIZE_ERROR, MODIFY_VOLUME_ERROR, NODE_RESIZE_ERROR
from volplane.expand.modify import wants_other_attributes
from volplane.expand.resize import NANOS, wants_more
from volplane.kube.objects import Claim
from volplane.kube.quantity import format_bytes
from volplane.state.matching import held_by, request_of

__all__ = ["stages"]


def stages(claim: Claim, *, expands: bool) -> Iterator[str]:
    """Yield sentences about what is asked for and not there yet. expands: this process works on it."""
    if wants_more(claim):
        asked, held = (format_bytes(-(-size // NANOS)) for size in (request_of(claim), held_by(claim)))
        yield f"it asks for {asked} and has {held}: {_growth(claim)}"
    if wants_other_attributes(claim):
        wanted = claim.spec.volume_attributes_class_name or "none"
        yield f"it asks for the attributes of VolumeAttributesClass {wanted}: {_attributes(claim)}"
    if not expands and (wants_more(claim) or wants_other_attributes(claim)):
        yield "changing its volume is another controller's work: this process does not run the expander"


def _growth(claim: Claim) -> str:
    size = (claim.status.allocated_resources or {}).get("storage", "the new size")
    match (claim.status.allocated_resource_statuses or {}).get("storage", ""):
        case "ControllerResizeInProgress":
            return f"the asset is being grown to {size}{_message(claim, CONTROLLER_RESIZE_ERROR)}"
        case "ControllerResizeInfeasible":
            refused = _message(claim, CONTROLLER_RESIZE_ERROR)
            return f"the backend refuses {size}{refused}; ask for less, yet more than it has"
        case "NodeResizePending":
            return f"the asset has {size}; the node grows the file system when a pod uses the volume there"
        case "NodeResizeInProgress":
            return f"the asset has {size}; the node is growing the file system{_message(claim, NODE_RESIZE_ERROR)}"
        case "NodeResizeInfeasible":
            return f"the asset has {size}, but the node cannot grow the file system{_message(claim, NODE_RESIZE_ERROR)}"
    return "nothing has been done towards it yet"


def _attributes(claim: Claim) -> str:
    shown = claim.status.modify_volume_status
    match shown.status if shown is not None else "":
        case "Pending":
            return "that class does not exist yet"
        case "InProgress":
            return f"they are being changed{_message(claim, MODIFY_VOLUME_ERROR)}"
        case "Infeasible":
            return f"the backend refuses them{_message(claim, MODIFY_VOLUME_ERROR)}; name another class"
    return "nothing has been done towards it yet"


def _message(claim: Claim, condition: str) -> str:
    """Return the message of a condition, as the end of a sentence; "" without it."""
    found = next((each for each in claim.status.conditions or () if each.get("type") == condition), {})
    message = found.get("message")
    return f" ({message})" if message else ""
