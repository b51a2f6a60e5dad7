"""FakeCompute: the disks of one mocked project in one region."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from volplane_gce_pd.testing import instances
from volplane_gce_pd.testing.behaviour import Behaviour
from volplane_gce_pd.testing.errors import ComputeError, not_found, unreachable
from volplane_gce_pd.testing.methods import METHODS, parsed, permissions_for
from volplane_gce_pd.testing.project import Project
from volplane_gce_pd.testing.records import DiskRecord, InstanceRecord, OperationRecord, SnapshotRecord
from volplane_testing.cloud import (
    CloudFailure,
    DiskContents,
    FakeCloud,
    FakeCloudServer,
    Fault,
    HttpRequest,
    HttpResponse,
)
from volplane_testing.disks import DiskDirectory

_MINUTE = 60.0


class FakeCompute(FakeCloud):
    """One project in one region, as far as disks are concerned.

    clock: seconds from any start. States change when the clock has moved. `faults` is the script of faults, by names of
    methods such as "disks.insert": STALL leaves the operation RUNNING for ever; FAIL ends it with the fault's code and
    message, and undoes what it did.
    """

    def __init__(self, behaviour: Behaviour | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock=clock)
        self._project = Project(behaviour or Behaviour(), self.timeline)

    @property
    def behaviour(self) -> Behaviour:
        """Return the current behaviour."""
        return self._project.behaviour

    def behave(self, **changes: Any) -> None:
        """Change fields of the behaviour from now on, as in `behave(ssd_gb=100)`."""
        with self.settled():
            self._project.behaviour = replace(self._project.behaviour, **changes)

    # --- requests -----------------------------------------------------------------------------------------------

    def answer(self, request: HttpRequest) -> HttpResponse:
        """Return the HTTP face: from a request to its response, both checked by Google's message classes."""
        try:
            method, params = parsed(request.method, request.target, request.body)
        except ComputeError as error:
            return _error_response(error)
        caller = request.headers.get("authorization", "").removeprefix("Bearer ")
        reply = self.request(method.name, params, caller=caller)
        if reply.lost or reply.closed:
            return HttpResponse(lost=reply.lost, closed=reply.closed)
        if reply.error is not None:
            return _error_response(reply.error)
        return HttpResponse(body=method.check_answer(reply.result or {}))

    def admit(self, action: str, params: Mapping[str, Any], caller: str) -> None:
        """Check the token, the project, the rate of the group, and what the caller may do."""
        behaviour, method = self.behaviour, METHODS[action]
        if behaviour.tokens is not None and caller not in behaviour.tokens:
            raise ComputeError("authError", "Request had invalid authentication credentials.")
        shared = behaviour.shared_projects if action.startswith(("snapshots.", "images.")) else frozenset()
        if params["project"] not in {behaviour.project, *(shared if method.verb == "GET" else ())}:
            raise not_found(f"projects/{params['project']}")
        self._count(method.group)
        if behaviour.permissions is not None:
            for permission in permissions_for(method, params.get("body", {})):
                if permission not in behaviour.permissions:
                    raise ComputeError(
                        "forbidden", f"Required '{permission}' permission for 'projects/{behaviour.project}'"
                    )

    def _count(self, group: str) -> None:
        most = self.behaviour.calls_per_minute.get(group)
        minute, counts = self._project.minute
        if minute != int(self._project.now // _MINUTE):
            counts.clear()
            self._project.minute = (int(self._project.now // _MINUTE), counts)
        if most is not None and counts[group] >= most:
            raise ComputeError("rateLimitExceeded", f"Quota exceeded for quota group '{group}' and limit {most}/min.")
        counts[group] += 1

    def perform(self, action: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Do it; a call with a known requestId only returns its operation. Raises ComputeError."""
        known = self._project.known_request(action, params)
        if known is not None:
            return known.shown(self.behaviour.project)
        where = params.get("zone") or params.get("region")
        if where in self.behaviour.unreachable:
            raise unreachable(f"The place {where}")
        self._project.stalled, self._project.failing = self.stalled, self.failing
        result = METHODS[action].handler(self._project, action, params)
        return result.shown(self.behaviour.project) if isinstance(result, OperationRecord) else result

    def failure(self, fault: Fault) -> ComputeError:
        """Return the error response of a scripted fault."""
        return ComputeError(fault.code, fault.message, fault.status)

    # --- for tests ----------------------------------------------------------------------------------------------

    @contextmanager
    def locked_state(self) -> Iterator[Project]:
        """Yield the current state; requests of other threads wait until the block ends."""
        with self.settled():
            yield self._project

    @property
    def disks(self) -> dict[tuple[str, str], DiskRecord]:
        """Return the disks by place and name, without boot disks. The records are live: a test may change them."""
        with self.locked_state() as project:
            return dict(project.disks)

    @property
    def snapshots(self) -> dict[str, SnapshotRecord]:
        """Return the snapshots by name. The records are live."""
        with self.locked_state() as project:
            return dict(project.snapshots)

    @property
    def images(self) -> dict[str, SnapshotRecord]:
        """Return the images by name. The records are live."""
        with self.locked_state() as project:
            return dict(project.images)

    @property
    def operations(self) -> list[OperationRecord]:
        """Return the operations that are still known, oldest first. The records are live."""
        with self.locked_state() as project:
            return sorted(project.operations.values(), key=lambda operation: operation.id)

    def attached(self) -> dict[str, tuple[str, ...]]:
        """Handle of every disk -> names of the virtual machines that have it now."""
        project = self.behaviour.project
        return {disk.path(project): tuple(name for _, name in disk.users) for disk in self.disks.values()}

    @property
    def contents(self) -> DiskContents:
        """What is in disks, snapshots and images, by their paths; in memory unless a server shows them to pods."""
        with self.locked_state() as project:
            return project.contents

    @contents.setter
    def contents(self, contents: DiskContents) -> None:
        with self.locked_state() as project:
            project.contents = contents

    def add_instance(self, name: str, zone: str = "", *, machine_type: str = "n1-standard-1") -> InstanceRecord:
        """Add a running virtual machine, by default in the first zone. It has a boot disk."""
        with self.locked_state() as project:
            return instances.add_instance(project, zone or project.behaviour.zones[0], name, machine_type)

    def delete_instance(self, instance: InstanceRecord) -> None:
        """Delete a virtual machine at once; its disks are detached."""
        with self.locked_state() as project:
            instances.delete_instance(project, instance)

    def unix_time(self) -> float:
        """Return the Unix time that the clock stands for, as in answers."""
        with self.locked_state() as project:
            return project.unix_time()

    def remove_disk(self, place: str, name: str) -> None:
        """Remove a disk at once, as if another client had deleted it."""
        with self.locked_state() as project:
            project.disks.pop((place, name), None)

    def forget_operations(self) -> None:
        """Forget all operations and requestIds, as after their time."""
        with self.locked_state() as project:
            project.operations.clear()
            project.requests.clear()


def _error_response(error: CloudFailure) -> HttpResponse:
    """Return the body of an error of the Compute Engine API."""
    detail = {"message": error.message, "domain": "global", "reason": error.code}
    body = {"error": {"code": error.status, "message": error.message, "errors": [detail]}}
    return HttpResponse(error.status, json.dumps(body).encode())


class FakeComputeServer(FakeCloudServer):
    """Serves a FakeCompute under `url`, which is also for the option `endpoint` of the driver.

    Until `close`; also a context manager. The fake needs a clock that runs. port: 0 = any free port. disks: shows every
    disk under the virtual machines that it is attached to, for pods of `volplane dev --disks`.
    """

    def __init__(self, fake: FakeCompute, *, port: int = 0, disks: DiskDirectory | None = None) -> None:
        self.fake = fake
        if disks is not None:
            fake.contents = disks

        def answer(request: HttpRequest) -> HttpResponse:
            answered = fake.answer(request)
            if disks is not None:
                cut = [each.path(fake.behaviour.project) for each in (*fake.snapshots.values(), *fake.images.values())]
                disks.show({**dict.fromkeys(cut, ()), **fake.attached()})
            return answered

        super().__init__(answer, port=port)
