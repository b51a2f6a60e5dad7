"""Keeps the status of ResourceQuotas true. On a real cluster this is a controller of kube-controller-manager.

The admission charges what claims add. This controller finds the rest: claims that went, got smaller or left a class,
quotas made after claims, quotas that were edited. It reads a quota, then the claims, and writes on condition that the
quota did not change meanwhile; a claim that is charged in between changes it. So a charge is never lost, as it can be
where claims are counted in a cache.
Source: pkg/controller/resourcequota of Kubernetes.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from volplane import _delays as backoff
from volplane.controller.workqueue import WorkQueue
from volplane.errors import ApiConflict, ApiError
from volplane.kube.client import Client
from volplane.kube.objects import Claim
from volplane.snapshots.objects import VOLUME_SNAPSHOTS
from volplane_embedded.apiserver.claim_quota import counted, measured
from volplane_embedded.informers import Informers, unsubscribing
from volplane_embedded.objects import MEASURED_CLAIMS, QUOTAS, MeasuredClaim, ResourceQuota

_LOG = logging.getLogger(__name__)

_GATHER_SECONDS: Final = 0.05
"""Changes of claims within this time are measured once."""
_RESYNC_SECONDS: Final = 300.0
"""As the stock flag --resource-quota-sync-period."""
_COUNT_SECONDS: Final = 1.0
"""After which custom objects are counted again: no cache follows kinds that come and go."""
_KINDS: Final = {f"count/{kind.plural}.{kind.api_version.partition('/')[0]}": kind for kind in (VOLUME_SNAPSHOTS,)}


class QuotaStatus:
    """The controller."""

    def __init__(self, client: Client, informers: Informers) -> None:
        self._client = client
        self._informers = informers
        self._queue = WorkQueue("quota-status")

    async def run(self) -> None:
        """Run until cancelled."""
        with unsubscribing(
            self._informers.quotas.subscribe(self._quota_changed),
            self._informers.claims.subscribe(self._claim_changed),
        ):
            for quota in self._informers.quotas.values():
                self._queue.add(quota.key)
            while (key := await self._queue.get()) is not None:
                try:
                    await self._process(key)
                finally:
                    self._queue.done(key)

    def _quota_changed(self, old: ResourceQuota | None, new: ResourceQuota | None) -> None:
        """Queue a quota that a person made or edited. What the admission charged needs no check."""
        if new is not None and (old is None or new.uid != old.uid or new.spec != old.spec or _is_odd(new)):
            self._queue.add(new.key)

    def _claim_changed(self, old: Claim | None, new: Claim | None) -> None:
        if old is not None and (new is None or new.uid != old.uid or _what_counts(new) != _what_counts(old)):
            for quota in self._informers.quotas_of(old.namespace):
                self._queue.add_after(quota.key, _GATHER_SECONDS)

    async def _process(self, key: str) -> None:
        try:
            quota = await self._measure(key)
        except ApiConflict as error:
            _LOG.debug("quota %s changed while it was measured: %s", key, error)
            self._queue.retry(key, backoff.RECONCILE_FAILED)
        except ApiError as error:
            seconds = self._queue.retry(key, backoff.API_UNAVAILABLE)
            _LOG.warning("quota %s could not be measured, trying again in %.3g s: %s", key, seconds, error)
        else:
            self._queue.forget(key)
            if quota is not None:
                self._queue.add_after(key, _COUNT_SECONDS if counted(_decoded(quota)) else _RESYNC_SECONDS)

    async def _measure(self, key: str) -> ResourceQuota | None:
        """Write the status if it is not true. Returns the quota if it exists. Raises ApiConflict if it changed."""
        quota = await self._client.find(QUOTAS, key)
        if quota is None:
            return None
        claims = (await self._client.list(MEASURED_CLAIMS, namespace=quota.namespace)).items
        counts = await self._counts(quota)
        status = measured(_decoded(quota), map(_decoded, claims), counts)
        if any(quota.status.get(name, {}) != amounts for name, amounts in status.items()):
            replaced = {name: _replacing(quota.status.get(name), amounts) for name, amounts in status.items()}
            body = {"metadata": {"resourceVersion": quota.metadata.resource_version}, "status": replaced}
            await self._client.patch(QUOTAS, key, body, subresource="status")
        return quota

    async def _counts(self, quota: ResourceQuota) -> dict[str, int]:
        """Return how many objects of its namespace the quota counts, by resource; of served kinds."""
        counts: dict[str, int] = {}
        for name in counted(_decoded(quota)):
            try:
                listing = await self._client.list(_KINDS[name], namespace=quota.namespace)
            except ApiError as error:
                if error.status != 404:
                    raise
            else:
                counts[name] = len(listing.items) + len(listing.unreadable)
        return counts


def _is_odd(quota: ResourceQuota) -> bool:
    """Tell whether somebody wrote a status that no measuring gives."""
    hard, used = quota.status.get("hard") or {}, quota.status.get("used") or {}
    return hard.keys() != used.keys() or not hard.items() <= (quota.spec.get("hard") or {}).items()


def _what_counts(claim: Claim) -> tuple[Any, ...]:
    """Return all of a claim that its use and its scopes depend on."""
    changing = claim.status.modify_volume_status
    return (
        claim.spec.resources,
        claim.status.allocated_resources,
        claim.spec.storage_class_name,
        claim.spec.volume_attributes_class_name,
        claim.status.current_volume_attributes_class_name,
        changing.target_volume_attributes_class_name if changing is not None else "",
    )


def _decoded(found: ResourceQuota | MeasuredClaim) -> dict[str, Any]:
    """Return the parts that the evaluator reads, as JSON has them."""
    metadata = {"name": found.name, "annotations": found.metadata.annotations or {}}
    return {"metadata": metadata, "spec": found.spec, "status": found.status}


def _replacing(old: dict[str, str] | None, new: dict[str, str]) -> dict[str, str | None]:
    """Return the merge patch that turns one map into another."""
    return {**dict.fromkeys(old or {}), **new}
