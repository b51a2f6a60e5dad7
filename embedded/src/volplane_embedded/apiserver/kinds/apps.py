"""StatefulSets, Deployments, ReplicaSets and ControllerRevisions (`pkg/registry/apps`, `pkg/apis/apps`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from volplane_embedded.apiserver import names, object_meta
from volplane_embedded.apiserver.errors import Cause
from volplane_embedded.apiserver.kinds import persistentvolumeclaims, pod_defaults, pod_validation
from volplane_embedded.apiserver.kinds.printer_columns import AGE, NAME, path
from volplane_embedded.apiserver.kinds.validation import fill_condition_times, label_selector, one_of
from volplane_embedded.apiserver.resources import Column, Json, Resource, StatusStrategy, Strategy
from volplane_embedded.apiserver.selectors import label_selector_matches

_SET_MAY_CHANGE: Final = (
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
)
_SET_FIXED: Final = (
    "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy',"
    " 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"
)
_NOT_NEGATIVE: Final = "must be greater than or equal to 0"
_PERCENT: Final = re.compile(r"[0-9]+%")


class _WorkloadStrategy(StatusStrategy):
    """What the three kinds with a template of pods share. kind: in messages. counts: of the status, in the order in
    which they are checked.
    """

    def __init__(self, kind: str, counts: Sequence[str]) -> None:
        self._kind = kind
        self._counts = counts

    def default(self, obj: Json) -> None:
        spec = obj.setdefault("spec", {})
        spec.setdefault("replicas", 1)
        pod_defaults.default_template(spec.setdefault("template", {}))
        fill_condition_times(obj.setdefault("status", {}), "lastTransitionTime")

    def validate_create(self, obj: Json) -> Sequence[Cause]:
        return [*object_meta.validate_of_kind(obj["metadata"]), *self._validate_spec(obj["spec"])]

    def validate_update(self, new: Json, old: Json, subresource: str) -> Sequence[Cause]:
        causes = list(object_meta.validate_update_of_kind(new["metadata"], old["metadata"]))
        if subresource == "status":
            return [*causes, *self._validate_status(new["status"])]
        causes.extend(self._validate_spec(new["spec"]))
        if new["spec"].get("selector") != old["spec"].get("selector"):
            causes.append(Cause.invalid("spec.selector", new["spec"].get("selector"), "field is immutable"))
        return causes

    def _validate_spec(self, spec: Json) -> list[Cause]:
        raise NotImplementedError

    def _validate_status(self, status: Json) -> Iterator[Cause]:
        yield from _not_negative(status, "status", *self._counts)
        found = {name: status.get(name) or 0 for name in self._counts}
        for name, count in found.items():
            if name not in ("availableReplicas", "unavailableReplicas") and count > found["replicas"]:
                yield Cause.invalid(f"status.{name}", count, "cannot be greater than status.replicas")
        available = found["availableReplicas"]
        if self._kind != "statefulset" and available > found["replicas"]:
            yield Cause.invalid("status.availableReplicas", available, "cannot be greater than status.replicas")
        if available > found["readyReplicas"]:
            where = "status.readyReplicas" if self._kind == "statefulset" else "readyReplicas"
            yield Cause.invalid("status.availableReplicas", available, f"cannot be greater than {where}")

    def _validate_selector(self, spec: Json, causes: list[Cause]) -> None:
        selector = spec.get("selector")
        if selector is None:
            causes.append(Cause.required("spec.selector"))
            return
        label_selector(selector, "spec.selector", causes)
        if not any(selector.values()):
            why = f"empty selector is invalid for {self._kind}"
            causes.append(Cause.invalid("spec.selector", selector, why))


class StatefulSetStrategy(_WorkloadStrategy):
    def default(self, obj: Json) -> None:
        super().default(obj)
        spec = obj["spec"]
        spec.setdefault("serviceName", "")
        spec.setdefault("podManagementPolicy", "OrderedReady")
        strategy = spec.setdefault("updateStrategy", {})
        if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
            strategy.setdefault("rollingUpdate", {}).setdefault("partition", 0)
        spec.setdefault("revisionHistoryLimit", 10)
        retention = spec.setdefault("persistentVolumeClaimRetentionPolicy", {})
        for when in ("whenDeleted", "whenScaled"):
            retention.setdefault(when, "Retain")
        for claim in spec.get("volumeClaimTemplates") or ():
            claim.setdefault("kind", "PersistentVolumeClaim")
            claim.setdefault("apiVersion", "v1")
            persistentvolumeclaims.default_spec(claim.setdefault("spec", {}))
            claim.setdefault("status", {}).setdefault("phase", "Pending")
        status = obj["status"]
        for count in ("replicas", "availableReplicas"):
            status.setdefault(count, 0)

    def prepare_create(self, obj: Json) -> None:
        obj["status"] = {"replicas": 0, "availableReplicas": 0}

    def validate_create(self, obj: Json) -> Sequence[Cause]:
        return [*object_meta.validate_of_kind(obj["metadata"], names.dns_label), *self._validate_spec(obj["spec"])]

    def validate_update(self, new: Json, old: Json, subresource: str) -> Sequence[Cause]:
        if subresource == "status":
            return super().validate_update(new, old, subresource)
        causes = list(object_meta.validate_update_of_kind(new["metadata"], old["metadata"]))
        causes.extend(self._validate_spec(new["spec"]))
        changed = {key for key in {**new["spec"], **old["spec"]} if new["spec"].get(key) != old["spec"].get(key)}
        if changed - set(_SET_MAY_CHANGE):
            causes.append(Cause.forbidden("spec", _SET_FIXED))
        return causes

    def _validate_spec(self, spec: Json) -> list[Cause]:
        causes: list[Cause] = []
        policy = spec["podManagementPolicy"]
        if policy not in ("OrderedReady", "Parallel"):
            causes.append(Cause.invalid("spec.podManagementPolicy", policy, "must be 'OrderedReady' or 'Parallel'"))
        causes.extend(_set_strategy(spec["updateStrategy"]))
        for when, wanted in spec["persistentVolumeClaimRetentionPolicy"].items():
            _one_of_in_order(wanted, ("Retain", "Delete"), f"spec.persistentVolumeClaimRetentionPolicy.{when}", causes)
        causes.extend(_not_negative(spec, "spec", "replicas", "minReadySeconds"))
        causes.extend(_not_negative(spec.get("ordinals") or {}, "spec.ordinals", "start"))
        self._validate_selector(spec, causes)
        causes.extend(_unselected(spec))
        # A stock server checks these labels twice.
        causes.extend([*_template_metadata(spec["template"])] * 2)
        if not spec["template"]["spec"].get("containers"):
            causes.append(Cause.required("spec.template.spec.containers"))
        causes.extend(_always_restarts(spec["template"]))
        return causes


class DeploymentStrategy(_WorkloadStrategy):
    def default(self, obj: Json) -> None:
        super().default(obj)
        spec = obj["spec"]
        strategy = spec.setdefault("strategy", {})
        if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
            rolling = strategy.setdefault("rollingUpdate", {})
            rolling.setdefault("maxUnavailable", "25%")
            rolling.setdefault("maxSurge", "25%")
        spec.setdefault("revisionHistoryLimit", 10)
        spec.setdefault("progressDeadlineSeconds", 600)
        fill_condition_times(obj["status"], "lastUpdateTime", "lastTransitionTime")

    def prepare_create(self, obj: Json) -> None:
        obj["status"] = {}

    def prepare_update(self, new: Json, old: Json, subresource: str) -> None:
        super().prepare_update(new, old, subresource)
        meta, before = new["metadata"], old["metadata"]
        if subresource == "status":
            meta.pop("labels", None)
            if "labels" in before:
                meta["labels"] = before["labels"]
        elif new["spec"] == old["spec"] and meta.get("annotations") != before.get("annotations"):
            meta["generation"] = before.get("generation", 0) + 1

    def _validate_spec(self, spec: Json) -> list[Cause]:
        causes = list(_not_negative(spec, "spec", "replicas"))
        self._validate_selector(spec, causes)
        causes.extend(_validate_template(spec))
        causes.extend(_deployment_strategy(spec["strategy"]))
        causes.extend(_not_negative(spec, "spec", "minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"))
        deadline = spec["progressDeadlineSeconds"]
        if deadline <= (spec.get("minReadySeconds") or 0):
            why = "must be greater than minReadySeconds"
            causes.append(Cause.invalid("spec.progressDeadlineSeconds", deadline, why))
        return causes


class ReplicaSetStrategy(_WorkloadStrategy):
    def default(self, obj: Json) -> None:
        super().default(obj)
        obj["status"].setdefault("replicas", 0)

    def prepare_create(self, obj: Json) -> None:
        obj["status"] = {"replicas": 0}

    def _validate_spec(self, spec: Json) -> list[Cause]:
        causes = list(_not_negative(spec, "spec", "replicas", "minReadySeconds"))
        self._validate_selector(spec, causes)
        return [*causes, *_validate_template(spec)]


class ControllerRevisionStrategy(Strategy):
    def validate_create(self, obj: Json) -> Sequence[Cause]:
        causes = list(object_meta.validate_of_kind(obj["metadata"]))
        if obj.get("data") is None:
            causes.append(Cause.required("data", "data is mandatory"))
        return [*causes, *_not_negative(obj, "", "revision")]

    def validate_update(self, new: Json, old: Json, subresource: str) -> Sequence[Cause]:
        causes = [
            *object_meta.validate_update_of_kind(new["metadata"], old["metadata"]),
            *_not_negative(new, "", "revision"),
        ]
        if new.get("data") != old.get("data"):
            causes.append(Cause.invalid("data", new.get("data"), "field is immutable"))
        return causes


def _not_negative(owner: Mapping[str, Any], where: str, *fields: str) -> Iterator[Cause]:
    for field in fields:
        if (value := owner.get(field) or 0) < 0:
            yield Cause.invalid(f"{where}.{field}".lstrip("."), value, _NOT_NEGATIVE)


def _one_of_in_order(value: str, legal: Sequence[str], where: str, causes: list[Cause]) -> None:
    """Check as `one_of` does; the message names the legal values in the order of the stock server."""
    if value not in legal:
        shown = ", ".join(f'"{name}"' for name in legal)
        cause = Cause.unsupported(where, value, [])
        causes.append(Cause(cause.reason, where, f"{cause.message}{shown}"))


def _set_strategy(strategy: Json) -> Iterator[Cause]:
    kind, rolling = strategy["type"], strategy.get("rollingUpdate")
    where = "spec.updateStrategy"
    if kind == "OnDelete" and rolling is not None:
        shown = {"Partition": rolling.get("partition"), "MaxUnavailable": rolling.get("maxUnavailable")}
        yield Cause.invalid(f"{where}.rollingUpdate", shown, "only allowed for updateStrategy 'RollingUpdate'")
    elif kind == "RollingUpdate":
        yield from _not_negative(rolling or {}, f"{where}.rollingUpdate", "partition")
        yield from _amount(rolling or {}, "maxUnavailable", f"{where}.rollingUpdate")
    elif kind != "OnDelete":
        yield Cause.invalid(where, {"Type": kind, "RollingUpdate": None}, "must be 'RollingUpdate' or 'OnDelete'")


def _deployment_strategy(strategy: Json) -> Iterator[Cause]:
    kind, rolling = strategy["type"], strategy.get("rollingUpdate") or {}
    where = "spec.strategy"
    if kind == "Recreate" and rolling:
        why = "may not be specified when strategy `type` is 'Recreate'"
        yield Cause.forbidden(f"{where}.rollingUpdate", why)
    elif kind == "RollingUpdate":
        yield from _amount(rolling, "maxUnavailable", f"{where}.rollingUpdate", only="form")
        yield from _amount(rolling, "maxSurge", f"{where}.rollingUpdate", only="form")
        if all(str(rolling[name]).rstrip("%") == "0" for name in ("maxUnavailable", "maxSurge")):
            yield Cause.invalid(
                f"{where}.rollingUpdate.maxUnavailable",
                rolling["maxUnavailable"],
                "may not be 0 when `maxSurge` is 0",
            )
        yield from _amount(rolling, "maxUnavailable", f"{where}.rollingUpdate", only="size")
    elif kind not in ("Recreate", "RollingUpdate"):
        odd = Cause.invalid(where, {"Type": kind, "RollingUpdate": None}, "").message.removeprefix("Invalid value: ")
        legal = 'supported values: "Recreate", "RollingUpdate"'
        yield Cause("FieldValueNotSupported", where, f"Unsupported value: {odd}{legal}")


def _amount(owner: Json, field: str, where: str, *, only: str = "") -> Iterator[Cause]:
    """Check a number or a percentage of pods. only: its `form` or its `size`; else both."""
    value = owner.get(field)
    if isinstance(value, str):
        if not _PERCENT.fullmatch(value):
            why = (
                "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', "
                "regex used for validation is '[0-9]+%')"
            )
            yield from [Cause.invalid(f"{where}.{field}", value, why)] if only != "size" else []
        elif int(value[:-1]) > 100 and only != "form":
            yield Cause.invalid(f"{where}.{field}", value, "must not be greater than 100%")
    elif only != "size":
        yield from _not_negative(owner, where, field)


def _unselected(spec: Json) -> Iterator[Cause]:
    """Refuse a template whose labels the selector does not match. A selector that is absent matches nothing."""
    selector, labels = spec.get("selector"), spec["template"].get("metadata", {}).get("labels") or {}
    if selector is not None and (not any(selector.values()) or label_selector_matches(selector, labels)):
        return
    yield Cause.invalid("spec.template.metadata.labels", labels, "`selector` does not match template `labels`")


def _template_metadata(template: Json) -> Iterator[Cause]:
    meta = template.get("metadata") or {}
    yield from object_meta.validate_labels(meta.get("labels") or {}, "spec.template.labels")


def _validate_template(spec: Json) -> Iterator[Cause]:
    """Check the template of ReplicaSet and Deployment: as a pod. A StatefulSet's pods are checked as they are made."""
    yield from _unselected(spec)
    yield from _template_metadata(spec["template"])
    causes: list[Cause] = []
    pod_validation.validate_spec(spec["template"]["spec"], "", causes)
    yield from (Cause(each.reason, f"spec.template.{each.field}", each.message) for each in causes)
    yield from _always_restarts(spec["template"])


def _always_restarts(template: Json) -> list[Cause]:
    causes: list[Cause] = []
    one_of(template["spec"]["restartPolicy"], ("Always",), "spec.template.spec.restartPolicy", causes)
    return causes


def format_selector(selector: Json | None) -> str:
    """Return a LabelSelector as text (metav1.FormatLabelSelector)."""
    if selector is None or not any(selector.values()):
        return "<none>"
    words = {"In": "in", "NotIn": "notin"}
    terms = [(key, f"{key}={value}") for key, value in (selector.get("matchLabels") or {}).items()]
    for term in selector.get("matchExpressions") or ():
        key, operator = term["key"], term["operator"]
        values = ",".join(sorted(term.get("values") or ()))
        shown = f"{key} {words[operator]} ({values})" if operator in words else key
        terms.append((key, f"!{key}" if operator == "DoesNotExist" else shown))
    return ",".join(shown for _, shown in sorted(terms))


def _containers(field: str) -> Callable[[Json], str]:
    def cell(obj: Json) -> str:
        listed = obj["spec"]["template"]["spec"].get("containers") or ()
        return ",".join(str(each.get(field, "")) for each in listed)

    return cell


def _ready(obj: Json) -> str:
    return f"{obj['status'].get('readyReplicas') or 0}/{obj['spec'].get('replicas') or 0}"


def _selector(description: str) -> Column:
    return Column("Selector", description, lambda obj: format_selector(obj["spec"].get("selector")), priority=1)


_READY: Final = Column("Ready", "Number of the pod with ready state", _ready)
_CONTAINERS: Final = (
    Column("Containers", "Names of each container in the template.", _containers("name"), priority=1),
    Column("Images", "Images referenced by each container in the template.", _containers("image"), priority=1),
)


def _workload(kind: str, short: str, strategy: Strategy, columns: Sequence[Column]) -> Resource:
    return Resource(
        group="apps",
        version="v1",
        plural=f"{kind.lower()}s",
        kind=kind,
        singular=kind.lower(),
        namespaced=True,
        strategy=strategy,
        columns=(NAME, *columns),
        short_names=(short,),
        categories=("all",),
        subresources=("scale", "status"),
        generation=True,
        returns_deleted=False,
        collected=True,
    )


STATEFUL_SET: Final = _workload(
    "StatefulSet",
    "sts",
    StatefulSetStrategy(
        "statefulset", ("replicas", "readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas")
    ),
    (_READY, AGE, *_CONTAINERS),
)
DEPLOYMENT: Final = _workload(
    "Deployment",
    "deploy",
    DeploymentStrategy(
        "deployment", ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas", "unavailableReplicas")
    ),
    (
        _READY,
        Column(
            "Up-to-date",
            "Total number of non-terminating pods targeted by this deployment that have the desired template spec.",
            path("status", "updatedReplicas", absent=0),
        ),
        Column(
            "Available",
            "Total number of available non-terminating pods (ready for at least minReadySeconds) targeted by this"
            " deployment.",
            path("status", "availableReplicas", absent=0),
        ),
        AGE,
        *_CONTAINERS,
        _selector(
            "Label selector for pods. Existing ReplicaSets whose pods are selected by this will be the ones affected by"
            " this deployment. It must match the pod template's labels."
        ),
    ),
)
REPLICA_SET: Final = _workload(
    "ReplicaSet",
    "rs",
    ReplicaSetStrategy("replicaset", ("replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas")),
    (
        Column(
            "Desired",
            "Replicas is the number of desired pods. This is a pointer to distinguish between explicit zero and"
            " unspecified. Defaults to 1. More info:"
            " https://kubernetes.io/docs/concepts/workloads/controllers/replicaset",
            path("spec", "replicas", absent=0),
            type="integer",
        ),
        Column(
            "Current",
            "Replicas is the most recently observed number of non-terminating pods. More info:"
            " https://kubernetes.io/docs/concepts/workloads/controllers/replicaset",
            path("status", "replicas", absent=0),
            type="integer",
        ),
        Column(
            "Ready",
            "The number of non-terminating pods targeted by this ReplicaSet with a Ready Condition.",
            path("status", "readyReplicas", absent=0),
            type="integer",
        ),
        AGE,
        *_CONTAINERS,
        _selector(
            "Selector is a label query over pods that should match the replica count. Label keys and values that must"
            " match in order to be controlled by this replica set. It must match the pod template's labels. More info:"
            " https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors"
        ),
    ),
)


def _controller(revision: Json) -> str:
    owners = revision["metadata"].get("ownerReferences") or ()
    owner = next((each for each in owners if each.get("controller")), None)
    if owner is None:
        return "<none>"
    group = owner["apiVersion"].rpartition("/")[0]
    return f"{owner['kind'].lower()}{f'.{group}' if group else ''}/{owner['name']}"


CONTROLLER_REVISION: Final = Resource(
    group="apps",
    version="v1",
    plural="controllerrevisions",
    kind="ControllerRevision",
    singular="controllerrevision",
    namespaced=True,
    strategy=ControllerRevisionStrategy(),
    columns=(
        NAME,
        Column("Controller", "Controller of the object", _controller),
        Column(
            "Revision",
            "Revision indicates the revision of the state represented by Data.",
            path("revision", absent=0),
        ),
        AGE,
    ),
    returns_deleted=False,
)
