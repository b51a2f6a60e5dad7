"""What PersistentVolumeClaims use of ResourceQuotas: a pure evaluator for the admission and for the quota controller.
VolumeSnapshots are counted.

Objects are decoded JSON. Sources: pkg/quota/v1/evaluator/core/persistent_volume_claims.go,
staging/src/k8s.io/apiserver/pkg/admission/plugin/resourcequota/controller.go and
staging/src/k8s.io/apiserver/pkg/quota/v1/generic/evaluator.go (of objects that are counted) of Kubernetes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from volplane.kube.quantity import Quantity, parse

ATTRIBUTES_CLASS: Final = "VolumeAttributesClass"
"""The only scope that claims are in."""

COUNTED: Final = frozenset({"count/volumesnapshots.snapshot.storage.k8s.io"})
"""Resources of quotas that count custom objects."""

_CLAIMS: Final = "persistentvolumeclaims"
_STORAGE: Final = "requests.storage"
_COUNT: Final = "count/persistentvolumeclaims"
_OF_CLASS: Final = ".storageclass.storage.k8s.io/"
_CLASS_ANNOTATION: Final = "volume.beta.kubernetes.io/storage-class"
_ONE: Final = Quantity(10**9, "DecimalSI")
_NONE: Final = Quantity(0, "DecimalSI")

Json = Mapping[str, Any]
Amounts = Mapping[str, Quantity]


@dataclass(frozen=True, slots=True)
class Charge:
    """What a write of an object means for the quotas of its namespace.

    refusal: why it is forbidden, or "". used: name of a quota -> its new `status.used`, for quotas that change.
    """

    refusal: str = ""
    used: Mapping[str, dict[str, str]] = field(default_factory=dict)


def storage_resources() -> Sequence[str]:
    """Return the resources of claims that may also be limited for each storage class."""
    return _CLAIMS, _STORAGE


def evaluated(names: Iterable[str]) -> list[str]:
    """Return those of the resource names of a quota that claims use."""
    suffixes = tuple(f"{_OF_CLASS}{name}" for name in storage_resources())
    return [name for name in names if name in {_CLAIMS, _STORAGE, _COUNT} or name.endswith(suffixes)]


def usage(claim: Json) -> dict[str, Quantity]:
    """Return the resources that a claim uses.

    While the volume has been given more than the claim asks for (a growth that failed and was taken back), that counts.
    """
    used = {_CLAIMS: _ONE, _COUNT: _ONE}
    status = claim.get("status") or {}
    asked = ((claim["spec"].get("resources") or {}).get("requests") or {}).get("storage")
    if asked is not None:
        allocated = (status.get("allocatedResources") or {}).get("storage", asked)
        size = max(parse(asked), parse(allocated))
        used[_STORAGE] = Quantity(size.as_bytes() * 10**9, size.format)
    annotations = claim["metadata"].get("annotations") or {}
    name = annotations.get(_CLASS_ANNOTATION, claim["spec"].get("storageClassName"))
    if name:
        used.update({f"{name}{_OF_CLASS}{each}": used[each] for each in storage_resources() if each in used})
    return used


def counted(quota: Json) -> frozenset[str]:
    """Return the resources of the quota that count custom objects."""
    return COUNTED & (quota["spec"].get("hard") or {}).keys()


def measured(quota: Json, claims: Iterable[Json], counts: Mapping[str, int]) -> dict[str, dict[str, str]]:
    """Return the status of a quota: what of `spec.hard` is evaluated, and its use.

    claims: those of its namespace. counts: how many objects there are, by resource of the quota; of kinds that are not
    served there is none.
    """
    asked = quota["spec"].get("hard") or {}
    hard = {name: str(asked[name]) for name in sorted({*evaluated(asked), *(counts.keys() & asked.keys())})}
    used = dict.fromkeys(hard, _NONE)
    if not _scopes_of(quota):
        used |= {name: Quantity(counts[name] * 10**9, "DecimalSI") for name in hard if name in counts}
    if hard:
        for claim in claims:
            if _in_scope(quota, claim):
                used = _sum(used, {name: amount for name, amount in usage(claim).items() if name in hard})
    return {"hard": hard, "used": _texts(used)}


def charge(quotas: Iterable[Json], new: Json, old: Json | None, subresource: str) -> Charge:
    """Check a write of a claim against the quotas of its namespace. old: None at creation.

    A write of the status is charged, but never refused for what it uses.
    """
    named = ((each, evaluated(_amounts_of(each, "hard")) if _in_scope(each, new) else []) for each in quotas)
    return _charge(named, lambda quota, names: _more(quota, new, old, names), refuses=not subresource)


def charge_count(quotas: Iterable[Json], name: str) -> Charge:
    """Check the creation of an object that is counted by this resource. No scope has such objects."""
    named = ((each, [name] if name in _amounts_of(each, "hard") and not _scopes_of(each) else []) for each in quotas)
    return _charge(named, lambda _quota, _names: {name: _ONE}, refuses=True)


def _charge(
    quotas: Iterable[tuple[Json, Sequence[str]]], more_of: Callable[[Json, Sequence[str]], Amounts], *, refuses: bool
) -> Charge:
    """quotas: each with those of its resources that the object uses. more_of: what a write adds to the use of one."""
    used: dict[str, dict[str, str]] = {}
    concerned: list[tuple[Json, Amounts]] = []
    for quota, names in quotas:
        if not names:
            continue
        if not set(names) <= _amounts_of(quota, "used").keys():
            listed = ",".join(sorted(names))
            return Charge(f"status unknown for quota: {quota['metadata']['name']}, resources: {listed}")
        if more := more_of(quota, names):
            concerned.append((quota, more))
    for quota, more in concerned:
        before = {name: parse(amount) for name, amount in _amounts_of(quota, "used").items()}
        after = _sum(before, more)
        if refuses and (why := _exceeded(quota, more, before, after)):
            return Charge(why)
        used[quota["metadata"]["name"]] = _texts(after)
    return Charge(used=used)


def _more(quota: Json, new: Json, old: Json | None, names: Sequence[str]) -> Amounts:
    """Return what the write adds to the use of a quota. The quota controller finds what it takes away."""
    before = usage(old) if old is not None and _in_scope(quota, old) else {}
    added = {name: _minus(amount, before.get(name, _NONE)) for name, amount in usage(new).items() if name in names}
    return {name: amount for name, amount in added.items() if amount.nanos > 0}


def _exceeded(quota: Json, more: Amounts, before: Amounts, after: Amounts) -> str:
    hard = {name: parse(amount) for name, amount in _amounts_of(quota, "hard").items()}
    over = sorted(name for name in more if after[name] > hard[name])
    if not over:
        return ""
    requested, used, limited = (",".join(f"{name}={of[name]}" for name in over) for of in (more, before, hard))
    name = quota["metadata"]["name"]
    return f"exceeded quota: {name}, requested: {requested}, used: {used}, limited: {limited}"


def _amounts_of(quota: Json, key: str) -> Mapping[str, str]:
    amounts: Mapping[str, str] = (quota.get("status") or {}).get(key) or {}
    return amounts


def _in_scope(quota: Json, claim: Json) -> bool:
    return all(_matches(scope, claim) for scope in _scopes_of(quota))


def _scopes_of(quota: Json) -> list[Json]:
    spec = quota["spec"]
    scopes: list[Json] = [{"scopeName": scope, "operator": "Exists"} for scope in spec.get("scopes") or ()]
    return [*scopes, *((spec.get("scopeSelector") or {}).get("matchExpressions") or ())]


def _matches(scope: Json, claim: Json) -> bool:
    """Tell whether a claim is in a scope. One that is changed between two classes counts for both."""
    if scope["scopeName"] != ATTRIBUTES_CLASS:
        return False
    named, values = _attributes_classes(claim), set(scope.get("values") or ())
    match scope["operator"]:
        case "Exists":
            return bool(named)
        case "DoesNotExist":
            return not named
        case "In":
            return bool(named & values)
    return not named or bool(named - values)


def _attributes_classes(claim: Json) -> set[str]:
    """Return the classes that the claim asks for, has, and is being changed to."""
    status = claim.get("status") or {}
    target = (status.get("modifyVolumeStatus") or {}).get("targetVolumeAttributesClassName")
    named = (claim["spec"].get("volumeAttributesClassName"), status.get("currentVolumeAttributesClassName"), target)
    return {name for name in named if name}


def _sum(first: Amounts, second: Amounts) -> dict[str, Quantity]:
    total = dict(first)
    for name, amount in second.items():
        total[name] = _plus(first.get(name, _NONE), amount)
    return total


def _plus(first: Quantity, second: Quantity) -> Quantity:
    """Add the second to the first, in the notation of the first unless that is nothing."""
    return Quantity(first.nanos + second.nanos, (first or second).format)


def _minus(first: Quantity, second: Quantity) -> Quantity:
    return Quantity(max(0, first.nanos - second.nanos), first.format)


def _texts(amounts: Amounts) -> dict[str, str]:
    return {name: str(amount) for name, amount in amounts.items()}
