"""Compute Engine as the operations use it: shared reads, rate-limited changes, errors with readable messages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from volplane import Unavailable
from volplane.cloud import BoundedCache, HookCall, RateLimiter, RetryLater, StatePoller, chunks
from volplane_gce_pd.api import ComputeClient, GceError, Method
from volplane_gce_pd.disk_types import hyperdisk_limit
from volplane_gce_pd.errors import NOT_FOUND, code_of, is_throttled, outcome_unknown, refusal
from volplane_gce_pd.resources import (
    IMAGES,
    SNAPSHOTS,
    Disk,
    DiskKey,
    DiskSnapshot,
    Instance,
    InstanceKey,
    Operation,
    SnapshotKey,
)
from volplane_gce_pd.settings import Settings

SETTLE_SECONDS = 60.0
"""After this time a request that got no answer has arrived or never will."""
_POLL_INTERVAL = 0.5
_SNAPSHOT_INTERVAL = 5.0
"""An upload takes minutes: callers that wait for some meet at multiples of these seconds."""
_SNAPSHOT_MAX_AGE = 2.5
_CUT_INTERVAL = 1.0
_NO_SUCH_NAME_MAX_AGE = 30.0
_RECENT_MAX_AGE = 10.0
_LONG_QUEUE = 1.0
"""Where calls wait longer than this for their rate, a later look delays nothing, and is shared by more."""
_NAMES_IN_A_FILTER = 50
_PAGE_SIZE = 500
"""The most that Compute Engine puts on a page (API reference, parameter maxResults)."""
_NO_RESULTS = frozenset({"NO_RESULTS_ON_PAGE", ""})
_LIMIT_UNKNOWN_SECONDS = 300.0
_MUTATIONS = "mutations"
"""One rate for all: Compute Engine counts them together (Compute Engine documentation, "Rate quotas")."""

_SNAPSHOT_METHODS: Mapping[str, tuple[Method, Method, str]] = {
    SNAPSHOTS: (Method.SNAPSHOTS_GET, Method.SNAPSHOTS_LIST, "snapshot"),
    IMAGES: (Method.IMAGES_GET, Method.IMAGES_LIST, "image"),
}

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """The disks of one name in the region."""

    disks: tuple[Disk, ...] = ()
    unread: frozenset[str] = frozenset()
    """Places that could not be read."""


class PlacePollers(Generic[V]):
    """A poller for each zone and the region: a place that fails, or does not answer, holds up no other one. Safe for
    threads.
    """

    def __init__(self, new: Callable[[str], StatePoller[tuple[str, str], V]]) -> None:
        """new: makes the poller of a place. Keys are pairs of a place and a name."""
        self._new = new
        self._pollers: dict[str, StatePoller[tuple[str, str], V]] = {}
        self._lock = threading.Lock()

    def of(self, key: tuple[str, str]) -> StatePoller[tuple[str, str], V]:
        """Return the poller that knows this key."""
        with self._lock:
            if key[0] not in self._pollers:
                self._pollers[key[0]] = self._new(key[0])
            return self._pollers[key[0]]

    def __iter__(self) -> Iterator[StatePoller[tuple[str, str], V]]:
        with self._lock:
            return iter([*self._pollers.values()])

    def next_poll(self, key: tuple[str, str], after: float = 0.0) -> float:
        """Return the seconds until the key should be asked for again, at least `after`."""
        return self.of(key).next_poll(key, after)


class Compute:
    """One region of one project, for one driver. Safe for threads. clock: seconds, never going back."""

    def __init__(self, settings: Settings, client: ComputeClient, clock: Callable[[], float]) -> None:
        self.settings = settings
        self.clock = clock
        self.disks: PlacePollers[Disk] = PlacePollers(lambda place: self._poller(partial(self._read_disks, place)))
        self.names: StatePoller[str, Named] = self._poller(self._read_names)
        self.instances: PlacePollers[Instance] = PlacePollers(
            lambda zone: self._poller(partial(self._read_instances, zone))
        )
        self.snapshots: StatePoller[SnapshotKey, DiskSnapshot] = StatePoller(
            self._read_snapshots, clock=clock, interval=_SNAPSHOT_INTERVAL
        )
        self.cuts: StatePoller[SnapshotKey, DiskSnapshot] = StatePoller(
            self._read_snapshots, clock=clock, interval=_CUT_INTERVAL
        )
        """The same, for callers that wait until the moment of a snapshot has passed."""
        self.operations: StatePoller[DiskKey, Operation] = self._poller(self._read_operations)
        self._client = client
        self._rates = RateLimiter(rate=settings.mutations_per_second, burst=settings.mutation_burst, clock=clock)
        self._limits: BoundedCache[str, int] = BoundedCache()
        self._limits_denied = -_LIMIT_UNKNOWN_SECONDS
        self.started_at = clock()
        """Start of this process: calls that it does not know of were made before."""

    def _poller(self, read: Callable[[Sequence[K]], Mapping[K, V]]) -> StatePoller[K, V]:
        return StatePoller(read, clock=self.clock, interval=_POLL_INTERVAL)

    # --- reads --------------------------------------------------------------------------------------------------

    def disk(self, key: DiskKey) -> Disk | None:
        """Return the disk as it is now; None if there is none. Raises RetryLater."""
        return self.disks.of(key).current(key)

    def disk_now(self, key: DiskKey) -> Disk | None:
        """Return the disk by a call that begins now. Raises GceError."""
        return self.disks.of(key).fetch_now(key).value

    def named(self, name: str) -> Named:
        """Return the disks of this name in all places of the region. Raises RetryLater.

        An empty result may be up to 30 s old, unless the name was invalidated. That is safe before an insert, which
        refuses a name that is taken.
        """
        known = self.names.cached(name, _NO_SUCH_NAME_MAX_AGE)
        if known is not None and known.value is not None and not known.value.disks:
            return known.value
        return self.names.current(name) or Named()

    def named_now(self, name: str) -> Named:
        """Return the disks of this name in all places of the region, by calls that begin now. Raises GceError."""
        return self.names.fetch_now(name).value or Named()

    def marked_disks(self, label: str, page: str | None, most: int = 0) -> tuple[list[Disk], str | None]:
        """Return one page of the region's disks with this label, or all if it is "", and the token of the next one.

        most: disks that suit the caller; 0: any number.
        Raises GceError, and Unavailable while a place cannot be read: what is there would be missing.
        """
        fields = {"max_results": _page_size(most), **({"page_token": page} if page else {})}
        fields |= {"filter": f"labels.{label}:*"} if label else {}
        answer = self._client.call(Method.DISKS_AGGREGATED_LIST, **fields)
        disks, unread = self._of_places(answer)
        refuse_incomplete(unread)
        return disks, answer.next_page_token or None

    def instance(self, key: InstanceKey) -> Instance | None:
        """Return the virtual machine as it is now; None if there is none. Raises RetryLater."""
        return self.instances.of(key).current(key)

    def disk_and_instance(
        self, key: DiskKey, vm: InstanceKey, *, attached: bool
    ) -> tuple[Disk | None, Instance | None]:
        """Return both, each as it is now where it decides, else as it was at most 10 s ago. Raises RetryLater.

        If both had to be as new as the interval, a caller that waits for one of them, or for its rate, would have to
        wait for the other one again and again. The machine decides where it shows that nothing is to be done; what it
        shows otherwise leads to a change, which Compute Engine refuses if that is no longer so. The disk decides
        whether it may be attached. attached: whether it is attached to this machine before the change.
        """
        machines, disks = self.instances.of(vm), self.disks.of(key)
        known = machines.cached(vm, _RECENT_MAX_AGE)
        target, seconds = known.value if known is not None else None, 0.0
        if target is None or (target.disk(key) is not None) != attached:
            try:
                target = machines.current(vm)
            except RetryLater as retry:
                target, seconds = None, retry.seconds
            else:
                if attached and (target is None or target.disk(key) is None):
                    return None, target
        seen = disks.cached(key, _RECENT_MAX_AGE)
        disk = seen.value if seen is not None else None
        holds = target is not None and target.disk(key) is not None
        if disk is None or not holds or (attached and set(disk.users) != {vm}):
            try:
                disk = disks.current(key)
            except RetryLater as retry:
                seconds = max(seconds, retry.seconds)
        if seconds:
            raise RetryLater(seconds)
        return disk, target

    def snapshot(self, key: SnapshotKey) -> DiskSnapshot | None:
        """Return the snapshot as it was some seconds ago at most; None if there is none. Raises GceError."""
        return self.snapshots.observe(key, max_age=_SNAPSHOT_MAX_AGE).value

    def snapshot_now(self, key: SnapshotKey) -> DiskSnapshot | None:
        """Return the snapshot by a call that begins now. Raises GceError."""
        return self.snapshots.fetch_now(key).value

    def marked_snapshots(self, label: str, page: str | None, most: int = 0) -> tuple[list[DiskSnapshot], str | None]:
        """Return one page of the project's snapshots, then images, with this label, or all if it is "", and the token
        of the next one. most: as in `marked_disks`. Raises GceError.
        """
        kind, _, token = (page or f"{SNAPSHOTS} ").partition(" ")
        fields = {"max_results": _page_size(most), **({"page_token": token} if token else {})}
        fields |= {"filter": f"labels.{label}:*"} if label else {}
        answer = self._client.call(_SNAPSHOT_METHODS[kind][1], **fields)
        found = [DiskSnapshot.of(each, self.settings.project, kind) for each in answer.items]
        if answer.next_page_token:
            return found, f"{kind} {answer.next_page_token}"
        return found, f"{IMAGES} " if kind == SNAPSHOTS else None

    def zones(self) -> dict[str, str]:
        """Return the zones of the region -> UP or DOWN. Raises GceError."""
        return {
            zone.name: zone.status
            for page in self._client.pages(Method.ZONES_LIST, max_results=_PAGE_SIZE)
            for zone in page.items
            if self.settings.in_region(zone.name)
        }

    def check(self) -> None:
        """Make a cheap call that needs the project, the credentials and the network. Raises GceError."""
        self._client.call(Method.ZONES_LIST, max_results=1)

    def attach_limit(self, instance: Instance) -> int | None:
        """Return how many disks the virtual machine can hold, its boot disk included; None = unknown."""
        if self.settings.attach_limit:
            return self.settings.attach_limit
        if (limit := hyperdisk_limit(instance.machine_type)) is not None:
            return limit
        known = self._limits.get(f"{instance.zone}/{instance.machine_type}")
        if known is None and self.clock() - self._limits_denied >= _LIMIT_UNKNOWN_SECONDS:
            try:
                found = self._client.call(
                    Method.MACHINE_TYPES_GET, zone=instance.zone, machine_type=instance.machine_type
                )
            except GceError:
                self._limits_denied = self.clock()
                return None
            known = self._limits.put(f"{instance.zone}/{instance.machine_type}", int(found.maximum_persistent_disks))
        return known or None

    # --- batched reads ------------------------------------------------------------------------------------------

    def _read_disks(self, place: str, keys: Sequence[DiskKey]) -> dict[DiskKey, Disk]:
        names = [name for _, name in keys]
        return {disk.key: disk for disk in self._disks_of(place, names, self.disks.of((place, "")))}

    def _disks_of(self, place: str, names: Sequence[str], poller: StatePoller[Any, Any]) -> Iterator[Disk]:
        zonal = (Method.DISKS_GET, Method.DISKS_LIST, "disk")
        regional = (Method.REGION_DISKS_GET, Method.REGION_DISKS_LIST, "disk")
        return self._named(poller, regional if place.startswith("regions/") else zonal, place, names, Disk.of)

    def _read_instances(self, zone: str, keys: Sequence[InstanceKey]) -> dict[InstanceKey, Instance]:
        methods = (Method.INSTANCES_GET, Method.INSTANCES_LIST, "instance")
        names, poller = [name for _, name in keys], self.instances.of((zone, ""))
        return {
            (each.zone, each.name): each for each in self._named(poller, methods, f"zones/{zone}", names, Instance.of)
        }

    def _read_snapshots(self, keys: Sequence[SnapshotKey]) -> dict[SnapshotKey, DiskSnapshot]:
        found: dict[SnapshotKey, DiskSnapshot] = {}
        for project, kind in sorted({key[:2] for key in keys}):
            names = [key[2] for key in keys if key[:2] == (project, kind)]
            make = partial(DiskSnapshot.of, project=project, kind=kind)
            methods = _SNAPSHOT_METHODS[kind]
            for snapshot in self._named(self.snapshots, methods, "global", names, make, project=project):
                found[snapshot.key] = snapshot
        return found

    def _read_operations(self, keys: Sequence[DiskKey]) -> dict[DiskKey, Operation]:
        methods = {
            "zones": (Method.ZONE_OPERATIONS_GET, Method.ZONE_OPERATIONS_LIST),
            "regions": (Method.REGION_OPERATIONS_GET, Method.REGION_OPERATIONS_LIST),
            "global": (Method.GLOBAL_OPERATIONS_GET, Method.GLOBAL_OPERATIONS_LIST),
        }
        found: dict[DiskKey, Operation] = {}
        places = _by_place(keys)
        if len(places) > 1:
            try:
                return self._read_operations_everywhere(keys)
            except GceError as error:
                if not outcome_unknown(error):
                    raise
        for place, names in places.items():
            get, listing = methods[place.partition("/")[0]]
            try:
                for operation in self._named(self.operations, (get, listing, "operation"), place, names, Operation.of):
                    found[operation.place, operation.name] = operation
            except GceError as error:
                if len(places) == 1 or not outcome_unknown(error):
                    raise
                found |= {(place, name): Operation(place=place, name=name, done=False) for name in names}
        return found

    def _read_operations_everywhere(self, keys: Sequence[DiskKey]) -> dict[DiskKey, Operation]:
        """Read them by one call. An operation of a place that cannot be read now is not known to be done."""
        found: dict[DiskKey, Operation] = {}
        method = Method.GLOBAL_OPERATIONS_AGGREGATED_LIST
        with self.operations.pacing(is_throttled):
            for some in chunks([name for _, name in keys], _NAMES_IN_A_FILTER):
                for page in self._client.pages(method, filter=_any_of(some), max_results=_PAGE_SIZE):
                    for scope, listed in page.items.items():
                        if listed.warning.code not in _NO_RESULTS:
                            found |= {
                                (place, name): Operation(place=place, name=name, done=False)
                                for place, name in keys
                                if place == scope
                            }
                        for operation in map(Operation.of, listed.operations):
                            found[operation.place, operation.name] = operation
        return found

    def _named(
        self,
        poller: StatePoller[Any, Any],
        methods: tuple[Method, Method, str],
        place: str,
        names: Sequence[str],
        make: Callable[[Any], V],
        **more: str,
    ) -> Iterator[V]:
        """Yield what exists of these names in a place: one is got, several are listed with a filter.

        methods: that gets one, that lists, and the field of the former's request that holds the name. more: fields of
        both requests.
        """
        get, listing, field = methods
        kind, _, where = place.partition("/")
        scope = {**more, kind.removesuffix("s"): where} if where else more
        with poller.pacing(is_throttled):
            if len(names) == 1:
                one = self._one(get, make, **scope, **{field: names[0]})
                yield from [one] if one is not None else []
                return
            for some in chunks(names, _NAMES_IN_A_FILTER):
                for page in self._client.pages(listing, **scope, filter=_any_of(some), max_results=_PAGE_SIZE):
                    yield from map(make, page.items)

    def _one(self, method: Method, make: Callable[[Any], V], **fields: Any) -> V | None:
        try:
            return make(self._client.call(method, **fields))
        except GceError as error:
            if code_of(error) in NOT_FOUND or error.status == 404:
                return None
            raise

    def _read_names(self, names: Sequence[str]) -> dict[str, Named]:
        try:
            found, unread = self._read_names_everywhere(names)
        except GceError as error:
            if not outcome_unknown(error):
                raise
            found, unread = self._read_names_by_place(names)
        return {
            name: Named(disks=tuple(disk for disk in found if disk.name == name), unread=frozenset(unread))
            for name in names
        }

    def _read_names_everywhere(self, names: Sequence[str]) -> tuple[list[Disk], set[str]]:
        """Return the disks and the places that the answer lacks, by one call."""
        found: list[Disk] = []
        unread: set[str] = set()
        with self.names.pacing(is_throttled):
            for some in chunks(names, _NAMES_IN_A_FILTER):
                fields = {"filter": _any_of(some), "max_results": _PAGE_SIZE}
                for page in self._client.pages(Method.DISKS_AGGREGATED_LIST, **fields):
                    disks, missing = self._of_places(page)
                    found += disks
                    unread |= missing
        return found, unread

    def _read_names_by_place(self, names: Sequence[str]) -> tuple[list[Disk], set[str]]:
        """Return the same by a call for each place: one that does not answer may have failed the call for all."""
        found: list[Disk] = []
        unread: set[str] = set()
        for place in (f"regions/{self.settings.region}", *(f"zones/{zone}" for zone in self.zones())):
            try:
                found += self._disks_of(place, names, self.names)
            except GceError as error:
                if not outcome_unknown(error):
                    raise
                unread.add(place.rpartition("/")[2])
        return found, unread

    def _of_places(self, page: Any) -> tuple[list[Disk], set[str]]:
        """Return the region's disks on a page of disks.aggregatedList, and its zones that could not be read."""
        found: list[Disk] = []
        missing = {url.rpartition("/")[2] for url in page.unreachables}
        for scope, listed in page.items.items():
            if listed.warning.code not in _NO_RESULTS:
                missing.add(scope.rpartition("/")[2])
            found += map(Disk.of, listed.disks)
        disks = [disk for disk in found if self._ours(disk.place.rpartition("/")[2])]
        return disks, {place for place in missing if self._ours(place)}

    def _ours(self, place: str) -> bool:
        return place == self.settings.region or self.settings.in_region(place)

    # --- changes ------------------------------------------------------------------------------------------------

    def change(
        self, method: Method, key: Hashable, call: HookCall, *, queue: Hashable = None, **fields: Any
    ) -> Operation:
        """Make a mutating call once the rate limit allows it; returns its operation. key: what is changed. queue:
        of what Compute Engine counts the changes, None = of what is changed.

        Raises RetryLater, GceError, and `Unavailable` if the hook call was cancelled.
        """
        try:
            result = self._rates.make(
                _MUTATIONS,
                (method, key),
                call,
                lambda: self._client.call(method, **fields),
                refusal=refusal,
                resource=queue,
            )
        except RetryLater as retry:
            if retry.seconds > _LONG_QUEUE:
                for poller in (self.names, self.operations, *self.disks, *self.instances):
                    poller.relax(retry.seconds)
            raise
        return Operation.of(result)

    def changed(self, key: tuple[str, str]) -> None:
        """Use no earlier observation of a disk or virtual machine: it is being changed, or has been."""
        if "/" in key[0]:
            self.disks.of(key).invalidate(key)
            self.names.invalidate(key[1])
        else:
            self.instances.of(key).invalidate(key)

    def snapshot_changed(self, key: SnapshotKey) -> None:
        """Use no earlier observation of a snapshot: it is being made or deleted."""
        self.snapshots.invalidate(key)
        self.cuts.invalidate(key)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def _page_size(wanted: int) -> int:
    return min(wanted or _PAGE_SIZE, _PAGE_SIZE)


def _any_of(names: Sequence[str]) -> str:
    """Return the filter for resources with one of these names (API reference, parameter filter)."""
    return " OR ".join(f'(name = "{name}")' for name in names)


def refuse_incomplete(unread: Collection[str]) -> None:
    """Raise Unavailable unless every place was read."""
    if unread:
        raise Unavailable(
            f"the disks of {', '.join(sorted(unread))} cannot be read now: the listing would not be complete"
        )


def _by_place(keys: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    places: dict[str, list[str]] = {}
    for place, name in keys:
        places.setdefault(place, []).append(name)
    return places
