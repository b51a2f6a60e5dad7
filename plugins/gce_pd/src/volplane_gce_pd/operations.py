"""Long-running operations: started once, waited for by the shared poller, found again after a restart.

The name of the running operation and the number of the attempt are saved in the intent. The number is part of every
requestId, so that a call whose answer was lost is not done twice, and a call after a failed operation is a new one.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from enum import Enum
from typing import Any, Final

from volplane import Context
from volplane.cloud import BoundedCache, HookCall, RetryLater
from volplane_gce_pd.api import GceError, Method
from volplane_gce_pd.compute import Compute
from volplane_gce_pd.resources import Disk, DiskKey, request_id

_OPERATION = "operation"
_ATTEMPT = "attempt"
_FIRST_POLL = 0.75
_PROOF_SECONDS = 120.0
"""An operation that is over proves what it has done only to the callers that began it, and not much later."""
_PATHS: Final = {
    "access_mode": "accessMode",
    "size_gb": "sizeGb",
    "provisioned_iops": "provisionedIops",
    "provisioned_throughput": "provisionedThroughput",
}
"""Field of compute.v1.Disk -> its name in the parameter `paths` of `update`."""


def _verb(method: str) -> str:
    return method.partition(".")[2]


class Outcome(Enum):
    """What became of the operation of an earlier call of the hook."""

    NONE = "none"
    """There is none."""
    SUCCEEDED = "succeeded"
    """It is done, without an error."""
    UNKNOWN = "unknown"
    """Compute Engine does not know it (any more): only a look at the resource can tell."""


class LongOperations:
    """The operations of one driver. Safe for threads; what it keeps in memory only saves calls."""

    def __init__(self, compute: Compute) -> None:
        self._compute = compute
        self._finished: BoundedCache[DiskKey, Outcome] = BoundedCache()
        self._told: BoundedCache[DiskKey, bool] = BoundedCache()
        """Failed operations whose error was raised."""
        self._begun: BoundedCache[DiskKey, tuple[str, float]] = BoundedCache()
        """What those that this process began do, and since when."""

    def outcome(self, call: HookCall, method: str, *resources: tuple[str, str]) -> Outcome:
        """Return what became of the saved operation. Raises RetryLater while it runs, and once GceError if it has
        failed.

        method: what it was, for the error. resources: keys of pollers that it changes; they are read again when it is
        done. After its error was raised, the next call goes on with another attempt.
        """
        key = self.saved(call)
        if key is None:
            return Outcome.NONE
        if self._told.get(key):
            raise RetryLater(0.0, self.next_attempt(call.context))
        if (finished := self._finished.get(key)) is not None:
            return finished
        operation = self._compute.operations.current(key)
        if operation is not None and not operation.done:
            raise RetryLater(self._compute.operations.next_poll(key))
        for resource in () if self._compute.noticed(key) else resources:
            self._compute.changed(resource)
        if operation is None:
            return self._finished.put(key, Outcome.UNKNOWN)
        if operation.errors:
            self._told.put(key, True)
            code, message = operation.errors[0]
            raise GceError(method, code, message, operation.status)
        return self._finished.put(key, Outcome.SUCCEEDED)

    def begin(
        self,
        call: HookCall,
        method: Method,
        key: Hashable,
        *identity: object,
        state: Mapping[str, Any],
        queue: Hashable = None,
        **fields: Any,
    ) -> RetryLater:
        """Start an operation; returns what to raise, with the state to save. Raises what `Compute.change` raises.

        identity: what makes this call another one than others of this method, for its requestId. state: what else is
        to be saved. queue: as of `Compute.change`.
        """
        attempt = self.attempt(call.context)
        id_ = request_id(method, *identity, attempt)
        operation = self._compute.change(method, key, call, queue=queue, request_id=id_, **fields)
        saved = {**state, _ATTEMPT: attempt, _OPERATION: f"{operation.place}/operations/{operation.name}"}
        running = (operation.place, operation.name)
        self._begun.put(running, (_verb(method), self._compute.clock()))
        self._compute.concerns(running, key, queue)
        pause = self._compute.operations.next_poll(running, after=_FIRST_POLL)
        return RetryLater(pause, saved)

    def proves(self, call: HookCall, method: Method) -> bool:
        """Return whether the saved operation shows that what `method` does is done, so that nothing need be read."""
        key = self.saved(call)
        if key is None or self._finished.get(key) is not Outcome.SUCCEEDED:
            return False
        verb, began = self._begun.get(key) or ("", 0.0)
        return verb == _verb(method) and self._compute.clock() - began <= _PROOF_SECONDS

    def begin_on(self, call: HookCall, disk: Disk, method: Method, wish: object, **fields: Any) -> RetryLater:
        """Start an operation that changes a disk as it was read; returns what to raise. wish: what it shall become."""
        kind, _, where = disk.place.partition("/")
        before = (disk.id, disk.size, disk.iops, disk.throughput)
        place = {kind.removesuffix("s"): where, "disk": disk.name}
        return self.begin(call, method, disk.key, *before, wish, state={}, **place, **fields)

    def update(self, call: HookCall, disk: Disk, values: Mapping[str, int | str]) -> RetryLater:
        """Start to change these fields of compute.v1.Disk; returns what to raise."""
        method = Method.REGION_DISKS_UPDATE if disk.place.startswith("regions/") else Method.DISKS_UPDATE
        paths = ",".join(_PATHS[name] for name in values)
        message = {"name": disk.name, **values}
        return self.begin_on(call, disk, method, sorted(values.items()), paths=paths, disk_resource=message)

    @staticmethod
    def attempt(context: Context) -> int:
        """Return the number of the attempt, from 0."""
        number = context.state.get(_ATTEMPT)
        return number if isinstance(number, int) and number > 0 else 0

    @classmethod
    def saved(cls, call: HookCall) -> DiskKey | None:
        """Return the place and name of the saved operation."""
        return cls.named(call.context.state)

    @staticmethod
    def named(state: Mapping[str, Any] | None) -> DiskKey | None:
        """Return the place and name of the operation in a state that is saved."""
        text = (state or {}).get(_OPERATION)
        place, between, name = str(text or "").rpartition("/operations/")
        return (place, name) if between and place and name else None

    @classmethod
    def next_attempt(cls, context: Context) -> dict[str, Any]:
        """Return the state without the operation that is over; its number is saved before it is used."""
        kept = {name: value for name, value in context.state.items() if name != _OPERATION}
        return {**kept, _ATTEMPT: cls.attempt(context) + 1}
