"""What must hold at every write while nodes come and go, by rules that share no decision with the controllers."""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from volplane.kube import names
from volplane.kube.transport import Transport
from volplane.state.naming import node_hash
from volplane_embedded.apiserver.requests import Answer
from volplane_embedded.apiserver.store import Change
from volplane_embedded.inprocess import InProcessTransport, Watched
from volplane_testing.distributed import CENTRAL, DistributedCluster
from volplane_testing.memory import ZONE
from volplane_testing.simulation.distributed_state import Broken, Json, all_disks, size_of

__all__ = ["WriteRules"]

MOST_WRITES: Final = 50
"""Of one object in one virtual second."""
EDITED: Final = 10.0
"""Virtual seconds for which the assigner may not know what a label said before somebody edited it."""
CAUGHT_UP: Final = 5.0
"""Virtual seconds after a disturbance in which a process has seen what it missed."""
PUBLISHED: Final = 62.0
"""Virtual seconds after which a process that works has published what there is on its node."""


class WriteRules:
    """Follows the writes of a cluster's processes. Belongs to the running loop.

    gone_after: virtual seconds, of every class. away: since when (loop time) a node is gone or not ready, by its name.
    edited: when somebody edited a label last. immediate: classes whose claims the assigner places.
    """

    def __init__(self, *, gone_after: float, immediate: frozenset[str]) -> None:
        self.broken: asyncio.Future[Broken] = asyncio.get_running_loop().create_future()
        self.away: dict[str, float] = {}
        self.edited = -EDITED
        self.given_up: set[str] = set()
        """Uids of claims for which something may have been left on a node that was gone."""
        self._returned: dict[str, float] = {}
        self._disturbed: dict[str, float] = {}
        self._blind_since = math.inf
        """Since when the assigner has seen little of what happens."""
        self._gone_after = gone_after
        self._immediate = immediate
        self._cluster: DistributedCluster
        self._writer = ""
        self._lies: set[str] = set()
        self._writes: Counter[tuple[str, str, int]] = Counter()

    def follow(self, cluster: DistributedCluster) -> None:
        """Judge every write from now on."""
        self._cluster = cluster
        sinks: Mapping[str, Callable[[Change], None]] = {
            "persistentvolumeclaims": self._claim_written,
            "persistentvolumes": self._volume_written,
            "csistoragecapacities.storage.k8s.io": self._room_written,
        }
        for storage, sink in sinks.items():
            cluster.server.store.subscribe(storage, partial(self._written, storage, sink))

    def transport(self, cluster: DistributedCluster, name: str) -> Transport:
        """Return a transport for the process of this name, so that its writes are known."""
        return InProcessTransport(_Named(self, cluster, name))

    def returned(self, node: str) -> None:
        """Note that the node exists and is ready from now on."""
        self.away.pop(node, None)
        self._returned[node] = _now()

    def disturbed(self, node: str, until: float) -> None:
        """Note that the process cannot work before this loop time, so its published capacity may be old."""
        before = self._disturbed.get(node, -math.inf)
        if node == CENTRAL and before + CAUGHT_UP < _now():
            self._blind_since = _now()
        self._disturbed[node] = max(until, before)

    def recovered(self, node: str) -> None:
        """Note that a disturbance of the process ends only now."""
        self._disturbed[node] = max(_now(), self._disturbed.get(node, 0.0))

    def started(self, node: str) -> None:
        """Note that a new process of the node starts its work now."""
        self._disturbed[node] = _now()

    # --- writes --------------------------------------------------------------------------------------------------

    def _break(self, invariant: str, text: str) -> None:
        if not self.broken.done():
            self.broken.set_result(Broken(invariant, text))

    def _written(self, storage: str, sink: Callable[[Change], None], change: Change) -> None:
        if self._writer:
            key = (storage, change.key, int(_now()))
            self._writes[key] += 1
            if self._writes[key] > MOST_WRITES:
                self._break("no-hot-loop", f"{change.key} was written {MOST_WRITES} times within a second")
        sink(change)

    def _room_written(self, change: Change) -> None:
        """Figures that somebody edited are lies until a process writes its own."""
        if self._writer or change.type == "DELETED":
            self._lies.discard(change.key)
        else:
            self._lies.add(change.key)

    def _volume_written(self, change: Change) -> None:
        if change.type != "DELETED" or not self._writer:
            return
        handle = change.new()["metadata"]["annotations"][names.HANDLE]
        if any(disk.by_handle(handle) is not None for disk in all_disks(self._cluster)):
            text = f"{self._writer} lets {change.key} go, and {handle} is still on a disk"
            self._break("deleted-before-it-goes", text)

    def _claim_written(self, change: Change) -> None:
        old, new = change.old(), change.new()
        if self._writer != CENTRAL or old is None:
            return
        if not new["spec"].get("volumeName"):
            self._check_given_up(old, {} if change.type == "DELETED" else _intent(new))
        if change.type == "DELETED":
            return
        before, after = _selected(old), _selected(new)
        if after and not before and new["spec"]["storageClassName"] in self._immediate:
            self._check_promised(new, after)

    # --- what the assigner may do --------------------------------------------------------------------------------

    def _check_given_up(self, claim: Json, later: Json) -> None:
        """Check that an asset on a node is given up only after the node was away for the time of the class.

        claim: as it was before the write. later: the intent after it.
        """
        begun = _intent(claim) if names.PROVISIONING_FINALIZER in claim["metadata"].get("finalizers", ()) else {}
        node = (begun.get("segment") or {}).get(ZONE)
        if node is None or later.get("segment") == begun["segment"]:
            return
        away = _now() - self.away[node] if node in self.away else 0.0
        back = _now() - self._returned.get(node, -1e9)
        if away < self._gone_after - 1.0 and back > 1.0 and not self._came_and_went(node):
            name = claim["metadata"]["name"]
            text = f"claim {name}, begun on {node}, was given up after {away:.1f} s without the node"
            self._break("given-up-in-time", text)
        self.given_up.add(claim["metadata"]["uid"])

    def _came_and_went(self, node: str) -> bool:
        """Tell whether the node was back only while the assigner could not see it."""
        sees = self._disturbed.get(CENTRAL, 0.0) + CAUGHT_UP
        return self._returned.get(node, -math.inf) >= self._blind_since and self.away.get(node, math.inf) <= sees

    def _check_promised(self, claim: Json, node: str) -> None:
        """Check that a claim is assigned only to a node with room beside its earlier promises."""
        published = self._published(node)
        disk = self._cluster.disks[node]
        informed = _now() - self._disturbed.get(CENTRAL, -CAUGHT_UP) >= CAUGHT_UP
        sure = informed and _now() - self.edited >= EDITED and _now() - self._disturbed.get(node, 0.0) >= PUBLISHED
        if not sure or claim["spec"]["storageClassName"] not in published or self._lies & set(published.values()):
            return
        label, uid = node_hash(node), claim["metadata"]["uid"]
        made = {asset.owner.claim_uid for asset in disk.assets.values() if asset.owner is not None}
        promised = sum(
            size_of(each)
            for each in self._cluster.api.all("persistentvolumeclaims")
            if each["metadata"].get("labels", {}).get(names.NODE) == label
            and each["metadata"]["uid"] not in {*made, uid}
            and not each["spec"].get("volumeName")
        )
        if disk.room() - promised < size_of(claim):
            text = (
                f"claim {claim['metadata']['name']} of {size_of(claim)} bytes goes to {node}, which has {disk.room()}, "
                f"of which {promised} are promised"
            )
            self._break("no-more-is-promised-than-there-is", text)

    def _published(self, node: str) -> dict[str, str]:
        """Class -> key of the object with the room that the node has for it."""
        return {
            each["storageClassName"]: f"{each['metadata']['namespace']}/{each['metadata']['name']}"
            for each in self._cluster.api.all("csistoragecapacities")
            if each["nodeTopology"]["matchLabels"].get(ZONE) == node
        }


class _Named:
    """The API server for one process: notes who writes."""

    def __init__(self, rules: WriteRules, cluster: DistributedCluster, name: str) -> None:
        self._rules = rules
        self._server = cluster.server
        self._name = name

    def handle(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes
    ) -> Answer:
        self._rules._writer = self._name  # noqa: SLF001 -- the two are one
        try:
            return self._server.handle(method, path, query, headers, body)
        finally:
            self._rules._writer = ""  # noqa: SLF001

    def watch(self, path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> Watched | Answer:
        return self._server.watch(path, query, headers)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _selected(claim: Json) -> str:
    return str((claim["metadata"].get("annotations") or {}).get(names.SELECTED_NODE) or "")


def _intent(claim: Json) -> Json:
    """Return the content of the record on a claim, {} without one."""
    text = (claim["metadata"].get("annotations") or {}).get(names.INTENT)
    intent: Json = json.loads(text)["intent"] if text else {}
    return intent
