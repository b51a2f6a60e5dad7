"""Leases (coordination.k8s.io, `pkg/registry/coordination/lease`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from volplane_embedded.apiserver.errors import Cause
from volplane_embedded.apiserver.kinds.printer_columns import AGE, NAME, path
from volplane_embedded.apiserver.kinds.validation import one_of
from volplane_embedded.apiserver.resources import Column, Json, Resource, Strategy

__all__ = ["RESOURCE", "LeaseStrategy"]


class LeaseStrategy(Strategy):
    def default(self, obj: Json) -> None:
        obj.setdefault("spec", {})

    def validate_create(self, obj: Json) -> Sequence[Cause]:
        causes: list[Cause] = []
        spec = obj["spec"]
        duration, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
        if duration is not None and duration <= 0:
            causes.append(Cause.invalid("spec.leaseDurationSeconds", duration, "must be greater than 0"))
        if transitions is not None and transitions < 0:
            causes.append(Cause.invalid("spec.leaseTransitions", transitions, "must be greater than or equal to 0"))
        if spec.get("strategy") is not None:
            one_of(spec["strategy"], ("OldestEmulationVersion",), "spec.strategy", causes)
        if spec.get("preferredHolder") and not spec.get("strategy"):
            why = "may only be specified if strategy is defined"
            causes.append(Cause.forbidden("spec.preferredHolder", why))
        return causes

    def validate_update(self, new: Json, old: Json, subresource: str) -> Sequence[Cause]:
        return self.validate_create(new)


RESOURCE: Final = Resource(
    group="coordination.k8s.io",
    version="v1",
    plural="leases",
    kind="Lease",
    singular="lease",
    namespaced=True,
    strategy=LeaseStrategy(),
    columns=(
        NAME,
        Column(
            "Holder",
            "holderIdentity contains the identity of the holder of a current lease. If Coordinated Leader Election is"
            " used, the holder identity must be equal to the elected LeaseCandidate.metadata.name field.",
            path("spec", "holderIdentity"),
        ),
        AGE,
    ),
    returns_deleted=False,
    unconditional_update=False,
)
