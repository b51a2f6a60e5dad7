"""Known bugs of attaching, each planted into the production code for as long as a test or a search needs it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from simulation.leader_plants import call_without_a_look
from simulation.planting import by_name, replace
from volplane.attach import attach_detach, attacher, desired
from volplane.attach.attach_detach import Decision
from volplane.attach.comparison import AttachmentComparison
from volplane.attach.operation import AttachOperation
from volplane.controller.actions import Wait
from volplane.state.progress import AttachmentProgress, Detached, ProgressTable


def detach_what_is_in_use(stack: ExitStack) -> None:
    """Do not look at what the kubelet says it uses."""
    replace(stack, attach_detach, "_mounted", lambda *_: False)


def force_at_once(stack: ExitStack) -> None:
    """Take any node for one that has been gone for long."""
    replace(stack, attach_detach, "_force", lambda *_: ("timeout", None))


def attach_to_two_nodes(stack: ExitStack) -> None:
    """Do not ask whether another node has it, and leave that to the backend."""

    async def refuse_none(*_: object) -> None:
        pass

    replace(stack, desired, "elsewhere", lambda *_: [])
    replace(stack, AttachOperation, "_refuse_second_node", refuse_none)


def forget_to_detach(stack: ExitStack) -> None:
    """Let a deleted attachment go without a call of the backend."""
    known = ProgressTable.get

    def done(self: ProgressTable[Any, Any], key: Any) -> Any:
        progress = known(self, key)
        if isinstance(progress, AttachmentProgress):
            progress.step = Detached()
        return progress

    detach_step = attacher._detach_step

    def hasty(*arguments: Any) -> Any:
        with patch.object(ProgressTable, "get", done):
            return detach_step(*arguments)

    replace(stack, attacher, "_detach_step", hasty)


def keep_what_nobody_wants(stack: ExitStack) -> None:
    """Leave an attachment whose pods are gone."""
    replace(stack, attach_detach, "_unwanted", lambda *_: Decision(Wait(reason="it may be of use again")))


def tell_no_node(stack: ExitStack) -> None:
    """Do not report to the node what is attached to it."""
    replace(stack, attach_detach, "_appears", lambda *_: False)


def attach_after_a_pause(stack: ExitStack) -> None:
    """Call `attach` without a look at the lease."""
    call_without_a_look(stack, "attach")


def detach_after_a_pause(stack: ExitStack) -> None:
    """Call `detach` without a look at the lease."""
    call_without_a_look(stack, "detach")


def modify_after_a_pause(stack: ExitStack) -> None:
    """Call `modify` without a look at the lease."""
    call_without_a_look(stack, "modify")


def leave_what_is_left_over(stack: ExitStack) -> None:
    """Say that something is attached without an attachment, and do no more."""
    replace(stack, AttachmentComparison, "_left_over", lambda *_: None)


def compare_nothing(stack: ExitStack) -> None:
    """Believe for ever what attachments say."""
    replace(stack, AttachmentComparison, "compare", compare_nothing_at_all)


async def compare_nothing_at_all(*_: Any) -> None: ...


ATTACH_PLANTS = by_name(
    detach_what_is_in_use,
    force_at_once,
    attach_to_two_nodes,
    forget_to_detach,
    keep_what_nobody_wants,
    tell_no_node,
    attach_after_a_pause,
    detach_after_a_pause,
    modify_after_a_pause,
    leave_what_is_left_over,
    compare_nothing,
)
"""By name; each is caught in a seed of `recorded.CAUGHT_ATTACHING`."""
