"""Backends that lose their way when they are stopped, or called twice, in the middle."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from volplane import (
    Absent,
    Asset,
    DeleteRequest,
    Done,
    FindRequest,
    InProgress,
    NotFound,
    ProvisionRequest,
    hookimpl,
)
from volplane_testing.memory import MemoryBackend
from volplane_testing.memory_storage import MemoryStorage


@dataclass(slots=True)
class Disk(MemoryStorage):
    """A storage on which a backend also keeps files."""

    files: set[str] = field(default_factory=set)


def files_of(backend: MemoryBackend) -> set[str]:
    """The files beside the assets."""
    assert isinstance(backend.storage, Disk)
    return backend.storage.files


class MarksLast(MemoryBackend):
    """First it makes the asset, then it puts the marks on: between the two nobody knows whose it is."""

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        if request.name in self.storage.assets:
            return super().provision(request)
        nobody = replace(request.owner, claim_uid="")
        result = super().provision(replace(request, owner=nobody))
        made = self.storage.assets[request.name]
        made.owner = request.owner
        return result


class MarksLastButMends(MarksLast):
    """The next call of `provision` mends it, but `find` does not see it."""

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        there = self.storage.assets.get(request.name)
        if there is not None and not there.owner.claim_uid:
            there.owner = request.owner
        return super().provision(request)

    @hookimpl
    def find(self, request: FindRequest) -> Asset | Absent:
        return super().find(request)


class LeavesAHalfWrittenFile(MemoryBackend):
    """Marks are written to a file beside them first; what a crash leaves of it is removed only by the next attempt."""

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        if request.name in self.storage.assets:
            return super().provision(request)
        half_written = f".{request.name}.new"
        files_of(self).add(half_written)
        time.sleep(0)
        files_of(self).remove(half_written)
        return super().provision(request)


class UnmarksFirst(MemoryBackend):
    @hookimpl
    def delete(self, request: DeleteRequest) -> Done | InProgress:
        with self.storage.lock:
            there = self.storage.by_handle(request.volume.handle)
            if there is not None and there.owner == request.volume.owner and not there.attached_to:
                there.owner = replace(there.owner, claim_uid="deleted")
                del self.storage.assets[there.name]
        return super().delete(request)


class LooksThenLeaps(MemoryBackend):
    """Nothing holds the name between the question and the deed."""

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        there = request.name in self.storage.assets
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.1)  # only calls beside others are in threads
        if there:
            return super().provision(request)
        with self.storage.lock:
            self.storage.assets.pop(request.name, None)
            return super().provision(request)


class NeedsItsState(MemoryBackend):
    """Without the state of the last answer it begins anew, and what it had begun stays."""

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        there = self.storage.assets.get(request.name)
        waiting = there is not None and there.ready_at > self.storage.clock()
        if there is not None and waiting and "handle" not in request.context.state:
            self.storage.assets[f"{request.name}-{there.handle}"] = self.storage.assets.pop(request.name)
        return super().provision(request)


class KeepsStateInMemory(MemoryBackend):
    """A deletion is remembered only by the process that began it; the others begin it again, and again."""

    def __init__(self, options: Mapping[str, Any], *, storage: MemoryStorage) -> None:
        super().__init__(options, storage=storage)
        self.begun: set[str] = set()

    @hookimpl
    def delete(self, request: DeleteRequest) -> Done | InProgress:
        handle = request.volume.handle
        if request.context.state and handle not in self.begun:
            raise NotFound(f"no deletion of {handle} is known")
        self.begun.add(handle)
        return super().delete(request)
