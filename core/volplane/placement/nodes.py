"""What the assigner knows of nodes: hashes of their names, their places, and since when one is gone or not ready."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from volplane.assets import Segment
from volplane.kube.cache import Cache
from volplane.kube.objects import Node
from volplane.state.naming import node_hash

__all__ = ["NodeBook", "is_ready", "takes_volumes"]

_REPELLING = ("NoSchedule", "NoExecute")


def is_ready(node: Node) -> bool:
    """Whether the kubelet says so. A node without the condition counts as ready: nobody has doubted it."""
    return all(each.get("status") == "True" for each in node.status.conditions or () if each.get("type") == "Ready")


def takes_volumes(node: Node) -> bool:
    """Whether new volumes may be put there: pods could come to use them."""
    repelled = any(taint.effect in _REPELLING for taint in node.spec.taints or ())
    return is_ready(node) and not node.terminating and not node.spec.unschedulable and not repelled


class NodeBook:
    """Follows a cache of nodes.

    keys: the labels by which drivers place assets. monotonic: loop time. hashed: what stands in the label of what
    belongs to the node of a name. version: changes whenever placement may come out differently.
    """

    def __init__(
        self,
        nodes: Cache[Node],
        keys: Collection[str],
        monotonic: Callable[[], float],
        hashed: Callable[[str], str] = node_hash,
    ) -> None:
        self.version = 0
        self.hashed = hashed
        self._nodes = nodes
        self._keys = set(keys)
        self._monotonic = monotonic
        self._by_hash: dict[str, set[str]] = {}
        self._by_place: dict[tuple[str, str], set[str]] = {}
        self._away: dict[str, float] = {}

    def changed(self, old: Node | None, new: Node | None) -> bool:
        """Follow the cache; whether this matters for placement."""
        before, after = (None if each is None else self._facts(each) for each in (old, new))
        if before == after:
            return False
        self.version += 1
        if old is not None:
            self._drop(old)
        if new is not None:
            self._add(new)
        present = new or old
        if present is not None:
            if new is not None and is_ready(new):
                self._away.pop(present.name, None)
            else:
                self._away.setdefault(present.name, self._monotonic())
        return True

    def follow(self, keys: Collection[str]) -> None:
        """Let `at` find nodes by these labels too: those of a driver that was made after the others."""
        self._keys.update(keys)
        self.version += 1
        for node in self._nodes.values():
            self._add(node)

    def _facts(self, node: Node) -> tuple[object, ...]:
        return node.uid, is_ready(node), takes_volumes(node), node.metadata.labels or {}

    def _add(self, node: Node) -> None:
        self._by_hash.setdefault(self.hashed(node.name), set()).add(node.name)
        for place in self._places(node.metadata.labels or {}):
            self._by_place.setdefault(place, set()).add(node.name)

    def _drop(self, node: Node) -> None:
        self._by_hash.get(self.hashed(node.name), set()).discard(node.name)
        for place in self._places(node.metadata.labels or {}):
            self._by_place.get(place, set()).discard(node.name)

    def _places(self, labels: Mapping[str, str]) -> Iterable[tuple[str, str]]:
        return ((key, labels[key]) for key in self._keys if key in labels)

    def get(self, name: str) -> Node | None:
        return self._nodes.get(name)

    def all(self) -> Iterable[Node]:
        return self._nodes.values()

    def sharing_hash(self, name: str) -> list[str]:
        """Names of other nodes whose objects carry the same label."""
        return sorted(self._by_hash.get(self.hashed(name), set()) - {name})

    def knows(self, keys: Iterable[str]) -> bool:
        """Whether `at` can find nodes by these labels."""
        return self._keys.issuperset(keys)

    def at(self, segment: Segment) -> list[Node]:
        """The nodes at this place, by name."""
        names: set[str] | None = None
        for key, value in segment.items():
            here = self._by_place.get((key, value), set()) if key in self._keys else set()
            names = here if names is None else names & here
        return [node for name in sorted(names or ()) if (node := self._nodes.get(name)) is not None]

    def away(self, name: str) -> float:
        """Seconds for which the node has been gone, or not ready, as far as this process has seen; 0 if it is not.

        A name that was never seen counts from the first question.
        """
        node = self._nodes.get(name)
        if node is not None and is_ready(node):
            return 0.0
        now = self._monotonic()
        return now - self._away.setdefault(name, now)
