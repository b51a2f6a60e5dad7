"""Events of core/v1 and of events.k8s.io/v1, which are two representations of the same objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from volplane_embedded.apiserver import names, object_meta
from volplane_embedded.apiserver.errors import Cause
from volplane_embedded.apiserver.kinds.printer_columns import NAME, field_text, path
from volplane_embedded.apiserver.kinds.validation import refused
from volplane_embedded.apiserver.resources import Column, Json, Resource, Since, Strategy

_NEW_TO_CORE: Final[Mapping[str, str]] = {
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
_CORE_TO_NEW: Final = {core: new for new, core in _NEW_TO_CORE.items()}
_EMPTY_DROPPED: Final = frozenset({"reportingController", "reportingInstance", "note", "deprecatedCount"})


def _fill(event: Json) -> None:
    """Set the fields that a core/v1 event always has."""
    event.setdefault("involvedObject", {})
    event.setdefault("source", {})
    for key in ("firstTimestamp", "lastTimestamp", "eventTime"):
        event.setdefault(key, None)
    for key in ("reportingComponent", "reportingInstance"):
        event.setdefault(key, "")


def _to_core(event: Json) -> Json:
    """Return an events.k8s.io/v1 event as core/v1 event."""
    return {_NEW_TO_CORE.get(key, key): value for key, value in event.items()}


def _from_core(event: Json) -> Json:
    """Return a core/v1 event as events.k8s.io/v1 event."""
    shown: Json = {}
    for key, value in event.items():
        name = _CORE_TO_NEW.get(key, key)
        if value or name not in _EMPTY_DROPPED:
            shown[name] = value
    return shown


_STORAGE: Final = "events"
_TEXT_LIMIT: Final = 128
_NOTE_LIMIT: Final = 1024
_DEFAULT_NAMESPACES: Final = ("", "default")
_FIXED: Final = (
    ("involvedObject", "involvedObject"),
    ("reason", "reason"),
    ("message", "message"),
    ("source", "source"),
    ("firstTimestamp", "firstTimestamp"),
    ("lastTimestamp", "lastTimestamp"),
    ("count", "count"),
    ("reason", "reason"),
    ("type", "type"),
    ("eventTime", "eventTime"),
    ("action", "action"),
    ("related", "related"),
    ("reportingComponent", "reportingController"),
    ("reportingInstance", "reportingInstance"),
)
"""Immutable fields of an events.k8s.io/v1 event, and their names in messages. A stock server checks reason twice."""


class CoreEventStrategy(Strategy):
    def default(self, obj: Json) -> None:
        _fill(obj)

    def validate_create(self, obj: Json) -> Sequence[Cause]:
        causes: list[Cause] = []
        _validate(obj, causes, reporting="reportingComponent")
        return causes

    def validate_update(self, new: Json, old: Json, subresource: str) -> Sequence[Cause]:
        return self.validate_create(new)


class NewEventStrategy(CoreEventStrategy):
    """The stricter rules of events.k8s.io/v1, applied to the core/v1 form."""

    def validate_create(self, obj: Json) -> Sequence[Cause]:
        causes: list[Cause] = []
        _validate(obj, causes, reporting="reportingController")
        causes.extend(object_meta.validate_of_kind(obj["metadata"]))
        _validate_series(obj, causes)
        if not obj.get("eventTime"):
            causes.append(Cause.required("eventTime"))
        if (kind := obj.get("type", "")) not in ("Normal", "Warning"):
            causes.append(Cause.invalid("type", "", f"has invalid value: {kind}"))
        causes.extend(
            Cause.invalid(key, "", "needs to be unset")
            for key in ("firstTimestamp", "lastTimestamp", "count")
            if obj.get(key)
        )
        if any((obj.get("source") or {}).values()):
            causes.append(Cause.invalid("source", "", "needs to be unset"))
        return causes

    def validate_update(self, new: Json, old: Json, subresource: str) -> Sequence[Cause]:
        causes: list[Cause] = []
        _validate(new, causes, reporting="reportingController")
        causes.extend(object_meta.validate_update_of_kind(new["metadata"], old["metadata"]))
        if new.get("series") != old.get("series"):
            _validate_series(new, causes)
        causes.extend(
            Cause.invalid(shown, new.get(key, ""), "field is immutable")
            for key, shown in _FIXED
            if new.get(key) != old.get(key)
        )
        return causes


def _validate(event: Json, causes: list[Cause], *, reporting: str) -> None:
    namespace = event["metadata"].get("namespace", "")
    about = (event.get("involvedObject") or {}).get("namespace") or ""
    if event.get("eventTime"):
        wrong = not about and namespace not in ("default", "kube-system")
    else:
        wrong = (namespace not in _DEFAULT_NAMESPACES) if not about else namespace != about
    if wrong:
        causes.append(Cause.invalid("involvedObject.namespace", about, "does not match event.namespace"))
    if event.get("eventTime"):
        _validate_reporting(event, causes, reporting)


def _validate_reporting(event: Json, causes: list[Cause], reporting: str) -> None:
    controller = event.get("reportingComponent") or ""
    if not controller:
        causes.append(Cause.required(reporting))
    refused(names.qualified_name(controller), controller, reporting, causes)
    for key in ("reportingInstance", "action", "reason"):
        value = event.get(key) or ""
        if not value:
            causes.append(Cause.required(key))
        elif len(value) > _TEXT_LIMIT:
            causes.append(Cause.invalid(key, "", f"can have at most {_TEXT_LIMIT} characters"))
    if len(event.get("message") or "") > _NOTE_LIMIT:
        causes.append(Cause.invalid("message", "", f"can have at most {_NOTE_LIMIT} characters"))


def _validate_series(event: Json, causes: list[Cause]) -> None:
    series = event.get("series")
    if series is None:
        return
    if (series.get("count") or 0) < 2:
        causes.append(Cause.invalid("series.count", series.get("count", 0), "should be at least 2"))
    if not series.get("lastObservedTime"):
        causes.append(Cause.required("series.lastObservedTime"))


def _first(event: Json) -> Since:
    return Since(event.get("firstTimestamp") or event.get("eventTime"))


def _last(event: Json) -> Since:
    series = event.get("series")
    if series:
        return Since(series.get("lastObservedTime"))
    return Since(event["lastTimestamp"]) if event.get("lastTimestamp") else _first(event)


def _count(event: Json) -> Any:
    series = event.get("series")
    return series.get("count") if series else event.get("count") or 1


def _object(event: Json) -> str:
    about = event.get("involvedObject") or {}
    kind, name = str(about.get("kind", "")).lower(), about.get("name", "")
    return f"{kind}/{name}" if name else kind


def _source(event: Json) -> str:
    source = event.get("source") or {}
    component = source.get("component") or event.get("reportingComponent") or ""
    host = source.get("host") or event.get("reportingInstance") or ""
    return f"{component}, {host}" if host else str(component)


def _message(event: Json) -> str:
    return str(event.get("message") or "").strip()


_COLUMNS: Final = (
    Column("Last Seen", "The time at which the most recent occurrence of this event was recorded.", _last),
    Column("Type", "Type of this event (Normal, Warning), new types could be added in the future", path("type")),
    Column(
        "Reason",
        "This should be a short, machine understandable string that gives the reason for the transition into the"
        " object's current status.",
        path("reason"),
    ),
    Column("Object", "The object that this event is about.", _object),
    Column(
        "Subobject",
        "If referring to a piece of an object instead of an entire object, this string should contain a valid"
        " JSON/Go field access statement, such as desiredState.manifest.containers[2].",
        path("involvedObject", "fieldPath"),
        priority=1,
    ),
    Column(
        "Source",
        "The component reporting this event. Should be a short machine understandable string.",
        _source,
        priority=1,
    ),
    Column("Message", "A human-readable description of the status of this operation.", _message),
    Column(
        "First Seen",
        "The time at which the event was first recorded. (Time of server receipt is in TypeMeta.)",
        _first,
        priority=1,
    ),
    Column("Count", "The number of times this event has occurred.", _count, priority=1),
    Column(NAME.name, NAME.description, NAME.cell, format="name", priority=1),
)

_ABOUT: Final = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")


def _selectable(prefix: str) -> Mapping[str, Any]:
    return {f"{prefix}.{key}": field_text("involvedObject", key) for key in _ABOUT}


def _component(event: Json) -> str:
    return str((event.get("source") or {}).get("component") or event.get("reportingComponent") or "")


_COMMON_FIELDS: Final = {
    "reason": field_text("reason"),
    "type": field_text("type"),
    "reportingComponent": field_text("reportingComponent"),
}

CORE: Final = Resource(
    group="",
    version="v1",
    plural="events",
    kind="Event",
    singular="event",
    namespaced=True,
    strategy=CoreEventStrategy(),
    columns=_COLUMNS,
    short_names=("ev",),
    fields={**_selectable("involvedObject"), **_COMMON_FIELDS, "source": _component},
    storage=_STORAGE,
    returns_deleted=False,
)

NEW: Final = Resource(
    group="events.k8s.io",
    version="v1",
    plural="events",
    kind="Event",
    singular="event",
    namespaced=True,
    strategy=NewEventStrategy(),
    columns=_COLUMNS,
    short_names=("ev",),
    fields={**_selectable("regarding"), **_COMMON_FIELDS, "reportingController": _component},
    storage=_STORAGE,
    to_stored=_to_core,
    from_stored=_from_core,
    faulty_group="",
    returns_deleted=False,
)
