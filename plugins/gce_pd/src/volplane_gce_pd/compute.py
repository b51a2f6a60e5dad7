"""Compute Engine as the operations use it: shared reads, rate-limited changes, errors with readable messages."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from volplane import Unavailable
from volplane.cloud import BoundedCache, HookCall, RateLimiter, RetryLater, StatePoller, chunks
from volplane_gce_pd.api import ComputeClient, GceError, Method
from volplane_gce_pd.disk_types import hyperdisk_limit
from volplane_gce_pd.errors import NOT_FOUND, code_of, is_throttled, outcome_unknown, refusal
from volplane_gce_pd.region import Named, RegionPoller
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
_RELAXED = 3.0
_LONG_QUEUE = 1.0
"""Where calls wait longer than this for their rate, a later look delays nothing, and is shared by more."""
_NAMES_IN_A_FILTER = 80
"""Of 55 characters, as those of operations: the URL stays below 8 KiB."""
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


class Compute:
    """One region of one project, for one driver. Safe for threads. clock: seconds, never going back."""

    def __init__(self, settings: Settings, client: ComputeClient, clock: Callable[[], float]) -> None:
        self.settings = settings
        self.clock = clock
        self.disks: RegionPoller[Disk] = RegionPoller(
            self._poller, self._disks_of, self._disks_everywhere, self._places, clock
        )
        self.instances: RegionPoller[Instance] = RegionPoller(
            self._poller, self._instances_of, self._instances_everywhere, self._places, clock
        )
        self.snapshots: StatePoller[SnapshotKey, DiskSnapshot] = StatePoller(
            self._read_snapshots, clock=clock, interval=_SNAPSHOT_INTERVAL
        )
        self.cuts: StatePoller[SnapshotKey, DiskSnapshot] = StatePoller(
            self._read_snapshots, clock=clock, interval=_CUT_INTERVAL
        )
        """The same, for callers that wait until the moment of a snapshot has passed."""
        self.operations: StatePoller[DiskKey, Operation] = self._poller(self._read_operations)
        self._concerned: BoundedCache[DiskKey, tuple[DiskKey | InstanceKey, ...]] = BoundedCache()
        """By operation that runs: what it changes."""
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
        return self.disks.current(key)

    def disk_before(
        self, key: DiskKey, users: tuple[InstanceKey, ...] = (), *, since: float = -math.inf
    ) -> Disk | None:
        """Return the disk as it was 10 s ago at most, if it was ready then and attached to these machines alone; else
        as it is now.

        For a change that Compute Engine refuses if that is no longer so. since: when the caller first looked; what was
        older then is not used. Raises RetryLater.
        """
        seen = self.disks.cached(key, min(self.clock() - since + _POLL_INTERVAL, _RECENT_MAX_AGE))
        if seen is not None and seen.state == "READY" and set(seen.users) == set(users):
            return seen
        return self.disk(key)

    def disk_now(self, key: DiskKey) -> Disk | None:
        """Return the disk by a call that begins now. Raises GceError."""
        return self.disks.fetch_now(key)

    def named(self, name: str) -> Named[Disk]:
        """Return the disks of this name in all places of the region. Raises RetryLater.

        An empty result may be up to 30 s old, unless the name was invalidated. That is safe before an insert, which
        refuses a name that is taken.
        """
        known = self.disks.cached_named(name, _NO_SUCH_NAME_MAX_AGE)
        return known if known is not None and not known.found else self.disks.named(name)

    def named_now(self, name: str) -> Named[Disk]:
        """Return the disks of this name in all places of the region, by calls that begin now. Raises GceError."""
        return self.disks.named_now(name)

    def marked_disks(self, label: str, page: str | None, most: int = 0) -> tuple[list[Disk], str | None]:
        """Return one page of the region's disks with this label, or all if it is "", and the token of the next one.

        most: disks that suit the caller; 0: any number.
        Raises GceError, and Unavailable while a place cannot be read: what is there would be missing.
        """
        fields = {"max_results": _page_size(most), **({"page_token": page} if page else {})}
        fields |= {"filter": f"labels.{label}:*"} if label else {}
        answer = self._client.call(Method.DISKS_AGGREGATED_LIST, **fields)
        listed, unread = self._of_places(answer, "disks")
        refuse_incomplete(unread)
        return [Disk.of(each) for each in listed], answer.next_page_token or None

    def instance(self, key: InstanceKey) -> Instance | None:
        """Return the virtual machine as it is now; None if there is none. Raises RetryLater."""
        return self.instances.current(key)

    def disk_and_instance(
        self, key: DiskKey, vm: InstanceKey, *, attached: bool
    ) -> tuple[Disk | None, Instance | None]:
        """Return both, each as it is now where it decides, else as it was at most 10 s ago. Raises RetryLater.

        If both had to be as new as the interval, a caller that waits for one of them, or for its rate, would have to
        wait for the other one again and again. What they show decides where nothing is to be done, or something is in
        the way; otherwise it leads to a change, which Compute Engine refuses if that is no longer so.
        attached: whether it is attached to this machine before the change.
        """
        target, seconds = self.instances.cached(vm, _RECENT_MAX_AGE), 0.0
        if target is None or (target.disk(key) is not None) != attached:
            try:
                target = self.instances.current(vm)
            except RetryLater as retry:
                target, seconds = None, retry.seconds
            else:
                if attached and (target is None or target.disk(key) is None):
                    return None, target
        try:
            disk = self.disk_before(key, (vm,) if attached else ())
        except RetryLater as retry:
            disk, seconds = None, max(seconds, retry.seconds)
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

    def _disks_of(self, place: str, names: Sequence[str], poller: StatePoller[Any, Any]) -> Iterator[Disk]:
        zonal = (Method.DISKS_GET, Method.DISKS_LIST, "disk")
        regional = (Method.REGION_DISKS_GET, Method.REGION_DISKS_LIST, "disk")
        return self._named(poller, regional if place.startswith("regions/") else zonal, place, names, Disk.of)

    def _instances_of(self, zone: str, names: Sequence[str], poller: StatePoller[Any, Any]) -> Iterator[Instance]:
        methods = (Method.INSTANCES_GET, Method.INSTANCES_LIST, "instance")
        return self._named(poller, methods, f"zones/{zone}", names, Instance.of)

    def _disks_everywhere(self, names: Sequence[str], poller: StatePoller[Any, Any]) -> tuple[list[Disk], set[str]]:
        return self._everywhere(poller, Method.DISKS_AGGREGATED_LIST, names, "disks", Disk.of)

    def _instances_everywhere(
        self, names: Sequence[str], poller: StatePoller[Any, Any]
    ) -> tuple[list[Instance], set[str]]:
        return self._everywhere(poller, Method.INSTANCES_AGGREGATED_LIST, names, "instances", Instance.of)

    def _everywhere(
        self,
        poller: StatePoller[Any, Any],
        method: Method,
        names: Sequence[str],
        field: str,
        make: Callable[[Any], V],
    ) -> tuple[list[V], set[str]]:
        """Return what exists of these names in all places, and the places that the answer lacks, by one call."""
        found: list[V] = []
        unread: set[str] = set()
        with poller.pacing(is_throttled):
            for some in chunks(names, _NAMES_IN_A_FILTER):
                for page in self._client.pages(method, filter=_any_of(some), max_results=_PAGE_SIZE):
                    listed, missing = self._of_places(page, field)
                    found += map(make, listed)
                    unread |= missing
        return found, unread

    def _places(self) -> list[str]:
        """Return the places of disks in the region. Raises GceError."""
        return [f"regions/{self.settings.region}", *(f"zones/{zone}" for zone in self.zones())]

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
        found = self._operations_of(keys)
        self._notice(found)
        return found

    def _operations_of(self, keys: Sequence[DiskKey]) -> dict[DiskKey, Operation]:
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

    def _of_places(self, page: Any, field: str) -> tuple[list[Any], set[str]]:
        """Return what a page of an aggregated list has of the region, and the places that could not be read."""
        found: list[Any] = []
        missing = {url.rpartition("/")[2] for url in page.unreachables}
        for scope, listed in page.items.items():
            place = scope.rpartition("/")[2]
            if listed.warning.code not in _NO_RESULTS:
                missing.add(place)
            if self._ours(place):
                found += getattr(listed, field)
        return found, {place for place in missing if self._ours(place)}

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
                lambda: self._begun(method, _pairs(key, queue), fields),
                refusal=refusal,
                resource=queue,
            )
        except RetryLater as retry:
            if retry.seconds > _LONG_QUEUE:
                for poller in (self.operations, *self.disks, *self.instances):
                    poller.relax(retry.seconds, _RELAXED)
            raise
        return Operation.of(result)

    def _begun(self, method: Method, resources: Sequence[tuple[str, str]], fields: Mapping[str, Any]) -> Any:
        """Make the call; nothing that was seen of these resources is used afterwards, whatever becomes of it."""
        try:
            return self._client.call(method, **fields)
        finally:
            for resource in resources:
                self.changed(resource)

    def changed(self, key: tuple[str, str]) -> None:
        """Use no earlier observation of a disk or virtual machine: it is being changed, or has been."""
        self._reads_of(key).invalidate(key)

    def _reads_of(self, key: DiskKey | InstanceKey) -> RegionPoller[Any]:
        return self.disks if "/" in key[0] else self.instances

    def concerns(self, operation: DiskKey, *resources: Hashable) -> None:
        """Tell what an operation changes: it is read again when that is over."""
        self._concerned.put(operation, _pairs(*resources))

    def noticed(self, operation: DiskKey) -> bool:
        """Return whether the end of an operation has made what it `concerns` outdated already."""
        return self._concerned.get(operation) == ()

    def _notice(self, found: Mapping[DiskKey, Operation]) -> None:
        """Make outdated what the operations that are over have changed; a read that somebody needs includes it."""
        for key, operation in found.items():
            if operation.done and (concerned := self._concerned.get(key)):
                for resource in concerned:
                    self.changed(resource)
                    self._reads_of(resource).expect(resource)
                self._concerned.put(key, ())

    def snapshot_changed(self, key: SnapshotKey) -> None:
        """Use no earlier observation of a snapshot: it is being made or deleted."""
        self.snapshots.invalidate(key)
        self.cuts.invalidate(key)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def _pairs(*resources: Hashable) -> tuple[tuple[str, str], ...]:
    """Return those that are disks or machines."""
    return tuple((each[0], each[1]) for each in resources if isinstance(each, tuple) and len(each) == 2)


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
