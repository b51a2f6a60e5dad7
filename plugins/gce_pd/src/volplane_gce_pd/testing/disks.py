"""Methods of disks and regionDisks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from volplane_gce_pd.testing.behaviour import DiskRules
from volplane_gce_pd.testing.errors import ComputeError, bad_request, in_use, not_found
from volplane_gce_pd.testing.project import Effect, Project
from volplane_gce_pd.testing.records import URL, DiskRecord, OperationRecord, fingerprint

Params = Mapping[str, Any]
NAME = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
_MOST_LABELS = 64


def place_of(params: Params) -> str:
    """zones/<zone> or regions/<region> of a call."""
    return f"zones/{params['zone']}" if "zone" in params else f"regions/{params['region']}"


def insert(project: Project, method: str, params: Params) -> OperationRecord:
    """disks.insert: the name is taken at once, the disk is CREATING at first."""
    place, body = place_of(params), params["body"]
    project.require_place(place)
    name = body.get("name", "")
    if not NAME.fullmatch(name):
        raise bad_request("resource.name", name, "Must be a match of regex '[a-z]([-a-z0-9]*[a-z0-9])?'")
    if (place, name) in project.disks:
        path = project.disks[place, name].path(project.behaviour.project)
        raise ComputeError("alreadyExists", f"The resource '{path}' already exists")
    disk = _new_disk(project, place, name, body)
    lasting = (_quota_error(project, disk), _refused_key(project, body))
    for error in (*lasting, _stock_out(project, disk)):
        if error is not None:
            project.found_while_running(error)
    project.disks[place, name] = disk
    disk.busy += 1

    def begin() -> None:
        for error in (*lasting, _stock_out(project, disk)):
            if error is not None:
                project.disks.pop((place, name), None)
                raise error

    def end() -> None:
        project.contents.begin(target, _source(body))
        disk.status, disk.busy = "READY", disk.busy - 1

    def undo() -> None:
        project.disks.pop((place, name), None)

    target = disk.path(project.behaviour.project)
    return project.operate(method, params, place, target, Effect(begin=begin, end=end, undo=undo))


def _new_disk(project: Project, place: str, name: str, body: Params) -> DiskRecord:
    kind = str(body.get("type", "")).rpartition("/")[2] or "pd-standard"
    rules = project.behaviour.disk_types.get(kind)
    if rules is None or not str(body.get("type", "")).endswith(f"{place}/diskTypes/{kind}"):
        raise not_found(f"{str(body.get('type', '')).removeprefix(URL)}")
    regional = place.startswith("regions/")
    bounds = rules.regional_sizes if regional else rules.sizes
    if bounds is None:
        raise bad_request("resource.type", kind, "The disk type cannot be used by regional disks.")
    source = _source_size(project, body)
    _check_copy(project, place, kind, body)
    size = int(body.get("sizeGb", source or bounds[0]))
    if not bounds[0] <= size <= bounds[1]:
        raise bad_request("resource.sizeGb", size, f"Disk size must be between {bounds[0]} and {bounds[1]} GB.")
    if source and size < source:
        raise bad_request("resource.sizeGb", size, f"Disk size cannot be smaller than its source ({source} GB).")
    replicas = [str(url).rpartition("/")[2] for url in body.get("replicaZones", ())]
    if regional and (len(set(replicas)) != 2 or not set(replicas) <= set(project.behaviour.zones)):
        raise bad_request("resource.replicaZones", replicas, "Exactly 2 zones of the region must be given.")
    if not regional and replicas:
        raise bad_request("resource.replicaZones", replicas, "Only regional disks have replica zones.")
    mode = body.get("accessMode")
    if mode is not None and mode not in rules.access_modes:
        raise bad_request("resource.accessMode", mode, f"Disks of type {kind} do not support it.")
    _check_key(project, body)
    pool = body.get("storagePool")
    if pool is not None and str(pool).removeprefix(URL) not in project.behaviour.storage_pools:
        raise not_found(str(pool))
    least = _least(rules, size)
    usual = max(rules.default_iops, least[0]), max(rules.default_throughput, least[1])
    iops = _performance(body, "provisionedIops", rules.iops, usual[0], size * rules.iops_per_gb)
    throughput = _performance(body, "provisionedThroughput", rules.throughput, usual[1], 0)
    _check_least(rules, size, iops=iops, throughput=throughput)
    return DiskRecord(
        place=place,
        name=name,
        id=project.number(),
        wanted=dict(body),
        size=size,
        kind=kind,
        created=project.stamp(),
        labels=checked_labels(body.get("labels", {})),
        iops=iops,
        throughput=throughput,
    )


def _check_key(project: Project, body: Params) -> None:
    key = body.get("diskEncryptionKey", {}).get("kmsKeyName")
    if key is not None and key.partition("/cryptoKeyVersions/")[0] not in project.behaviour.kms_keys:
        raise ComputeError("invalid", f"Cloud KMS error when using key {key}: Permission denied or it does not exist.")
    if body.get("enableConfidentialCompute") and key is None:
        raise bad_request("resource.enableConfidentialCompute", value=True, why="A Cloud KMS key is required.")


def _refused_key(project: Project, body: Params) -> ComputeError | None:
    """Return the error of a key that the service agent of Compute Engine may not use."""
    key = body.get("diskEncryptionKey", {}).get("kmsKeyName")
    if key is None or project.behaviour.kms_keys[key.partition("/cryptoKeyVersions/")[0]]:
        return None
    why = f"Cloud KMS error when using key {key}: Permission 'cloudkms.cryptoKeyVersions.useToEncrypt' denied."
    return ComputeError("forbidden", why)


def _source_size(project: Project, body: Params) -> int:
    for field, kind in (("sourceSnapshot", "snapshots"), ("sourceImage", "images")):
        if field in body:
            return _restored(project, str(body[field]), field, kind)
    if "sourceDisk" in body:
        return project.disk_at(str(body["sourceDisk"]), "resource.sourceDisk").size
    return 0


def _restored(project: Project, url: str, field: str, kind: str) -> int:
    """Return the size of the snapshot or image, of which a disk is made now."""
    parts = url.removeprefix(URL).split("/")
    if len(parts) != 5 or parts[0] != "projects" or parts[2:4] != ["global", kind]:
        raise bad_request(f"resource.{field}", url, "The URL is malformed.")
    snapshot, name = project.snapshot(parts[4], kind, parts[1]), project.behaviour.project
    if snapshot.status != "READY":
        raise ComputeError("resourceNotReady", f"The resource '{snapshot.path(name)}' is not ready")
    most = project.behaviour.restores_a_minute
    snapshot.restored = [at for at in snapshot.restored if at > project.now - 60.0]
    if most is not None and len(snapshot.restored) >= most:
        message = f"Operation rate exceeded for resource '{snapshot.path(name)}'."
        raise ComputeError(
            "resourceOperationRateExceeded", f"{message} Too frequent operations from the source resource."
        )
    snapshot.restored.append(project.now)
    return snapshot.size


def _source(body: Params) -> str | None:
    """Return the path of what the disk is made of, if it is made of anything."""
    fields = ("sourceSnapshot", "sourceImage", "sourceDisk")
    return next((str(body[field]).removeprefix(URL) for field in fields if field in body), None)


def _check_copy(project: Project, place: str, kind: str, body: Params) -> None:
    """Refuse what a copy of a disk cannot be (Compute Engine documentation, "Disk clones")."""
    if "sourceDisk" not in body:
        return
    source = project.disk_at(str(body["sourceDisk"]), "resource.sourceDisk")
    keys = [each.get("diskEncryptionKey", {}).get("kmsKeyName", "") for each in (source.wanted, body)]
    zones = [str(url).rpartition("/")[2] for url in body.get("replicaZones", ())] or [place.partition("/")[2]]
    regional = source.place.startswith("regions/")
    if source.status != "READY":
        raise ComputeError("resourceNotReady", f"The resource '{source.name}' is not ready")
    if (
        source.kind != kind
        or len({key.partition("/cryptoKeyVersions/")[0] for key in keys}) > 1
        or (regional and not place.startswith("regions/"))
        or (not regional and source.zones[0] not in zones)
    ):
        raise bad_request("resource.sourceDisk", body["sourceDisk"], "A clone has type, key and place of its source.")


def _performance(body: Params, field: str, bounds: tuple[int, int] | None, default: int, most: int) -> int:
    if field not in body:
        return default
    value = int(body[field])
    if bounds is None:
        raise bad_request(f"resource.{field}", value, "It cannot be provisioned for this type of disk.")
    highest = min(bounds[1], max(bounds[0], most)) if most else bounds[1]
    if not bounds[0] <= value <= highest:
        raise bad_request(f"resource.{field}", value, f"It must be between {bounds[0]} and {highest}.")
    return value


def checked_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels. Raises invalid for what labels cannot be."""
    if len(labels) > _MOST_LABELS:
        raise bad_request("resource.labels", len(labels), f"At most {_MOST_LABELS} labels are allowed.")
    for key, value in labels.items():
        if not _KEY.fullmatch(key) or not _VALUE.fullmatch(value):
            raise bad_request("resource.labels", f"{key}={value}", "It has characters that labels cannot have.")
    return dict(labels)


def _quota_error(project: Project, disk: DiskRecord, more: int | None = None) -> ComputeError | None:
    ssd = project.behaviour.disk_types[disk.kind].ssd
    limit = project.behaviour.ssd_gb if ssd else project.behaviour.disks_gb
    metric = "SSD_TOTAL_GB" if ssd else "DISKS_TOTAL_GB"
    if project.used_gb(ssd=ssd) + (disk.size if more is None else more) <= limit:
        return None
    return ComputeError(
        "quotaExceeded", f"Quota '{metric}' exceeded. Limit: {limit}.0 in region {project.behaviour.region}."
    )


def _stock_out(project: Project, disk: DiskRecord) -> ComputeError | None:
    if not project.in_zones(disk.zones):
        return None
    return ComputeError(
        "zoneResourcePoolExhausted",
        f"The zone '{disk.zones[0]}' does not have enough resources available to fulfill the request.",
    )


def _idle(disk: DiskRecord, project: Project) -> DiskRecord:
    """Return the disk, unless an operation works on it."""
    if disk.busy or disk.status not in ("READY", "FAILED"):
        path = disk.path(project.behaviour.project)
        raise ComputeError("resourceNotReady", f"The resource '{path}' is not ready")
    return disk


def _refuse_soon_again(project: Project, disk: DiskRecord, *, limited: bool = True) -> None:
    """Raise resourceOperationRateExceeded for a hyperdisk that was changed less than four hours ago."""
    since = disk.changed if limited else None
    if since is not None and project.now < since + project.behaviour.hyperdisk_interval:
        path = disk.path(project.behaviour.project)
        raise ComputeError(
            "resourceOperationRateExceeded", f"Operation rate exceeded for resource '{path}'. It was changed recently."
        )


def _count_change(project: Project, disk: DiskRecord, *, limited: bool = True) -> None:
    if limited and disk.kind.startswith("hyperdisk-"):
        disk.changed = project.now


def delete(project: Project, method: str, params: Params) -> OperationRecord:
    """disks.delete: of one that is not attached."""
    place = place_of(params)
    disk = _idle(project.disk(place, params["disk"]), project)
    path = disk.path(project.behaviour.project)

    def refuse_used() -> ComputeError | None:
        if not disk.users:
            return None
        zone, name = next(iter(disk.users))
        return in_use(path, f"projects/{project.behaviour.project}/zones/{zone}/instances/{name}")

    if (error := refuse_used()) is not None:
        project.found_while_running(error)

    def begin() -> None:
        if (error := refuse_used()) is not None:
            raise error
        disk.status = "DELETING"

    def end() -> None:
        project.disks.pop((place, disk.name), None)

    def undo() -> None:
        disk.status = "READY"

    return project.operate(method, params, place, path, Effect(begin=begin, end=end, undo=undo))


def resize(project: Project, method: str, params: Params) -> OperationRecord:
    """disks.resize: it never shrinks."""
    place = place_of(params)
    disk = _idle(project.disk(place, params["disk"]), project)
    size = int(params["body"].get("sizeGb", 0))
    if size < disk.size:
        raise bad_request("sizeGb", size, f"New disk size must be greater than {disk.size} GB.")
    if size > project.behaviour.disk_types[disk.kind].sizes[1]:
        raise bad_request("sizeGb", size, "Disk size cannot be so large.")
    _check_least(project.behaviour.disk_types[disk.kind], size, iops=disk.iops, throughput=disk.throughput)
    _refuse_soon_again(project, disk)
    error = _quota_error(project, disk, size - disk.size)
    if error is not None:
        project.found_while_running(error)
    disk.busy += 1

    def begin() -> None:
        if error is not None:
            disk.busy -= 1
            raise error

    def end() -> None:
        disk.size, disk.busy = size, disk.busy - 1
        _count_change(project, disk)

    def undo() -> None:
        disk.busy -= 1

    path = disk.path(project.behaviour.project)
    return project.operate(method, params, place, path, Effect(begin=begin, end=end, undo=undo))


def _least(rules: DiskRules, size: int) -> tuple[int, int]:
    """Return the IOPS and throughput that a disk has at least (Compute Engine documentation, "Hyperdisk limits")."""
    return size * rules.least_iops_per_gb, int(size * rules.least_throughput_per_gb)


def _check_least(rules: DiskRules, size: int, *, iops: int, throughput: int) -> None:
    least = _least(rules, size)
    if iops < least[0]:
        raise bad_request("provisionedIops", iops, f"A disk of {size} GB must have at least {least[0]}.")
    if throughput < least[1]:
        raise bad_request("provisionedThroughput", throughput, f"A disk of {size} GB must have at least {least[1]}.")


def update(project: Project, method: str, params: Params) -> OperationRecord:
    """disks.update: the fields that the repeated parameter `paths` names."""
    place, body = place_of(params), params["body"]
    disk = _idle(project.disk(place, params["disk"]), project)
    rules = project.behaviour.disk_types[disk.kind]
    paths = params.get("paths", ())
    allowed = {"accessMode", "provisionedIops", "provisionedThroughput", "sizeGb"}
    if not paths or not set(paths) <= allowed or not set(paths) <= set(body):
        raise bad_request("paths", paths, f"What can be updated is {', '.join(sorted(allowed))}.")
    iops, throughput, size = disk.iops, disk.throughput, disk.size
    if "sizeGb" in paths:
        size = int(body["sizeGb"])
        if not disk.size <= size <= rules.sizes[1]:
            raise bad_request("sizeGb", size, f"Disk size must be between {disk.size} and {rules.sizes[1]} GB.")
    if "provisionedIops" in paths:
        iops = _performance(body, "provisionedIops", rules.iops, iops, size * rules.iops_per_gb)
    if "provisionedThroughput" in paths:
        throughput = _performance(body, "provisionedThroughput", rules.throughput, throughput, 0)
    mode = _changed_mode(rules, disk, body) if "accessMode" in paths else disk.wanted.get("accessMode")
    _check_least(rules, size, iops=iops, throughput=throughput)
    limited = set(paths) != {"accessMode"}
    _refuse_soon_again(project, disk, limited=limited)
    disk.busy += 1

    def end() -> None:
        disk.iops, disk.throughput, disk.size, disk.busy = iops, throughput, size, disk.busy - 1
        _count_change(project, disk, limited=limited)
        if mode is not None:
            disk.wanted["accessMode"] = mode

    def undo() -> None:
        disk.busy -= 1

    return project.operate(method, params, place, disk.path(project.behaviour.project), Effect(end=end, undo=undo))


def _changed_mode(rules: DiskRules, disk: DiskRecord, body: Params) -> str:
    """Return the new access mode: only that of a hyperdisk that is read by many can be set later, and not back."""
    mode = str(body["accessMode"])
    if "READ_ONLY_MANY" not in rules.access_modes or mode not in rules.access_modes:
        raise bad_request("accessMode", mode, f"It cannot be changed for disks of type {disk.kind}.")
    if mode != "READ_ONLY_MANY" and disk.wanted.get("accessMode") == "READ_ONLY_MANY":
        raise bad_request("accessMode", mode, "A disk that is read by many cannot be written again.")
    if "READ_WRITE" in disk.users.values():
        raise in_use(disk.name, next(name for _, name in disk.users))
    return mode


def set_labels(project: Project, method: str, params: Params) -> OperationRecord:
    """disks.setLabels: replaces all labels, for a caller that knows their fingerprint."""
    place, body = place_of(params), params["body"]
    disk = project.disk(place, params["resource"])
    if body.get("labelFingerprint") != fingerprint(disk.labels):
        raise ComputeError("conditionNotMet", "Labels fingerprint either invalid or resource labels have changed")
    labels = checked_labels(body.get("labels", {}))

    def begin() -> None:
        disk.labels = labels

    return project.operate(method, params, place, disk.path(project.behaviour.project), Effect(begin=begin))
