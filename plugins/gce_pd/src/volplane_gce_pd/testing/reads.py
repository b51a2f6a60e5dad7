"""Methods that read: get, list and aggregatedList, with filters and pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from volplane_gce_pd.testing.disks import place_of
from volplane_gce_pd.testing.errors import bad_request, not_found, unreachable
from volplane_gce_pd.testing.project import Project
from volplane_gce_pd.testing.records import URL
from volplane_testing.cloud import page_of

Params = Mapping[str, Any]
Json = dict[str, Any]
R = TypeVar("R")
_TERM = re.compile(
    r'\(?\s*(?P<field>[a-z][\w.-]*)\s*(?P<operator>=|:)\s*(?:"(?P<quoted>[^"]*)"|(?P<plain>[\w*-]+))\s*\)?'
)


def get(project: Project, method: str, params: Params) -> Json:
    """Return one resource. Raises notFound."""
    service = method.partition(".")[0]
    name = project.behaviour.project
    if service in ("disks", "regionDisks"):
        return project.disk(place_of(params), params["disk"]).shown(name)
    if service == "instances":
        return project.instance(params["zone"], params["instance"]).shown(name)
    if service in ("snapshots", "images"):
        return project.snapshot(params[service.removesuffix("s")], service, params["project"]).shown(name)
    if service == "machineTypes":
        return _machine_type(project, params["zone"], params["machineType"])
    place = "global" if service == "globalOperations" else place_of(params)
    found = project.operations.get((place, params["operation"]))
    if found is None:
        raise not_found(f"projects/{name}/{place}/operations/{params['operation']}")
    return found.shown(name)


def _machine_type(project: Project, zone: str, name: str) -> Json:
    project.require_place(f"zones/{zone}")
    most = project.behaviour.machine_types.get(name)
    if most is None:
        raise not_found(f"projects/{project.behaviour.project}/zones/{zone}/machineTypes/{name}")
    return {"kind": "compute#machineType", "name": name, "zone": zone, "maximumPersistentDisks": most}


def list_some(project: Project, method: str, params: Params) -> Json:
    """Return a page of one zone, one region or all zones, in the order of names."""
    service = method.partition(".")[0]
    name = project.behaviour.project
    if service == "zones":
        items: Iterable[Json] = (_zone(project, zone) for zone in project.behaviour.zones)
        return _page(project, items, params, "compute#zoneList")
    if service in ("snapshots", "images"):
        table = project.images if service == "images" else project.snapshots
        items = (each.shown(name) for each in table.values() if (each.project or name) == params["project"])
        return _page(project, items, params, f"compute#{service.removesuffix('s')}List")
    place = "global" if service == "globalOperations" else place_of(params)
    if place != "global":
        project.require_place(place)
    if service in ("disks", "regionDisks"):
        items = (disk.shown(name) for disk in _records(project.disks, place, params))
        return _page(project, items, params, "compute#diskList")
    if service == "instances":
        items = (each.shown(name) for each in _records(project.instances, place.partition("/")[2], params))
        return _page(project, items, params, "compute#instanceList")
    items = (each.shown(name) for each in _records(project.operations, place, params))
    return _page(project, items, params, "compute#operationList")


def _records(table: Mapping[tuple[str, str], R], place: str, params: Params) -> Iterable[R]:
    """Return those of a place; where the filter names some, only these are looked at."""
    names = _names_in(params.get("filter"))
    if names is None:
        return (record for (where, _), record in table.items() if where == place)
    return (table[place, name] for name in sorted(names) if (place, name) in table)


def _names_in(text: str | None) -> set[str] | None:
    """Return the names in a filter that is about names alone; None for any other."""
    terms = text.split(" OR ") if text else []
    matches = [_TERM.fullmatch(term.strip()) for term in terms]
    names = {match["quoted"] or match["plain"] for match in matches if match and match["field"] == "name"}
    return names if terms and len(names) == len(set(terms)) else None


def _zone(project: Project, zone: str) -> Json:
    base = f"{URL}projects/{project.behaviour.project}"
    return {
        "kind": "compute#zone",
        "name": zone,
        "status": project.behaviour.zone_states.get(zone, "UP"),
        "region": f"{base}/regions/{project.behaviour.region}",
        "selfLink": f"{base}/zones/{zone}",
    }


def aggregated_list(project: Project, method: str, params: Params) -> Json:
    """Return a page of the disks, machines or operations of all zones and of the region, by place.

    What a place that cannot be reached does to the call depends on the version of the API: until 2026-09-01 it had the
    parameter returnPartialSuccess.
    """
    behaviour = project.behaviour
    places = [*(f"zones/{zone}" for zone in behaviour.zones), f"regions/{behaviour.region}"]
    lost = [place for place in places if place.partition("/")[2] in behaviour.unreachable]
    if lost and not behaviour.partial_lists:
        raise unreachable(lost[0])
    field = {"disks": "disks", "instances": "instances"}.get(method.partition(".")[0], "operations")
    if field == "operations":
        places.append("global")
    table: Mapping[tuple[str, str], Any] = getattr(project, field)
    matches = _matcher(params.get("filter"))
    shown = [
        (place, each.shown(behaviour.project))
        for place in places
        if place not in lost
        for each in _records(table, place.partition("/")[2] if field == "instances" else place, params)
    ]
    page, following = _cut(
        project, [each for each in shown if matches(each[1])], lambda each: f"{each[0]}/{each[1]['name']}", params
    )
    items: Json = {}
    for place, each in page:
        items.setdefault(place, {field: []})[field].append(each)
    for place in places:
        if place in lost:
            items[place] = {"warning": {"code": "UNREACHABLE", "message": f"Unable to reach {place}."}}
        elif place not in items:
            message = f"There are no results for scope '{place}' on this page."
            items[place] = {"warning": {"code": "NO_RESULTS_ON_PAGE", "message": message}}
    answer: Json = {"kind": f"compute#{field.removesuffix('s')}AggregatedList", "items": items}
    if lost:
        answer["unreachables"] = [f"projects/{behaviour.project}/{place}" for place in lost]
    return answer | ({"nextPageToken": following} if following else {})


def _page(project: Project, items: Iterable[Json], params: Params, kind: str) -> Json:
    matches = _matcher(params.get("filter"))
    page, following = _cut(project, [item for item in items if matches(item)], lambda item: str(item["name"]), params)
    return {"kind": kind, "items": page} | ({"nextPageToken": following} if following else {})


def _cut(project: Project, items: list[Any], place: Callable[[Any], str], params: Params) -> tuple[list[Any], Any]:
    wanted = int(params.get("maxResults", project.behaviour.max_results))
    if not 0 < wanted <= 500:
        raise bad_request("maxResults", wanted, "Values must be within the range of [1, 500].")
    try:
        return page_of(items, place, size=min(wanted, project.behaviour.max_results), token=params.get("pageToken"))
    except ValueError as error:
        raise bad_request("pageToken", params.get("pageToken"), str(error)) from None


def _matcher(text: str | None) -> Callable[[Json], bool]:
    """Return the filters that are one comparison, or several with OR between them. Raises invalid for any other."""
    if not text:
        return lambda _item: True
    terms = [_term(part) for part in text.split(" OR ")]
    return lambda item: any(term(item) for term in terms)


def _term(text: str) -> Callable[[Json], bool]:
    match = _TERM.fullmatch(text.strip())
    if match is None:
        raise bad_request("filter", text, "Invalid list filter expression.")
    field, wanted = match["field"], match["quoted"] if match["quoted"] is not None else match["plain"]

    def holds(item: Json) -> bool:
        labels = item.get("labels", {})
        found = labels.get(field.removeprefix("labels.")) if field.startswith("labels.") else item.get(field)
        if match["operator"] == ":" and wanted == "*":
            return found is not None
        return found == wanted

    return holds
