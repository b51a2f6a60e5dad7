"""Snapshots of disks of Cumulus, on top of `volplane_cumulus` (docs/how-to/write-a-cloud-backend.md)."""

from __future__ import annotations

from typing import ClassVar

from volplane_cumulus import ERRORS, CumulusBackend, Disks, Json

import volplane
from volplane import cloud
from volplane.cloud import GIB, LABELS, CloudError, ErrorRow, HookCall


class DisksWithSnapshots(Disks):
    """The operations of the hooks, those of snapshots among them."""

    def source(self, request: volplane.ProvisionRequest, gib: int) -> Json:
        if request.source_snapshot is None or request.source_volume:
            return super().source(request, gib)
        found = self._snapshot(request.source_snapshot)
        seen = None if found is None else self.seen(found, request.context)
        cloud.refuse_unusable(seen, request.source_snapshot, gib)
        return {"snapshot": request.source_snapshot}

    def create_snapshot(self, request: volplane.SnapshotRequest, call: HookCall) -> volplane.Snapshot:
        name = cloud.label_text(request.name)
        found = self._snapshot(name)
        if found is None:
            disk = self._existing(request.volume)
            labels = {**LABELS.of_snapshot(request.owner), **LABELS.of_term(request.context)}
            self._cumulus.change(call, name, "POST", "/snapshots", name=name, disk=disk["name"], labels=labels)
        made = self.seen(found, request.context)
        belongs = LABELS.snapshot_belongs(found["labels"], request.owner)
        cloud.refuse_other_snapshot(made, request, request.volume.handle, belongs=belongs)
        return made

    def _snapshot(self, name: str) -> Json | None:
        try:
            return self._cumulus.call("GET", f"/snapshots/{cloud.label_text(name)}")
        except CloudError as error:
            if error.code != "NoSnapshot":
                raise
            return None

    @staticmethod
    def seen(found: Json, context: volplane.Context) -> volplane.Snapshot:
        return volplane.Snapshot(
            handle=found["name"],
            size_bytes=found["gib"] * GIB,
            ready=found["state"] == "ready",
            source=found["disk"],
            owner=LABELS.snapshot_owner(found["labels"], context.cluster_id),
            name=found["name"],
            state="" if found["state"] == "ready" else found["state"],
            retry_after=1.0,
        )

    def find_snapshot(
        self, request: volplane.FindSnapshotRequest, _call: HookCall
    ) -> volplane.Snapshot | volplane.Absent:
        found = self._snapshot(request.handle or request.name)
        if found is None:
            return volplane.Absent()
        made = self.seen(found, request.context)
        return made if request.handle or request.owner in (None, made.owner) else volplane.Absent()

    def list_snapshots(self, request: volplane.ListSnapshotsRequest) -> volplane.SnapshotPage:
        page = self._cumulus.call("GET", "/snapshots", label=LABELS.snapshot, after=request.page)
        made = tuple(self.seen(each, request.context) for each in page["snapshots"])
        return volplane.SnapshotPage(snapshots=made, next_page=page["next"])

    def delete_snapshot(self, request: volplane.DeleteSnapshotRequest, call: HookCall) -> volplane.Done:
        found = self._snapshot(request.handle)
        if found is None:
            return volplane.Done()
        LABELS.refuse_foreign_snapshot(request.handle, found["labels"], request)
        return self._cumulus.change(call, found["name"], "DELETE", f"/snapshots/{found['name']}")


class CumulusWithSnapshots(CumulusBackend):
    """Disks of Cumulus, and their snapshots."""

    operations: ClassVar[type[Disks]] = DisksWithSnapshots
    errors: ClassVar[cloud.ErrorTable] = cloud.ErrorTable(
        [*ERRORS, ErrorRow(codes=("NoSnapshot",), error=volplane.NotFound)]
    )
