"""How volumes and assets are named, what the source of a volume contains, and which volumes share storage. Pure.

Volumes share storage if their sources are equal, or one lies within the other. Paths on nodes are compared for
`hostPath` and `local` together, and only if both can be on one node; storage on servers by what is asked of them, if
both name one of them; an in-tree disk of a cloud by the handle that its CSI driver has for it; all other sources by
what is not about mounting. Servers are compared by name: two names count as two servers.
"""

from __future__ import annotations

import functools
import hashlib
import ipaddress
import posixpath
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, combinations
from typing import Any, Final, NamedTuple

import msgspec
from sortedcontainers import SortedDict

from volplane.assets import Segment, VolumeSource
from volplane.kube import names
from volplane.kube.objects import Claim, Source, Volume, VolumeSpec

IN_TREE_PREFIX = "kubernetes.io/"
_PD: Final = "pd.csi.storage.gke.io"
_AZURE_DISK: Final = "disk.csi.azure.com"
_AZURE_FILE: Final = "file.csi.azure.com"

_KINDS: Final[Mapping[str, Mapping[str, Any]]] = names.VOLUME_SOURCES["sources"]
_MOUNT_FIELDS: Final = frozenset(names.VOLUME_SOURCES["mounting"])
SOURCES = sorted(
    ((each.name, each.encode_name) for each in msgspec.structs.fields(VolumeSpec) if each.type == Source),
    key=lambda source: source[0] not in {"csi", "local", "host_path", "nfs"},
)
"""(attribute, the API's key) of every source, the usual ones first."""
_UNKNOWN = "UNSPECIFIED"
_HOSTNAME: Final = "kubernetes.io/hostname"
_ANYWHERE: Final = ""
"""Stands for the label of volumes that are not pinned to nodes."""
_END: Final = "\U0010ffff"
"""Sorts after every key with the same prefix."""
_PD_HANDLE: Final = re.compile(r"projects/([^/]+)/((?:zones|regions)/[^/]+)/disks/([^/]+)")


def volume_name_of(claim: Claim) -> str:
    """Return the name of the volume, and of the asset, that is made for the claim."""
    return f"pvc-{claim.metadata.uid}"


def nodes_namespace(namespace: str) -> str:
    """Return the namespace of the processes of nodes, with their Leases and their sealing key. namespace: ours."""
    return f"{namespace}-nodes"


def no_room_told(namespace: str) -> str:
    """Return what it means that no process of a node has published room for a class. namespace: ours."""
    pods = f"kubectl -n {nodes_namespace(namespace)} get pods"
    return f"no node has told of room in its class: are the processes of nodes ready ({pods})?"


def node_hash(name: str) -> str:
    """Return the label value for the node of this name, which may be longer than a label value."""
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def handle_in(source: VolumeSource) -> str:
    """Return the backend's id of the asset as the source has it, or ""."""
    return str(source.fields.get(_KINDS.get(source.kind, {}).get("handle", ""), ""))


def handle_of(volume: Volume) -> str:
    """Return the backend's id of the volume's asset: as its maker has noted it, else as the source has it."""
    return volume.annotation(names.HANDLE) or handle_in(volume_source(volume))


def csi_source(volume: Volume) -> tuple[str, str]:
    """Return CSI driver name and handle; for an in-tree source of a cloud those that the CSI driver has for it.

    Other sources have two empty texts. Source: k8s.io/csi-translation-lib/plugins.
    """
    spec = volume.spec
    # The usual sources first: this is asked for every change of a volume.
    if spec.csi is not None:
        return str(spec.csi.get("driver", "")), str(spec.csi.get("volumeHandle", ""))
    if spec.local is not None or spec.host_path is not None:
        return "", ""
    source, labels = volume_source(volume), volume.metadata.labels or {}
    driver, handle = _KINDS.get(source.kind, {}).get("driver"), handle_in(source)
    match source.kind:
        case "awsElasticBlockStore":
            handle = handle.split("/")[-1]
        case "gcePersistentDisk":
            zones = labels.get("topology.kubernetes.io/zone") or labels.get("failure-domain.beta.kubernetes.io/zone")
            first, several, _ = (zones or _UNKNOWN).partition("__")
            place = f"regions/{first.rpartition('-')[0]}" if several else f"zones/{first}"
            handle = f"projects/{_UNKNOWN}/{place}/disks/{handle}"
    return (driver, handle) if driver and handle else ("", "")


def is_in_tree(driver: str) -> bool:
    """Return whether this names a plugin of Kubernetes: its absence is an error, its marks are the stock ones."""
    return driver.startswith(IN_TREE_PREFIX)


def reclaim_finalizer(driver: str) -> str:
    return names.IN_TREE_FINALIZER if is_in_tree(driver) else names.RECLAIM_FINALIZER


@functools.lru_cache(256)
def attacher_finalizer(driver: str) -> str:
    """Return the finalizer on attachments of this CSI driver name, the same as the external-attacher's."""
    return "external-attacher/" + re.sub("[^A-Za-z0-9-]", "-", driver)


def shows_asset(volume: Volume) -> bool:
    """Return whether its annotations say what made it and which asset it holds: a webhook may have removed them."""
    maker = volume.annotation(names.PROVISIONED_BY)
    return maker is not None and (is_in_tree(maker) or volume.annotation(names.HANDLE) is not None)


def generation_of(volume: Volume) -> int:
    """Return which asset of its claim the volume holds; 1, if the annotation is absent or damaged."""
    text = volume.annotation(names.GENERATION) or ""
    return int(text) if text.isdecimal() and len(text) < 10 else 1


def asset_key(volume: Volume) -> str:
    """Return the name by which operations of a driver exclude each other: ours, else handle or source, unmounted."""
    if volume.annotation(names.PROVISIONED_BY) is not None:
        return volume.name
    source, (driver, handle) = volume_source(volume), csi_source(volume)
    if driver or source.kind == "csi":
        return f"csi:{handle}"
    return f"{source.kind}:{sorted((key, each) for key, each in source.fields.items() if key not in _MOUNT_FIELDS)}"


def volume_source(volume: Volume) -> VolumeSource:
    """Return the volume's source under the API's key; one of kind "" if it has none that we know."""
    spec = volume.spec
    for attribute, key in SOURCES:
        fields = getattr(spec, attribute)
        if fields is not None:
            return VolumeSource(kind=key, fields=fields)
    return VolumeSource(kind="", fields={})


def affinity_of(segments: Iterable[Segment]) -> dict[str, Any]:
    """Return the node affinity of a volume that each of the segments can reach, as a part of its spec."""
    terms = [
        {"matchExpressions": [{"key": key, "operator": "In", "values": [segment[key]]} for key in sorted(segment)]}
        for segment in segments
    ]
    return {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}} if terms else {}


def volume_with(source: VolumeSource, segments: Iterable[Segment] = (), *, name: str = "") -> Volume:
    """Return the volume that an asset would have, as far as `Overlaps` compares it."""
    spec = {source.kind: dict(source.fields), **affinity_of(segments)}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, Volume)


class Overlap(NamedTuple):
    """Another volume that shares storage."""

    name: str
    relation: str
    """How the first one's source is related to it, for messages."""


@dataclass(slots=True)
class Overlaps:
    """An index of the places of all volumes of a cache. A place is a text; a place within another begins with it.

    Places of paths end with "/". A path on nodes is listed under each node label value that its volume is pinned to,
    and under the label alone, so that a lookup costs the same for one node as for thousands with the same path.
    """

    _names: SortedDict[str, str | set[str]] = field(default_factory=SortedDict)
    _pins: Counter[str] = field(default_factory=Counter)

    def changed(self, old: Volume | None, new: Volume | None) -> None:
        if old is not None and new is not None and old.metadata.labels == new.metadata.labels:
            pinned = old.spec.node_affinity == new.spec.node_affinity
            if old.spec == new.spec or (pinned and volume_source(old) == volume_source(new)):
                return
        before, former_pins = ((), ()) if old is None else _places(old)
        after, pins = ((), ()) if new is None else _places(new)
        if before == after:
            return
        self._pins.subtract(former_pins)
        self._pins.update(pins)
        self._pins = +self._pins
        for place in before:
            self._drop(place, old.name if old is not None else "")
        for place in after:
            self._add(place, new.name if new is not None else "")

    def of(self, volume: Volume, *, outer: bool = True) -> Overlap | None:
        """Return another volume that shares the storage of this one. outer: one within whose storage it lies counts."""
        for place in _sought(volume, self._pins):
            for key, relation in self._near(place):
                other = next((name for name in self._at(key) if name != volume.name), None)
                if other is not None and (outer or key.startswith(place)):
                    return Overlap(other, relation)
        return None

    def same_asset(self, volume: Volume) -> list[str]:
        """Return the names of the volumes that stand for the asset of this one, which is no path on nodes; sorted."""
        source = volume_source(volume)
        if not source.kind or _node_path(source) is not None:
            return []
        places = _named(volume, sought=True)
        return sorted({name for place in places if place in self._names for name in self._at(place)})

    def freed_by(self, gone: Volume) -> list[str]:
        """Return the names of volumes that may share their storage with none, now that this one is gone; sorted."""
        keys = {key for place in _sought(gone, self._pins) for key, _ in self._near(place)}
        return sorted({name for key in keys if len(found := self._at(key)) == 1 for name in found})

    def _at(self, place: str) -> Collection[str]:
        found = self._names[place]
        return (found,) if isinstance(found, str) else found

    def _near(self, place: str) -> Iterator[tuple[str, str]]:
        """Yield the listed places that equal, contain, or lie within this one, with the relation."""
        if place in self._names:
            yield place, "is that of"
        if not place.endswith("/"):
            return
        cut = place.find("/") + 1
        while 0 < cut < len(place):
            if place[:cut] in self._names:
                yield place[:cut], "lies within that of"
            cut = place.find("/", cut) + 1
        for key in self._names.irange(place, place + _END, inclusive=(False, True)):
            yield key, "contains that of"

    def _add(self, place: str, name: str) -> None:
        found = self._names.get(place)
        if found is None:
            self._names[place] = name  # The usual case needs no set.
        elif isinstance(found, str):
            self._names[place] = {found, name}
        else:
            found.add(name)

    def _drop(self, place: str, name: str) -> None:
        found = self._names.get(place)
        if isinstance(found, set):
            found.discard(name)
            if len(found) == 1:
                self._names[place] = found.pop()
        elif found == name:
            del self._names[place]


def _places(volume: Volume) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return where the volume is listed, and the node label by which it is pinned, if it is a path on nodes.

    One that shows a snapshot has no storage of its own: its deletion takes nothing away.
    """
    source = volume_source(volume)
    if not source.kind or volume.annotation(names.BACKING_SNAPSHOT):
        return (), ()
    if (path := _node_path(source)) is None:
        return tuple(dict.fromkeys(_named(volume, sought=False))), ()
    label, values = _pinned(volume)
    return (*(_on_nodes(label, value, path) for value in values), _on_nodes(label, "", path)), (label,)


def _sought(volume: Volume, pins: Mapping[str, int]) -> Iterator[str]:
    """Yield the places at which volumes that share its storage are listed. pins: labels by which volumes are pinned."""
    source = volume_source(volume)
    if not source.kind or volume.annotation(names.BACKING_SNAPSHOT):
        return
    if (path := _node_path(source)) is None:
        yield from _named(volume, sought=True)
        return
    label, values = _pinned(volume)
    if label != _ANYWHERE:
        yield from (_on_nodes(label, value, path) for value in values)
    # Two different labels may select the same nodes.
    yield from (_on_nodes(other, "", path) for other in pins if other != label or label == _ANYWHERE)


def _on_nodes(label: str, value: str, path: str) -> str:
    # The first "/" of a place is the root of its path.
    return f"node:{label.replace('/', '|')}:{value.replace('/', '|')}:{path}"


def _node_path(source: VolumeSource) -> str | None:
    path = source.fields.get("path")
    return _normal(path) if source.kind in {"hostPath", "local"} and isinstance(path, str) and path else None


def _normal(path: str) -> str:
    """Return `/a/b/` for every spelling of /a/b."""
    clean = posixpath.normpath(f"/{path}").lstrip("/")
    return f"/{clean}/" if clean else "/"


def _named(volume: Volume, *, sought: bool) -> Iterator[str]:
    """Yield the places of a volume whose source is no path on nodes. sought: those to look up.

    Storage on several servers has a place on each: another volume may name some of them only.
    """
    source = volume_source(volume)
    kind, fields, about = source.kind, source.fields, _KINDS.get(source.kind, {})
    if kind != "csi" and "driver" not in about:
        what = {key: each for key, each in fields.items() if each and key not in _MOUNT_FIELDS}
        servers = [_host(each) for key in about.get("servers", ()) for each in _texts(what.pop(key, ""))]
        text = msgspec.json.encode(what, order="deterministic").decode().lower() + "\0"
        if "handle" in about:
            text = _normal(str(what.get(about["handle"], "/")))
        yield from (f"{kind}:{server}:{text}" for server in (servers if "servers" in about else [""]))
        return
    driver, handle = csi_source(volume)
    given = fields.get("volumeAttributes")
    attributes = {key.lower(): str(each) for key, each in given.items()} if isinstance(given, Mapping) else {}
    if attributes.get("server") and "share" in attributes:
        path = f"{attributes['share']}/{attributes.get('subdir', '')}"
        yield f"nfs:{_host(attributes['server'])}:{_normal(path)}"
    if old := attributes.get("initialvolumefilepath"):
        yield f"csi:{driver}:{old}\0"  # The in-tree name of a disk that is migrated to the CSI driver of vSphere.
    if _AZURE_FILE in (driver, about.get("driver")):
        account, share = _azure_share(source, attributes)
        yield from _by_parts(f"azure-file:{share or handle}", [account], sought=sought)
    elif driver == _PD and (disk := _PD_HANDLE.fullmatch(handle)):
        known = ["" if _UNKNOWN in part else part for part in disk.group(1, 2)]
        yield from _by_parts(f"pd:{disk[3]}", known, sought=sought)
    else:
        yield f"csi:{driver}:{handle.lower() if driver == _AZURE_DISK else handle}\0"


def _by_parts(what: str, parts: Sequence[str], *, sought: bool) -> Iterator[str]:
    """Yield the places of what is known by these parts, too, of which "" is unknown: all that two know must agree.

    It is listed by which parts it knows, with the values of those that another one may know.
    """
    mine = {number for number, part in enumerate(parts) if part}
    for others in chain.from_iterable(combinations(range(len(parts)), count) for count in range(len(parts) + 1)):
        both = sorted(mine.intersection(others))
        yield f"{what}:{list(others) if sought else sorted(mine)}:{both}:{[parts[number] for number in both]}\0"


def _azure_share(source: VolumeSource, attributes: Mapping[str, str]) -> tuple[str, str]:
    if source.kind == "csi":
        _, account, share, *_ = [*handle_in(source).split("#"), "", ""]
        return attributes.get("storageaccount", account), attributes.get("sharename", share).lower()
    account = re.sub(r"azure-storage-account-(.+)-secret", r"\1", str(source.fields.get("secretName", "")))
    return account, str(source.fields.get("shareName", "")).lower()


def _texts(value: Any) -> list[str]:
    """Return the texts in a list, and in a text those between commas."""
    texts = [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str)]
    return [part for each in texts for part in each.split(",") if part]


def _host(text: str) -> str:
    """Return one spelling of an address, a host without its port, version and nonce (Ceph), or a world wide name."""
    bare = re.sub(r"^\[?v[12]:|^0x", "", text.strip().lower()).partition("/")[0]
    if re.fullmatch(r"([0-9a-f]{2}:){7}[0-9a-f]{2}", bare):
        return bare.replace(":", "")
    if bare.startswith("["):
        bare = bare[1:].partition("]")[0]
    elif bare.count(":") == 1:
        bare = bare.partition(":")[0]
    with suppress(ValueError):
        return ipaddress.ip_address(bare).compressed
    return bare.rstrip(".]")


def _pinned(volume: Volume) -> tuple[str, tuple[str, ...]]:
    """Return the node label that every term of the affinity demands, and its values; `_ANYWHERE` if there is none."""
    choices = [
        {
            each.key: each.values or []
            for each in (*(term.match_expressions or ()), *(term.match_fields or ()))
            if each.operator == "In"
        }
        for term in volume.node_terms
    ]
    common = set.intersection(*map(set, choices)) if choices else set()
    if not common:
        return _ANYWHERE, ()
    label = _HOSTNAME if _HOSTNAME in common else min(common)
    return label, tuple(sorted({value for choice in choices for value in choice[label]}))
