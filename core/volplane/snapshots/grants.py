"""ReferenceGrants: which objects of their namespace claims of other namespaces may use. Source: KEP-3294."""

from __future__ import annotations

from typing import Final

import msgspec

from volplane.kube.kinds import CLAIMS, Kind
from volplane.kube.objects import Claim, Fields, KubeObject, TypedReference


class GrantedReference(Fields):
    """Who may refer to a namespace's objects (namespace is set), or to which (name: None or "" = all of the kind)."""

    group: str = ""
    kind: str = ""
    namespace: str = ""
    name: str | None = None


class ReferenceGrantSpec(Fields):
    origins: list[GrantedReference] | None = msgspec.field(default=None, name="from")
    to: list[GrantedReference] | None = None


class ReferenceGrant(KubeObject):
    spec: ReferenceGrantSpec = msgspec.field(default_factory=ReferenceGrantSpec)


class ReferenceGrants(KubeObject):
    """All of a namespace: nobody knows the name of the one that counts."""

    items: list[ReferenceGrant] | None = None

    def allow(self, claim: Claim, source: TypedReference) -> bool:
        """Return whether one of them lets the claim use this source. Source: IsGranted of external-provisioner."""
        origin, target = ("", CLAIMS.kind, claim.namespace), (source.api_group or "", source.kind)
        for grant in self.items or ():
            comes = any((each.group, each.kind, each.namespace) == origin for each in grant.spec.origins or ())
            named = (each for each in grant.spec.to or () if each.name in (None, "", source.name))
            if comes and any((each.group, each.kind) == target for each in named):
                return True
        return False


REFERENCE_GRANTS: Final = Kind(
    "gateway.networking.k8s.io/v1beta1",
    "ReferenceGrantList",
    "referencegrants",
    True,
    ReferenceGrants,
    optional=True,
    whole=True,
)
