"""Known bugs of scrubs that are interrupted."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import msgspec

from simulation.planting import by_name, replace
from volplane.controller.actions import Delete
from volplane.reclaim import recycle


def kill_scrubber_pods(stack: ExitStack) -> None:
    """Remove a scrubber pod with no grace: its object is gone before the pod has stopped."""
    remove = recycle._remove_pod

    def at_once(pod: Any, *, why: str) -> Any:
        action = remove(pod, why=why)
        return msgspec.structs.replace(action, grace_seconds=0) if isinstance(action, Delete) else action

    replace(stack, recycle, "_remove_pod", at_once)


SCRUB_PLANTS = by_name(kill_scrubber_pods)
