"""The tables of the page: their rows, kept as objects change, and the part of them that a browser asks for."""

from __future__ import annotations

import asyncio
import itertools
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final

from volplane._messages import size_text
from volplane.kube.cache import Cache
from volplane.kube.objects import CsiStorageCapacity, KubeObject, Node, Volume
from volplane.kube.quantity import parse
from volplane.state.matching import capacity_of, selects, whole_bytes
from volplane.ui import rows
from volplane.ui.rows import COLUMNS, Row, row, shown
from volplane.ui.told import Told
from volplane.ui.watched import Watched

MOST_ROWS: Final = 500
"""Of one answer."""
_LONGEST_SEARCH: Final = 200
_AT_ONCE: Final = 200
"""Objects whose rows are made before others may work: some milliseconds."""
_KINDS: Final[Mapping[str, str]] = {
    "PersistentVolumeClaim": "claim",
    "PersistentVolume": "volume",
    "Pod": "pod",
    "VolumeSnapshot": "snapshot",
}
_ORDER: Final = attrgetter("order", "id")


@dataclass(slots=True)
class Table:
    """Rows in their order, of which only those are made anew whose objects changed."""

    make: Callable[[str, str], Sequence[Row]]
    """(kind, key) -> the rows of an object now."""
    _rows: dict[tuple[str, str], Sequence[Row]] = field(default_factory=dict)
    _dirty: dict[tuple[str, str], None] = field(default_factory=dict)
    _sorted: list[Row] | None = None
    _found: tuple[str, list[Row]] | None = None

    def touch(self, kind: str, key: str) -> None:
        """Have the rows of the object made again before they are shown."""
        self._dirty[kind, key] = None

    def work(self, most: int) -> bool:
        """Make the rows of at most so many changed objects; return whether others are left."""
        for place in tuple(itertools.islice(self._dirty, most)):
            del self._dirty[place]
            made = self.make(*place)
            if made != (before := self._rows.get(place, ())):
                self._sorted = self._found = None
            if made:
                self._rows[place] = made
            elif before:
                del self._rows[place]
        return bool(self._dirty)

    def rows(self) -> list[Row]:
        """Return all rows in order."""
        self.work(len(self._dirty))
        if self._sorted is None:
            self._sorted = sorted((each for made in self._rows.values() for each in made), key=_ORDER)
        return self._sorted

    def found(self, search: str, columns: Sequence[str]) -> list[Row]:
        """Return the rows that the search finds."""
        every = self.rows()
        if not search.strip():
            return every
        if self._found is None or self._found[0] != search:
            terms = words(search)
            self._found = search, [each for each in every if matches(each, terms, columns)]
        return self._found[1]


def matches(found: Row, terms: Iterable[str], columns: Sequence[str]) -> bool:
    """Return whether every term is in the row; `column:word` looks at one column, `-word` excludes."""
    for term in terms:
        wanted = not term.startswith("-")
        word = term if wanted else term[1:]
        column, colon, rest = word.partition(":")
        if colon and column in columns:
            cell = found.cells[columns.index(column)]
            inside = rest in str(cell if isinstance(cell, str) else cell.get("text", "")).lower()
        else:
            inside = word in found.find
        if inside is not wanted:
            return False
    return True


def words(search: str) -> list[str]:
    """Return the words of a search in lower case; quotes keep several together."""
    text = search[:_LONGEST_SEARCH].lower()
    try:
        return [each for each in shlex.split(text) if each != "-"]
    except ValueError:  # A quote is still open.
        return text.replace('"', " ").replace("'", " ").split()


class Tables:
    """All tables of what is watched and told."""

    def __init__(self, watched: Watched) -> None:
        self.watched = watched
        self.told = Told()
        makers: Mapping[str, Callable[[str, str], Sequence[Row]]] = {
            "waiting": self._waiting,
            "claims": self._of(watched.claims, rows.of_claim),
            "volumes": self._of(watched.volumes, rows.of_volume),
            "nodes": self._of(watched.nodes, self._node),
            "segments": self._of(watched.capacities, _of_capacity),
            "snapshots": self._of(watched.snapshots, rows.of_snapshot),
            "trash": self._of(watched.volumes, rows.of_trash),
        }
        self._tables = {view: Table(make) for view, make in makers.items()}
        sources: Mapping[str, tuple[Cache[Any], tuple[str, ...]]] = {
            "claim": (watched.claims, ("waiting", "claims")),
            "volume": (watched.volumes, ("waiting", "volumes", "trash")),
            "attachment": (watched.attachments, ("waiting",)),
            "snapshot": (watched.snapshots, ("waiting", "snapshots")),
            "pod": (watched.pods, ("waiting",)),
            "node": (watched.nodes, ("nodes",)),
            "capacity": (watched.capacities, ("segments",)),
        }
        self._sources = tuple(sources.values())
        self._caches = {kind: cache for kind, (cache, _) in sources.items()}
        for kind, (cache, views) in sources.items():
            cache.subscribe(self._toucher(kind, [self._tables[view] for view in views]))
        watched.attachments.subscribe(self._attachment_changed)
        watched.capacities.subscribe(self._capacity_changed)
        watched.events.subscribe(self._event_changed)
        watched.volumes.subscribe(self._volume_changed)
        self._volumes, self._bytes = Counter[str](), Counter[str]()
        """Of each driver."""
        self.changes = 0
        """Grows with every change of anything shown."""

    def tell(self, told: Told) -> None:
        """Take in what the controller said."""
        before, self.told = self.told, told
        if told == before:
            return
        self.changes += 1
        for queue in before.reasons.keys() | told.reasons.keys():
            old, new = before.reasons.get(queue, {}), told.reasons.get(queue, {})
            for key in old.keys() | new.keys():
                if old.get(key) != new.get(key):
                    for kind in self._caches:  # A key names objects of several kinds; those without one have no rows.
                        self._tables["waiting"].touch(kind, key)
        for uid in before.operations.keys() | told.operations.keys():
            for each in (*before.operations.get(uid, ()), *told.operations.get(uid, ())):
                for kind in self._caches:
                    self._tables["waiting"].touch(kind, each["key"])

    async def settle(self) -> None:
        """Make the rows of what has changed, a few at a time: other work of this process goes on meanwhile."""
        for table in self._tables.values():
            while table.work(_AT_ONCE):  # noqa: ASYNC110 - it yields, and waits for nothing
                await asyncio.sleep(0)

    def window(self, view: str, search: str, start: int, count: int) -> dict[str, Any]:
        """Return the rows of a view from `start` on, and how many the search finds of how many. Raises KeyError."""
        columns = COLUMNS[view]
        if view in self._tables:
            found, every = self._tables[view].found(search, columns), len(self._tables[view].rows())
        else:
            makers = {"drivers": self._drivers, "operations": self._operations, "leaks": self._leaks}
            made, terms = makers[view](), words(search)
            found, every = [each for each in made if matches(each, terms, columns)], len(made)
        shown_rows = found[max(0, start) : max(0, start) + max(0, min(count, MOST_ROWS))]
        return {
            "view": view,
            "columns": columns,
            "known": self._known(view),
            "total": every,
            "found": len(found),
            "start": start,
            "rows": [{"id": each.id, "cells": each.cells, "tone": each.tone} for each in shown_rows],
        }

    def _known(self, view: str) -> bool:
        """Return whether the kinds of the view were read; of those that a cluster may lack, where they are all."""
        caches = [cache for cache, views in self._sources if view in views]
        return all(cache.listed.is_set() or (cache.kind.optional and len(caches) > 1) for cache in caches)

    def counts(self) -> dict[str, int]:
        """Return how many rows each view has."""
        counted = {view: len(table.rows()) for view, table in self._tables.items()}
        operations = sum(map(len, self.told.operations.values()))
        leaks = len(self.told.leaks.get("findings", ()))
        return {**counted, "drivers": len(self.told.drivers), "operations": operations, "leaks": leaks}

    def _of(self, cache: Cache[Any], make: Callable[[Any], Sequence[Row]]) -> Callable[[str, str], Sequence[Row]]:
        def made(_kind: str, key: str) -> Sequence[Row]:
            item = cache.get(key)
            return make(item) if item is not None else ()

        return made

    def _waiting(self, kind: str, key: str) -> Sequence[Row]:
        makers: Mapping[str, Callable[..., Sequence[Row]]] = {
            "claim": rows.waiting_claim,
            "volume": rows.waiting_volume,
            "attachment": rows.waiting_attachment,
            "snapshot": rows.waiting_snapshot,
            "pod": rows.waiting_pod,
        }
        item = self._caches[kind].get(key)
        if item is None or kind not in makers:
            return ()
        return makers[kind](item, self.told, self.watched.events.by_index("about", item.uid))

    def _node(self, node: Node) -> Sequence[Row]:
        attached = sum(each.status.attached for each in self.watched.attachments.by_index("node", node.name))
        labels = node.metadata.labels or {}
        rooms = [
            room
            for each in self.watched.capacities.values()
            if each.node_topology is not None and selects(each.node_topology, labels)
            if (room := _bytes(each.capacity)) is not None
        ]
        return rows.of_node(node, attached, max(rooms, default=None))

    def _drivers(self) -> list[Row]:
        """Return the drivers that the controller has, and others that made volumes."""
        operations = [each for several in self.told.operations.values() for each in several]
        running = Counter(each["driver"] for each in operations)
        failing = Counter(each["driver"] for each in operations if each["error"])
        free: dict[str, int] = {}
        for capacity in self.watched.capacities.values():
            found = self.watched.classes.get(capacity.storage_class_name)
            if found is not None and (room := _bytes(capacity.capacity)) is not None:
                free[found.provisioner] = max(free.get(found.provisioner, 0), room)
        known = {each["name"]: each for each in self.told.drivers}
        made = []
        unknown = "not known" if self.told.silence else "not of this controller"
        for name in sorted(known.keys() | +self._volumes):
            each = known.get(name, {})
            state = "hung" if each.get("hung") else each.get("state", unknown)
            held_and_free = (str(self._volumes[name]), size_text(self._bytes[name]), size_text(free.get(name)))
            counted = (*held_and_free, str(running[name]), str(failing[name]))
            about = (shown(name), shown(each.get("backend")) or "-", shown(state), *counted)
            tone = "good" if each.get("healthy") else "bad" if each else ""
            made.append(row(name, *about, shown(each.get("error")) or "-", tone=tone))
        return made

    def _operations(self) -> list[Row]:
        """Return the controller's operations, those that fail most first."""
        made = []
        for each in (each for several in self.told.operations.values() for each in several):
            due = self.told.wall(each["next_try"])
            after: rows.Cell = "-" if due is None else {"due": due}
            since: rows.Cell = {"age": self.told.wall(each["since"])}
            about = (self._object(each["key"]), shown(each["driver"]) or "-", shown(each["phase"]))
            state = (str(each["failures"]), shown(each["error"]) or "-", since, after)
            tone, order = "bad" if each["error"] else "", -float(each["failures"])
            made.append(row(each["name"], shown(each["verb"]), *about, *state, tone=tone, order=order))
        return sorted(made, key=_ORDER)

    def _object(self, key: str) -> rows.Cell:
        """Return a link to the object that an operation is about."""
        attachment = self.watched.attachments.get(key)
        if attachment is not None and (volume := attachment.spec.source.persistent_volume_name):
            return {"to": ("volume", volume), "text": shown(key)}
        if key in self.watched.claims:
            return rows.link("claim", key)
        return rows.link("volume", key) if key in self.watched.volumes else shown(key) or "-"

    def _leaks(self) -> list[Row]:
        made = []
        for each in self.told.leaks.get("findings", ()):
            verdict = shown(each["verdict"])
            why = f"{shown(each['detail'])}{'' if each['confirmed'] else ' (seen once)'}"
            asset = (shown(each["driver"]), shown(each["handle"]) or "-", rows.link("volume", each["volume"]))
            more = (size_text(each["capacity_bytes"]), why, rows.age(each["created_at"]))
            name = f"{each['driver']}/{each['handle']}/{each['volume']}"
            made.append(row(name, verdict, *asset, *more, tone=rows.tone_of(verdict)))
        return made

    def _toucher(self, kind: str, tables: Iterable[Table]) -> Callable[[KubeObject | None, KubeObject | None], None]:
        touched = tuple(tables)

        def listener(old: KubeObject | None, new: KubeObject | None) -> None:
            item = new or old
            if item is not None:
                self.changes += 1
                for table in touched:
                    table.touch(kind, item.key)

        return listener

    def _attachment_changed(self, old: Any, new: Any) -> None:
        self._tables["nodes"].touch("node", (new or old).spec.node_name)

    def _volume_changed(self, old: Volume | None, new: Volume | None) -> None:
        for volume, sign in ((old, -1), (new, 1)):
            if volume is not None and (maker := rows.maker_of(volume)):
                self._volumes[maker] += sign
                self._bytes[maker] += sign * whole_bytes(capacity_of(volume))

    def _capacity_changed(self, _old: object, _new: object) -> None:
        for node in self.watched.nodes.values():
            self._tables["nodes"].touch("node", node.key)

    def _event_changed(self, old: Any, new: Any) -> None:
        self.changes += 1
        about = (new or old).involved_object
        key = about.key if about.namespace else about.name
        if (kind := _KINDS.get(about.kind)) is not None:
            # An event about an object of the cluster lies in a namespace, its reference may name one too.
            self._tables["waiting"].touch(kind, about.name if kind == "volume" else key)


def _of_capacity(capacity: CsiStorageCapacity) -> list[Row]:
    topology = capacity.node_topology
    terms = [f"{name}={value}" for name, value in sorted(((topology and topology.match_labels) or {}).items())]
    terms += [
        f"{each.key} {each.operator} {', '.join(each.values or ())}"
        for each in (topology and topology.match_expressions) or ()
    ]
    segment = "no node" if topology is None else "; ".join(terms) or "every node"
    sizes = (size_text(_bytes(capacity.capacity)), size_text(_bytes(capacity.maximum_volume_size)))
    return [row(capacity.key, shown(capacity.storage_class_name), shown(segment), *sizes)]


def _bytes(quantity: str | None) -> int | None:
    try:
        return whole_bytes(parse(quantity).nanos) if quantity else None
    except ValueError:
        return None
