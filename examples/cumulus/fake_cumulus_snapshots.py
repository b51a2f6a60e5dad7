"""The fake of Cumulus with snapshots."""

from __future__ import annotations

from typing import Any

from fake_cumulus import FakeCumulus, Json

from volplane_testing.cloud import CloudFailure, page_of


class FakeCumulusWithSnapshots(FakeCumulus):
    """A snapshot is made in two seconds, and dropped in none."""

    def __init__(self, **world: Any) -> None:
        super().__init__(**world)
        self.snapshots: dict[str, Json] = {}

    def _post_disks(self, params: Json) -> Json:
        if "snapshot" in params and self._get_snapshots({"id": params["snapshot"]})["gib"] > params["gib"]:
            raise CloudFailure("BadValue", "the disk is smaller than the snapshot")
        return super()._post_disks(params)

    def _get_snapshots(self, params: Json) -> Json:
        if "label" in params:
            chosen = [each for each in self.snapshots.values() if params["label"] in each["labels"]]
            page, following = page_of(chosen, lambda each: str(each["name"]), size=4, token=params.get("after"))
            return {"snapshots": page, "next": following}
        if params["id"] not in self.snapshots:
            raise CloudFailure("NoSnapshot", f"there is no snapshot {params['id']}", 404)
        return self.snapshots[params["id"]]

    def _post_snapshots(self, params: Json) -> Json:
        if params["name"] in self.snapshots:
            raise CloudFailure("Exists", f"there is a snapshot {params['name']}", 409)
        disk = self._disk({"id": params["disk"]})
        made = self.snapshots[params["name"]] = {**params, "gib": disk["gib"], "state": "making"}
        self._later(2.0, lambda: made.update(state="ready"))
        return made

    def _delete_snapshots(self, params: Json) -> Json:
        self._get_snapshots(params)
        del self.snapshots[params["id"]]
        return {}
