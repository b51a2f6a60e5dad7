"""The fake of Cumulus: its disks and machines, and their REST API."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from volplane_testing.cloud import CloudFailure, FakeCloud, HttpRequest, HttpResponse, Rate, page_of

Json = dict[str, Any]
ZONES = ("north", "south")


class FakeCumulus(FakeCloud):
    """Disks are made in two seconds, changed in none, attached, detached and dropped in one."""

    def __init__(self, *, clock: Callable[[], float], machines: Mapping[str, str] | None = None) -> None:
        """machines: name -> zone."""
        super().__init__(clock=clock)
        self.disks: dict[str, Json] = {}
        self.machines = dict(machines or {})
        self.full: set[str] = set()

    def answer(self, request: HttpRequest) -> HttpResponse:
        """Serve it, in the process or by `FakeCloudServer(fake.answer)`."""
        url = urlsplit(request.target)
        _, kind, *rest = url.path.split("/")
        action = f"{request.method} /{'/'.join([kind, *rest[1:]])}"
        params = {
            **dict(parse_qsl(url.query)),
            **json.loads(request.body or b"{}"),
            **({"id": rest[0]} if rest else {}),
        }
        reply = self.request(action, params)
        if reply.lost or reply.closed:
            return HttpResponse(lost=True)
        if reply.error is not None:
            text = {"code": reply.error.code, "message": reply.error.message}
            return HttpResponse(reply.error.status, json.dumps(text).encode())
        return HttpResponse(body=json.dumps(reply.result).encode())

    def send(self, method: str, target: str, body: bytes) -> tuple[int, bytes]:
        """As the driver sends, without a socket."""
        response = self.answer(HttpRequest(method, target, body=body))
        if response.lost:
            raise ConnectionError("no answer came")
        return response.status, response.body

    def picture(self) -> object:
        """Return what there is, for the conformance suite."""
        with self.settled():
            return sorted((name, str({**disk, "state": ""})) for name, disk in self.disks.items())

    # --- what it does

    def admit(self, action: str, params: Mapping[str, Any], caller: str) -> None:
        if not self.throttle.admits(action, Rate(burst=200, per_second=100), self.timeline.now):
            raise CloudFailure("TooMany", "too many calls", 429)

    def perform(self, action: str, params: Mapping[str, Any]) -> Json:
        method, _, path = action.partition(" /")
        return getattr(self, f"_{method.lower()}_{path.replace('/', '_')}")(dict(params))  # type: ignore[no-any-return]

    def _later(self, seconds: float, change: Callable[[], object]) -> None:
        if not self.stalled:
            self.timeline.after(seconds, change)

    def _disk(self, params: Json, *, idle: bool = True) -> Json:
        disk = self.disks.get(params["id"])
        if disk is None:
            raise CloudFailure("NoDisk", f"there is no disk {params['id']}", 404)
        if idle and disk["state"] != "ready":
            raise CloudFailure("Busy", f"{disk['name']} is {disk['state']}", 409)
        return disk

    def _get_zones(self, _params: Json) -> Json:
        return {"zones": [{"name": zone, "state": "up"} for zone in ZONES]}

    def _get_disks(self, params: Json) -> Json:
        names, machine, label = params.get("names"), params.get("machine"), params.get("label")
        chosen = [
            disk
            for name, disk in self.disks.items()
            if (names is None or name in names.split(","))
            and (machine is None or machine in disk["machines"])
            and (label is None or label in disk["labels"])
        ]
        try:
            page, following = page_of(
                chosen, lambda disk: str(disk["name"]), size=4 if label else None, token=params.get("after")
            )
        except ValueError as error:
            raise CloudFailure("BadValue", str(error)) from None
        return {"disks": page, "next": following}

    def _post_disks(self, params: Json) -> Json:
        name = params["name"]
        if name in self.disks:
            raise CloudFailure("Exists", f"there is a disk {name}", 409)
        if params["zone"] in self.full:
            raise CloudFailure("ZoneFull", f"zone {params['zone']} is full", 503)
        if params["zone"] not in ZONES or not 1 <= params["gib"] <= 16_384:
            raise CloudFailure("BadValue", "no such zone, or the disk is too small or too large")
        disk = {**params, "state": "making", "machines": {}}
        self.disks[name] = disk
        self._later(2.0, lambda: disk.update(state="ready"))
        return disk

    def _patch_disks(self, params: Json) -> Json:
        disk = self._disk(params)
        if params.get("gib", disk["gib"]) < disk["gib"]:
            raise CloudFailure("BadValue", "disks do not shrink")
        disk.update({key: value for key, value in params.items() if key in ("gib", "labels")})
        return disk

    def _delete_disks(self, params: Json) -> Json:
        disk = self._disk(params)
        if disk["machines"]:
            raise CloudFailure("InUse", f"{disk['name']} is attached", 409)
        disk["state"] = "dropping"
        self._later(1.0, lambda: self.disks.pop(disk["name"], None))
        return {}

    def _post_disks_attach(self, params: Json) -> Json:
        disk, machine = self._disk(params), params["machine"]
        if machine not in self.machines:
            raise CloudFailure("NoMachine", f"there is no machine {machine}", 404)
        if disk["machines"] or self.machines[machine] != disk["zone"]:
            raise CloudFailure("InUse" if disk["machines"] else "BadValue", "attached, or in another zone", 409)
        disk["machines"][machine] = "attaching"
        self._later(1.0, lambda: disk["machines"].update({machine: "attached"}))
        return {}

    def _post_disks_detach(self, params: Json) -> Json:
        disk = self._disk(params)
        if params["machine"] in disk["machines"]:
            disk["machines"][params["machine"]] = "detaching"
            self._later(1.0, lambda: disk["machines"].pop(params["machine"], None))
        return {}
