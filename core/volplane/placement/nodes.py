"""What the assigner knows of nodes: hashes of their names, their places, and since when one is gone or not ready."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from volplane.assets import Segment
from volplane.kube.cache import Cache
from volplane.kube.objects import Node
from volplane.state.naming import node_hash

K = TypeVar("K")
_MOST_AWAY: Final = 10_000
"""Names of nodes that are gone for which it is known since when."""


def is_ready(node: Node) -> bool:
    """Return whether the kubelet reports that. A node without the condition counts as ready: nothing speaks against."""
    return all(each.get("status") == "True" for each in node.status.conditions or () if each.get("type") == "Ready")


def takes_volumes(node: Node) -> bool:
    """Return whether new volumes may be put there: pods could come to use them."""
    repelled = any(taint.effect in ("NoSchedule", "NoExecute") for taint in node.spec.taints or ())
    return is_ready(node) and not node.terminating and not node.spec.unschedulable and not repelled


@dataclass(slots=True)
class NodeBook:
    """Follows `cache`.

    keys: the labels by which drivers place assets. monotonic: loop time. hashed: makes, of a node's name, the value of
    the label of what belongs to the node. version: changes whenever placement may come out differently.
    """

    cache: Cache[Node]
    keys: set[str]
    monotonic: Callable[[], float]
    hashed: Callable[[str], str] = node_hash
    version: int = field(default=0, init=False)
    _by_hash: dict[str, set[str]] = field(default_factory=dict, init=False)
    _by_place: dict[tuple[str, str], set[str]] = field(default_factory=dict, init=False)
    _away: dict[str, float] = field(default_factory=dict, init=False)

    def changed(self, old: Node | None, new: Node | None) -> bool:
        """Follow the cache; return whether the change matters for placement."""
        before, after = (
            None if each is None else (is_ready(each), takes_volumes(each), each.metadata.labels or {})
            for each in (old, new)
        )
        if before == after:
            return False
        self.version += 1
        if old is not None:
            _discard(self._by_hash, self.hashed(old.name), old.name)
            for place in self._places(old.metadata.labels or {}):
                _discard(self._by_place, place, old.name)
        if new is not None:
            self._add(new)
        if new is not None and is_ready(new):
            self._away.pop(new.name, None)
        else:
            self._away.setdefault((new or old or Node()).name, self.monotonic())
        self._forget_gone()
        return True

    def _forget_gone(self) -> None:
        """Forget the nodes that went first, once there are many: asked again, they count as just gone."""
        if len(self._away) > _MOST_AWAY + len(self.cache):
            gone = [name for name in self._away if name not in self.cache]
            for name in gone[: len(gone) // 2]:
                del self._away[name]

    def follow(self, keys: Collection[str]) -> None:
        """Let `at` find nodes by these labels too: those of a driver that was made after the others."""
        self.keys.update(keys)
        self.version += 1
        for node in self.cache.values():
            self._add(node)

    def _add(self, node: Node) -> None:
        self._by_hash.setdefault(self.hashed(node.name), set()).add(node.name)
        for place in self._places(node.metadata.labels or {}):
            self._by_place.setdefault(place, set()).add(node.name)

    def _places(self, labels: Mapping[str, str]) -> Iterable[tuple[str, str]]:
        return ((key, labels[key]) for key in self.keys if key in labels)

    def sharing_hash(self, name: str) -> list[str]:
        """Return the names of other nodes whose objects carry the same label."""
        return sorted(self._by_hash.get(self.hashed(name), set()) - {name})

    def at(self, segment: Segment) -> list[Node]:
        """Return the nodes at this place, by name."""
        names: set[str] | None = None
        for key, value in segment.items():
            here = self._by_place.get((key, value), set()) if key in self.keys else set()
            names = here if names is None else names & here
        return [node for name in sorted(names or ()) if (node := self.cache.get(name)) is not None]

    def away(self, name: str) -> float:
        """Return for how many seconds it is gone or not ready; a name never seen counts from the first question."""
        node = self.cache.get(name)
        if node is not None and is_ready(node):
            return 0.0
        now = self.monotonic()
        since = self._away.setdefault(name, now)
        self._forget_gone()
        return now - since


def _discard(table: dict[K, set[str]], key: K, name: str) -> None:
    held = table.get(key, set())
    held.discard(name)
    if not held:
        table.pop(key, None)
