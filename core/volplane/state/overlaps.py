"""Which volumes share storage: sources that are equal, or of which one lies within the other. Pure.

Paths on nodes are compared for `hostPath` and `local` together, and only where both can be on one node; NFS exports by
server and path; all other sources by their handle. Servers are compared by name: two names of one server are two
servers.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from sortedcontainers import SortedDict

from volplane.assets import VolumeSource
from volplane.kube.objects import NodeSelectorTerm, Volume
from volplane.state.naming import handle_in, source_of

__all__ = ["Overlap", "Overlaps"]

_HOSTNAME: Final = "kubernetes.io/hostname"
_ANYWHERE: Final = ""
"""In place of the label of volumes that are not pinned to nodes."""
_END: Final = "\U0010ffff"
"""Sorts behind every key that begins with the same path."""
_MOUNT_FIELDS: Final = frozenset({"fsType", "readOnly", "secretRef", "secretName", "mountOptions", "partition"})
"""Fields of a source that say how it is mounted, not what it is."""


class Overlap(NamedTuple):
    """Another volume that shares storage. relation: how the first one's source lies to it, for messages."""

    name: str
    relation: str


class Overlaps:
    """The places of all volumes of a cache. A place is a text; a place within another begins with it.

    Places of paths end with "/". A path on nodes is listed under each node label value that its volume is pinned to,
    and under the label alone, so that thousands of nodes with the same path cost a lookup what one node costs.
    """

    def __init__(self) -> None:
        self._names: SortedDict[str, str | set[str]] = SortedDict()
        self._pins: Counter[str] = Counter()

    def changed(self, old: Volume | None, new: Volume | None) -> None:
        """Follow the cache."""
        if old is not None and new is not None and _stays(old, new):
            return
        before = () if old is None else _places(old)
        after = () if new is None else _places(new)
        if before == after:
            return
        if old is not None:
            self._pins.subtract(_pins_used(old))
            for place in before:
                self._drop(place, old.name)
        if new is not None:
            self._pins.update(_pins_used(new))
            for place in after:
                self._add(place, new.name)
        self._pins = +self._pins

    def of(self, volume: Volume) -> Overlap | None:
        """A volume, other than this one, that shares its storage."""
        for place in _sought(volume, self._pins):
            for key, relation in self._near(place):
                other = next((name for name in self._at(key) if name != volume.name), None)
                if other is not None:
                    return Overlap(other, relation)
        return None

    def sharing(self, source: VolumeSource) -> list[str]:
        """Names of the volumes that have this very source, which is no path on nodes; sorted."""
        return sorted({name for place in _elsewhere(source) if place in self._names for name in self._at(place)})

    def freed_by(self, gone: Volume) -> list[str]:
        """Names of volumes that may share their storage with none, now that this one is gone; sorted."""
        keys = {key for place in _sought(gone, self._pins) for key, _ in self._near(place)}
        return sorted({name for key in keys if len(names := self._at(key)) == 1 for name in names})

    def _at(self, place: str) -> Collection[str]:
        names = self._names[place]
        return (names,) if isinstance(names, str) else names

    def _near(self, place: str) -> Iterator[tuple[str, str]]:
        """Places that equal, contain, or lie within this one."""
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
        """One name, the usual case, costs no set."""
        names = self._names.get(place)
        if names is None:
            self._names[place] = name
        elif isinstance(names, str):
            self._names[place] = {names, name}
        else:
            names.add(name)

    def _drop(self, place: str, name: str) -> None:
        names = self._names.get(place)
        if isinstance(names, set):
            names.discard(name)
            if len(names) == 1:
                self._names[place] = names.pop()
        elif names == name:
            del self._names[place]


def _stays(old: Volume, new: Volume) -> bool:
    """Whether the place is the same, as in nearly every change of a volume."""
    if old.spec == new.spec:
        return True
    return old.spec.node_affinity == new.spec.node_affinity and source_of(old) == source_of(new)


def _places(volume: Volume) -> tuple[str, ...]:
    """Where the volume is listed."""
    source = source_of(volume)
    if source is None:
        return ()
    if (path := _node_path(source)) is None:
        return _elsewhere(source)
    label, values = _pinned(volume)
    return (*(_on_nodes(label, value, path) for value in values), _on_nodes(label, "", path))


def _sought(volume: Volume, pins: Mapping[str, int]) -> Iterator[str]:
    """Places at which volumes that share its storage would be listed. pins: labels by which volumes are pinned."""
    source = source_of(volume)
    if source is None:
        return
    if (path := _node_path(source)) is None:
        yield from _elsewhere(source)
        return
    label, values = _pinned(volume)
    if label != _ANYWHERE:
        yield from (_on_nodes(label, value, path) for value in values)
    # Whether two different labels select the same nodes is unknown here: they may.
    yield from (_on_nodes(other, "", path) for other in pins if other != label or label == _ANYWHERE)


def _pins_used(volume: Volume) -> tuple[str, ...]:
    source = source_of(volume)
    return (_pinned(volume)[0],) if source is not None and _node_path(source) is not None else ()


def _on_nodes(label: str, value: str, path: str) -> str:
    # The first "/" of a place is the root of its path.
    return f"node:{label.replace('/', '|')}:{value.replace('/', '|')}:{path}"


def _node_path(source: VolumeSource) -> str | None:
    path = source.fields.get("path")
    return _normal(path) if source.kind in {"hostPath", "local"} and isinstance(path, str) and path else None


def _normal(path: str) -> str:
    """`/a/b/` for every spelling of /a/b."""
    clean = posixpath.normpath(f"/{path}").lstrip("/")
    return f"/{clean}/" if clean else "/"


def _elsewhere(source: VolumeSource) -> tuple[str, ...]:
    fields = source.fields
    if source.kind == "nfs":
        return _export(fields.get("server"), fields.get("path"))
    places: tuple[str, ...] = ()
    if source.kind == "csi":
        attributes = fields.get("volumeAttributes")
        if isinstance(attributes, Mapping):
            places = _export(attributes.get("server"), attributes.get("share"), attributes.get("subDir"))
        return (f"csi:{fields.get('driver')}:{handle_in(source)}\0", *places)
    what = {key: value for key, value in fields.items() if key not in _MOUNT_FIELDS}
    return (f"{source.kind}:{msgspec.json.encode(what, order='deterministic').decode()}\0",)


def _export(server: Any, *paths: Any) -> tuple[str, ...]:
    if not isinstance(server, str) or not server or not isinstance(paths[0], str):
        return ()
    host = server.lower().rstrip(".").removeprefix("[").removesuffix("]").replace("/", "|")
    return (f"nfs:{host}:{_normal('/'.join(path for path in paths if isinstance(path, str)))}",)


def _pinned(volume: Volume) -> tuple[str, tuple[str, ...]]:
    """The node label that every term of the affinity demands, and its values; `_ANYWHERE` if there is none."""
    affinity = volume.spec.node_affinity
    terms = (
        affinity.required.node_selector_terms if affinity is not None and affinity.required is not None else None
    ) or ()
    choices = [_demanded(term) for term in terms]
    if not choices:
        return _ANYWHERE, ()
    common = set.intersection(*(set(choice) for choice in choices))
    if not common:
        return _ANYWHERE, ()
    label = _HOSTNAME if _HOSTNAME in common else min(common)
    return label, tuple(sorted({value for choice in choices for value in choice[label]}))


def _demanded(term: NodeSelectorTerm) -> dict[str, list[str]]:
    """The values that a term allows of each label, where it names them."""
    named = [*(term.match_expressions or ()), *(term.match_fields or ())]
    return {each.key: each.values or [] for each in named if each.operator == "In"}
