"""The binder: which volume a claim is bound to, and the writes that bind or unbind the two.

`volplane.roles` calls the decisions: claims and volumes have one queue each, to which several duties contribute.
"""

from typing import Any, Final

from volplane.controller.controller import FOLLOW, Duty, Rule

__all__ = ["BINDER"]

BINDER: Final[Duty[Any]] = Duty(
    option="binder",
    permissions=(
        Rule("", "pods", FOLLOW),
        Rule("", "persistentvolumes", ("patch",)),
        Rule("", "persistentvolumes/status", ("patch",)),
        Rule("", "persistentvolumeclaims", ("patch",)),
        Rule("", "persistentvolumeclaims/status", ("patch",)),
    ),
)
