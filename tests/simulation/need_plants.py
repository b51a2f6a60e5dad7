"""Known bugs that take away what a living claim or pod needs."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import msgspec

from simulation.planting import by_name, replace
from volplane.binding import decide as binding
from volplane.intents.operation import DiscardOperation, OperationDeps
from volplane.kube import names
from volplane.kube.objects import Claim, Volume
from volplane.protection import finalizers
from volplane.protection.finalizers import LiveList, Protection
from volplane.provision import operation
from volplane.reclaim import recycle, scrub_pod
from volplane.reclaim.recycle import Scrub
from volplane.roles import whole


def discard_what_is_wanted(stack: ExitStack) -> None:
    """Delete the asset of a claim as decided, and do not ask whether the claim wants it by now."""

    async def never(*_: Any) -> bool:
        return False

    replace(stack, DiscardOperation, "_still_wanted", never)


def place_each_try_anew(stack: ExitStack) -> None:
    """Ask for the place that the claim's node and class say now, whatever the record says."""
    request = operation.provision_request

    def anew(claim: Claim, storage_class: Any, driver: Any, intent: Any, context: Any, **more: Any) -> Any:
        node = more["places"].nodes.get(claim.annotation(names.SELECTED_NODE) or "")
        keys = driver.info.topology_keys
        if node is None or not keys:
            return request(claim, storage_class, driver, intent, context, **more)
        labels = node.metadata.labels or {}
        placed = msgspec.structs.replace(intent, segment={key: labels[key] for key in keys})
        return request(claim, storage_class, driver, placed, context, **more)

    replace(stack, operation, "provision_request", anew)


def adopt_any_scrub_pod(stack: ExitStack) -> None:
    """Take whatever pod has the name for the scrubber that was asked for."""
    replace(stack, Scrub, "_with_pod", lambda self, pod: self._follow_pod(pod, {}))
    replace(stack, scrub_pod, "spec_difference", lambda *_: "")


def believe_the_cache_about_pods(stack: ExitStack) -> None:
    """Let a claim go because no pod in the cache uses it."""

    def proof(self: Protection, claim: Claim) -> LiveList:
        return self.lists.setdefault(claim.namespace, LiveList(0.0, [], []))

    replace(stack, Protection, "_serving", proof)


def break_promises(stack: ExitStack) -> None:
    """Let a claim go before the volume that was reserved for it is taken back."""
    replace(stack, finalizers, "is_promised", lambda *_, **_named: False)


def scrub_what_pods_use(stack: ExitStack) -> None:
    """Erase a released volume, and do not ask whether pods still use it."""
    replace(stack, recycle, "users_of_former", lambda *_: [])


def scrub_for_a_living_claim(stack: ExitStack) -> None:
    """Erase a volume whose claim is there after all."""
    replace(stack, binding, "claim_of", lambda *_: None)
    replace(stack, whole, "require_claim_gone", lambda _volume, action, *_: action)

    async def whoever(self: OperationDeps, volume: Volume, **_options: Any) -> Volume | None:
        return await self.live_volume(volume.name)

    replace(stack, OperationDeps, "released_volume", whoever)


NEED_PLANTS = by_name(
    discard_what_is_wanted,
    place_each_try_anew,
    adopt_any_scrub_pod,
    believe_the_cache_about_pods,
    break_promises,
    scrub_what_pods_use,
    scrub_for_a_living_claim,
)
