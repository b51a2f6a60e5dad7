"""Compute Engine as the operations use it: shared reads, rate-limited changes, errors with readable messages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from volplane import Unavailable
from volplane.cloud import BoundedCache, HookCall, RateLimiter, StatePoller, chunks
from volplane_gce_pd.api import ComputeClient, GceError, Method
from volplane_gce_pd.disk_types import hyperdisk_limit
from volplane_gce_pd.errors import NOT_FOUND, code_of, is_throttled
from volplane_gce_pd.resources import Disk, DiskKey, DiskSnapshot, Instance, InstanceKey, Operation
from volplane_gce_pd.settings import Settings

SETTLE_SECONDS = 60.0
"""After this time a request that got no answer has arrived or never will."""
_POLL_INTERVAL = 0.5
_NO_SUCH_NAME_MAX_AGE = 30.0
_NAMES_IN_A_FILTER = 50
_PAGE_SIZE = 500
"""The most that Compute Engine puts on a page (API reference, parameter maxResults)."""
_NO_RESULTS = frozenset({"NO_RESULTS_ON_PAGE", ""})
_LIMIT_UNKNOWN_SECONDS = 300.0
_MUTATIONS = "mutations"
"""One rate for all: Compute Engine counts them together (Compute Engine documentation, "Rate quotas")."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """The disks of one name in the region."""

    disks: tuple[Disk, ...] = ()
    unread: frozenset[str] = frozenset()
    """Places that could not be read."""


class Compute:
    """One region of one project, for one driver. Safe for threads. clock: seconds, never going back."""

    def __init__(self, settings: Settings, client: ComputeClient, clock: Callable[[], float]) -> None:
        self.settings = settings
        self.clock = clock
        self.disks: StatePoller[DiskKey, Disk] = self._poller(self._read_disks)
        self.names: StatePoller[str, Named] = self._poller(self._read_names)
        self.instances: StatePoller[InstanceKey, Instance] = self._poller(self._read_instances)
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
        return self.disks.current(key)

    def disk_now(self, key: DiskKey) -> Disk | None:
        """Return the disk by a call that begins now. Raises GceError."""
        return self.disks.fetch_now(key).value

    def named(self, name: str) -> Named:
        """Return the disks of this name in all places of the region. Raises RetryLater.

        An empty result may be up to 30 s old, unless the name was invalidated. That is safe before an insert, which
        refuses a name that is taken.
        """
        known = self.names.cached(name, _NO_SUCH_NAME_MAX_AGE)
        if known is not None and known.value is not None and not known.value.disks:
            return known.value
        return self.names.current(name) or Named()

    def named_now(self, name: str) -> tuple[Disk, ...]:
        """Return the disks of this name in all places of the region, by calls that begin now.

        Raises GceError, and Unavailable while a place cannot be read: what is there would be missing.
        """
        found = self.names.fetch_now(name).value or Named()
        _refuse_incomplete(found.unread)
        return found.disks

    def marked_disks(self, label: str, page: str | None) -> tuple[list[Disk], str | None]:
        """Return one page of the region's disks with this label, and the token of the next one.

        Raises as `named_now`.
        """
        fields = {"filter": f"labels.{label}:*", "max_results": _PAGE_SIZE, **({"page_token": page} if page else {})}
        answer = self._client.call(Method.DISKS_AGGREGATED_LIST, **fields)
        disks, unread = self._of_places(answer)
        _refuse_incomplete(unread)
        return disks, answer.next_page_token or None

    def instance(self, key: InstanceKey) -> Instance | None:
        """Return the virtual machine as it is now; None if there is none. Raises RetryLater."""
        return self.instances.current(key)

    def snapshot(self, name: str) -> DiskSnapshot | None:
        """Return the snapshot by a call that begins now; None if there is none. Raises GceError."""
        return self._one(Method.SNAPSHOTS_GET, DiskSnapshot.of, snapshot=name)

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

    def _read_disks(self, keys: Sequence[DiskKey]) -> dict[DiskKey, Disk]:
        zonal = (Method.DISKS_GET, Method.DISKS_LIST, "disk")
        regional = (Method.REGION_DISKS_GET, Method.REGION_DISKS_LIST, "disk")
        found: dict[DiskKey, Disk] = {}
        for place, names in _by_place(keys).items():
            methods = regional if place.startswith("regions/") else zonal
            for disk in self._named(self.disks, methods, place, names, Disk.of):
                found[disk.key] = disk
        return found

    def _read_instances(self, keys: Sequence[InstanceKey]) -> dict[InstanceKey, Instance]:
        found: dict[InstanceKey, Instance] = {}
        for zone, names in _by_place(keys).items():
            methods = (Method.INSTANCES_GET, Method.INSTANCES_LIST, "instance")
            for instance in self._named(self.instances, methods, f"zones/{zone}", names, Instance.of):
                found[instance.zone, instance.name] = instance
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
            return self._read_operations_everywhere(keys)
        for place, names in places.items():
            get, listing = methods[place.partition("/")[0]]
            for operation in self._named(self.operations, (get, listing, "operation"), place, names, Operation.of):
                found[operation.place, operation.name] = operation
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
    ) -> Iterator[V]:
        """Yield what exists of these names in a place: one is got, several are listed with a filter.

        methods: that gets one, that lists, and the field of the former's request that holds the name.
        """
        get, listing, field = methods
        kind, _, where = place.partition("/")
        scope = {kind.removesuffix("s"): where} if where else {}
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
        found: dict[str, list[Disk]] = {name: [] for name in names}
        unread: set[str] = set()
        with self.names.pacing(is_throttled):
            for some in chunks(names, _NAMES_IN_A_FILTER):
                fields = {"filter": _any_of(some), "max_results": _PAGE_SIZE}
                for page in self._client.pages(Method.DISKS_AGGREGATED_LIST, **fields):
                    disks, missing = self._of_places(page)
                    unread |= missing
                    for disk in disks:
                        found.setdefault(disk.name, []).append(disk)
        return {name: Named(disks=tuple(disks), unread=frozenset(unread)) for name, disks in found.items()}

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

    def change(self, method: Method, key: Hashable, call: HookCall, **fields: Any) -> Operation:
        """Make a mutating call once the rate limit allows it; returns its operation. key: what is changed.

        Raises RetryLater, GceError, and `Unavailable` if the hook call was cancelled.
        """
        result = self._rates.make(
            _MUTATIONS, (method, key), call, lambda: self._client.call(method, **fields), is_throttled=is_throttled
        )
        return Operation.of(result)

    def changed(self, key: tuple[str, str]) -> None:
        """Use no earlier observation of a disk or virtual machine: it is being changed, or has been."""
        if "/" in key[0]:
            self.disks.invalidate(key)
            self.names.invalidate(key[1])
        else:
            self.instances.invalidate(key)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def _any_of(names: Sequence[str]) -> str:
    """Return the filter for resources with one of these names (API reference, parameter filter)."""
    return " OR ".join(f'(name = "{name}")' for name in names)


def _refuse_incomplete(unread: Collection[str]) -> None:
    if unread:
        raise Unavailable(
            f"the disks of {', '.join(sorted(unread))} cannot be read now: the listing would not be complete"
        )


def _by_place(keys: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    places: dict[str, list[str]] = {}
    for place, name in keys:
        places.setdefault(place, []).append(name)
    return places
