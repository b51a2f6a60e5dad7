"""ResourceQuota, the admission plugin: a claim is refused where it exceeds a quota, and charged where it is written.
So is a VolumeSnapshot, which is counted.

One event loop owns the server, so that check, charge and write of one request are one step: of two creates that fit
only alone, one is refused. The counterpart in Kubernetes is k8s.io/apiserver/pkg/admission/plugin/resourcequota.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from volplane_embedded.apiserver.claim_quota import COUNTED, charge, charge_count
from volplane_embedded.apiserver.errors import forbidden
from volplane_embedded.apiserver.resources import Json, Resource
from volplane_embedded.apiserver.storage import ObjectStorage, storage_of

QUOTA_PLUGIN: Final = "ResourceQuota"


@dataclass(frozen=True, slots=True)
class QuotaAdmission:
    """quotas: the resource of ResourceQuotas; None: no write is checked."""

    objects: ObjectStorage
    quotas: Resource | None

    def check(self, resource: Resource, new: Json, old: Json | None, subresource: str = "") -> list[Json]:
        """Check a valid write. old: None at creation. Returns the quotas as they are once it is charged, for `write`.

        Raises StatusError (403).
        """
        count = f"count/{resource.plural}.{resource.group}"
        is_counted = count in COUNTED and old is None
        if self.quotas is None or not (is_counted or resource.plural == "persistentvolumeclaims"):
            return []
        meta = new["metadata"]
        stored = self.objects.store.all(storage_of(self.quotas), meta["namespace"])
        if not stored:
            return []
        found = [each.decode() for each in stored]
        charged = charge_count(found, count) if is_counted else charge(found, new, old, subresource)
        if charged.refusal:
            raise forbidden(resource.plural, resource.group, meta["name"], charged.refusal)
        changed = [quota for quota in found if quota["metadata"]["name"] in charged.used]
        for quota in changed:
            quota["status"]["used"] = charged.used[quota["metadata"]["name"]]
        return changed

    def write(self, charged: list[Json]) -> None:
        """Charge the quotas that `check` returned."""
        if self.quotas is not None:
            for quota in charged:
                self.objects.put(self.quotas, quota)
