"""Leases (coordination.k8s.io, `pkg/registry/coordination/lease`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from volplane_embedded.apiserver import names, object_meta
from volplane_embedded.apiserver.errors import Cause
from volplane_embedded.apiserver.kinds.printer_columns import AGE, NAME, path
from volplane_embedded.apiserver.resources import Column, Json, Resource, Strategy

_OF_A_GATE: Final = ("strategy", "preferredHolder")
"""Fields of the feature gate CoordinatedLeaderElection, which is off by default: a stock server drops them."""


class LeaseStrategy(Strategy):
    def default(self, obj: Json) -> None:
        spec = obj.setdefault("spec", {})
        for key in _OF_A_GATE:
            spec.pop(key, None)

    def validate_create(self, obj: Json) -> Sequence[Cause]:
        return [*object_meta.validate(obj["metadata"], names.subdomain), *_validate_spec(obj["spec"])]

    def validate_update(self, new: Json, old: Json, subresource: str) -> Sequence[Cause]:
        return [*object_meta.validate_update(new["metadata"], old["metadata"]), *_validate_spec(new["spec"])]


def _validate_spec(spec: Json) -> list[Cause]:
    causes: list[Cause] = []
    duration, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
    if duration is not None and duration <= 0:
        causes.append(Cause.invalid("spec.leaseDurationSeconds", duration, "must be greater than 0"))
    if transitions is not None and transitions < 0:
        causes.append(Cause.invalid("spec.leaseTransitions", transitions, "must be greater than or equal to 0"))
    return causes


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
