from __future__ import annotations

import pytest

from unit.embedded.apiserver.rules import Json, begun, kind, merge, refused, refused_change
from volplane_embedded.apiserver.resources import Since

CORE, NEW = kind("Event", ""), kind("Event", "events.k8s.io")
OLD_STYLE = {"involvedObject": {"kind": "PersistentVolume", "name": "v"}, "reason": "R", "message": "m"}
NEW_STYLE = {
    "eventTime": "2026-01-01T00:00:00.000000Z",
    "reportingController": "volplane.dev/x",
    "reportingInstance": "i",
    "action": "Bind",
    "reason": "R",
    "type": "Normal",
    "note": "n",
    "regarding": {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "c"},
}


def test_an_event_always_shows_its_times_and_reporters() -> None:
    made = begun(CORE, OLD_STYLE)
    assert {key: made[key] for key in ("firstTimestamp", "lastTimestamp", "eventTime", "source")} == {
        "firstTimestamp": None,
        "lastTimestamp": None,
        "eventTime": None,
        "source": {},
    }
    assert (made["reportingComponent"], made["reportingInstance"]) == ("", "")


def test_both_apis_show_the_same_event() -> None:
    stored = begun(NEW, NEW_STYLE)
    assert stored["involvedObject"] == NEW_STYLE["regarding"]
    assert (stored["message"], stored["reportingComponent"]) == ("n", "volplane.dev/x")
    assert NEW.from_stored is not None
    shown = NEW.from_stored(stored)
    assert {key: shown[key] for key in NEW_STYLE} == NEW_STYLE
    assert NEW.storage == CORE.storage == "events"


def test_an_old_event_is_shown_by_the_new_api_with_deprecated_fields() -> None:
    stored = begun(
        CORE, {**OLD_STYLE, "count": 3, "source": {"component": "x"}, "lastTimestamp": "2026-01-01T00:00:00Z"}
    )
    assert NEW.from_stored is not None
    assert NEW.to_stored is not None
    shown = NEW.from_stored(stored)
    assert shown == {
        "metadata": {"namespace": "default", "name": "a"},
        "regarding": {"kind": "PersistentVolume", "name": "v"},
        "reason": "R",
        "note": "m",
        "eventTime": None,
        "deprecatedCount": 3,
        "deprecatedSource": {"component": "x"},
        "deprecatedFirstTimestamp": None,
        "deprecatedLastTimestamp": "2026-01-01T00:00:00Z",
    }
    again = NEW.to_stored(shown)
    CORE.strategy.default(again)
    assert again == stored


@pytest.mark.parametrize(
    ("namespace", "about", "fits"),
    [
        ("default", "", True),
        ("kube-system", "", False),
        ("default", "default", True),
        ("kube-system", "default", False),
    ],
)
def test_an_event_stands_in_the_namespace_of_its_object(namespace: str, about: str, fits: bool) -> None:
    involved = {"kind": "Pod", "name": "p", **({"namespace": about} if about else {})}
    obj = {"metadata": {"name": "a", "namespace": namespace}, "involvedObject": involved}
    assert refused(CORE, obj) == ([] if fits else [("involvedObject.namespace", "Invalid")])


def test_a_new_style_event_must_say_who_did_what() -> None:
    assert refused(NEW, NEW_STYLE) == []
    bare = {"regarding": NEW_STYLE["regarding"], "eventTime": NEW_STYLE["eventTime"]}
    assert refused(NEW, bare) == [
        ("reportingController", "Required"),
        ("reportingController", "Invalid"),
        ("reportingController", "Invalid"),
        ("reportingInstance", "Required"),
        ("action", "Required"),
        ("reason", "Required"),
        ("type", "Invalid"),
    ]
    assert refused(NEW, {**NEW_STYLE, "deprecatedCount": 1, "series": {"count": 1}}) == [
        ("series.count", "Invalid"),
        ("series.lastObservedTime", "Required"),
        ("count", "Invalid"),
    ]
    assert refused(NEW, {**NEW_STYLE, "note": "x" * 1025}) == [("message", "Invalid")]
    assert refused(NEW, {**NEW_STYLE, "deprecatedSource": {"component": "c"}}) == [("source", "Invalid")]
    elsewhere = {"regarding": {"kind": "Pod", "name": "p", "namespace": "other"}}
    assert refused(NEW, {**NEW_STYLE, **elsewhere}) == []


def test_of_a_new_style_event_only_the_series_changes() -> None:
    stored = begun(NEW, NEW_STYLE)
    series = {"count": 2, "lastObservedTime": "2026-01-01T00:01:00.000000Z"}
    assert refused_change(CORE, stored, merge(stored, {"series": series, "message": "other"})) == []
    after = merge(stored, {"series": series, "message": "other"})
    found = NEW.strategy.validate_update(after, stored, "")
    assert [cause.field for cause in found] == ["message"]


@pytest.mark.parametrize(
    ("event", "cells"),
    [
        (
            {
                **OLD_STYLE,
                "count": 4,
                "firstTimestamp": "2026-01-01T00:00:00Z",
                "lastTimestamp": "2026-01-01T00:01:00Z",
            },
            {"Last Seen": "2026-01-01T00:01:00Z", "First Seen": "2026-01-01T00:00:00Z", "Count": 4, "Source": ""},
        ),
        (
            {**OLD_STYLE, "source": {"component": "x", "host": "h"}},
            {"Last Seen": None, "Count": 1, "Source": "x, h", "Object": "persistentvolume/v"},
        ),
        (
            {**OLD_STYLE, "series": {"count": 7, "lastObservedTime": "2026-01-01T00:02:00.000000Z"}},
            {"Last Seen": "2026-01-01T00:02:00.000000Z", "Count": 7},
        ),
    ],
)
def test_kubectl_sees_when_and_how_often(event: Json, cells: Json) -> None:
    made = begun(CORE, event)
    shown = {column.name: column.cell(made) for column in CORE.columns}
    plain = {name: value.time if isinstance(value, Since) else value for name, value in shown.items()}
    assert {name: plain[name] for name in cells} == cells


def test_events_are_selected_by_what_they_are_about() -> None:
    made = begun(CORE, {**OLD_STYLE, "source": {"component": "x"}})
    assert CORE.fields["involvedObject.kind"](made) == "PersistentVolume"
    assert NEW.fields["regarding.name"](made) == "v"
    assert CORE.fields["source"](made) == "x"
    assert CORE.fields["involvedObject.namespace"](made) == ""
