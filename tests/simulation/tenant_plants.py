"""Known bugs about tenants who write all that may be written to a claim, and about hooks that raise no Exception."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any

from simulation.planting import by_name, replace
from volplane.drivers.driver import DriverView
from volplane.drivers.executor import HookCalls
from volplane.errors import OutcomeUnknown, PluginError
from volplane.intents import record
from volplane.intents.record import settled_metadata
from volplane.kube.objects import Claim
from volplane.state.cluster_state import ClusterState


def forget_what_was_begun(stack: ExitStack) -> None:
    """Forget a claim with its finalizer: what was made for it is nobody's."""
    replace(stack, ClusterState, "begun", lambda _self, _claim_uid: False)


def trust_where_a_claim_points(stack: ExitStack) -> None:
    """Take a claim that names its own volume for one that has it, and end its record."""

    def ended(claim: Claim, cluster: ClusterState) -> bool:
        if claim.spec.volume_name == f"pvc-{claim.uid}":
            cluster.progress.claims.forget(claim.uid)
            return False
        return bool(settled_metadata(claim))

    replace(stack, record, "left_to_end", ended)


def let_cancellations_through(stack: ExitStack) -> None:
    """Raise the CancelledError of a hook where its result is awaited."""
    called = HookCalls.call

    async def leaky(self: HookCalls, driver: DriverView, request: Any, **options: Any) -> Any:
        try:
            return await called(self, driver, request, **options)
        except (OutcomeUnknown, PluginError) as error:
            if "raised CancelledError" in str(error):
                raise asyncio.CancelledError from None
            raise

    replace(stack, HookCalls, "call", leaky)


TENANT_PLANTS = by_name(forget_what_was_begun, trust_where_a_claim_points, let_cancellations_through)
