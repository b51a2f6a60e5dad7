"""A backend for disks of Cumulus, a made-up cloud with a REST API (docs/how-to/write-a-cloud-backend.md)."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, NoReturn
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import volplane
from volplane import Param, cloud, hookimpl, read_parameters
from volplane.cloud import GIB, LABELS, NO_ANSWER, CloudError, ErrorRow, HookCall, RetryLater

MACHINE = "cumulus:///"
"""Beginning of `spec.providerID` of nodes; the name of the machine follows."""
ERRORS = (
    ErrorRow(codes=("TooMany",), error=volplane.Throttled, doubt=False, retry_after=1.0, advice="it is tried again"),
    ErrorRow(codes=("NoDisk", "NoMachine"), error=volplane.NotFound),
    ErrorRow(codes=("Exists",), error=volplane.Unavailable, doubt=True, retry_after=1.0, advice="it is looked at"),
    ErrorRow(codes=("Busy",), error=volplane.Unavailable, doubt=False, retry_after=1.0, advice="it is tried again"),
    ErrorRow(
        codes=("ZoneFull",), error=volplane.ResourceExhausted, reschedule=True, advice="another zone may have room"
    ),
    ErrorRow(codes=("BadValue",), error=volplane.InvalidArgument),
    ErrorRow(codes=("InUse",), error=volplane.VolumeInUse, doubt=False),
    ErrorRow(codes=(NO_ANSWER,), error=volplane.Unavailable, advice="volplane looks before it goes on"),
)

Json = dict[str, Any]
Send = Callable[[str, str, bytes], tuple[int, bytes]]
"""Method, target and body -> status and body. Raises OSError if no answer comes."""


@dataclass(frozen=True, kw_only=True)
class Settings(cloud.DiskOptions):
    """The options of a driver."""

    csi_driver_name: cloud.CsiDriverName = "disks.cumulus.example.com"
    zone_label: Annotated[str, Param("Node label that holds the zone.")] = "topology.cumulus.example.com/zone"
    mutations_per_second: Annotated[int, Param("Changes a second.", minimum=1, maximum=1_000)] = 10
    mutation_burst: Annotated[int, Param("How many at once after a pause.", minimum=1, maximum=10_000)] = 20


@dataclass(frozen=True, kw_only=True)
class ClassParameters:
    """The parameters of a StorageClass."""

    kind: Annotated[str, Param("Kind of disk.", choices=("hdd", "ssd"))] = "ssd"
    fs_type: Annotated[str, Param("File system.", name="fsType", choices=("ext4", "xfs"))] = "ext4"


NAME = re.compile(r"[a-z0-9_-]{1,63}")


def disk_name(owner: Any) -> str:
    return cloud.label_text(f"{owner.volume_name}-{owner.generation}")


class Cumulus:
    """Its calls: at its rate, and with one reader of states for all hooks that wait. Safe for threads."""

    def __init__(self, settings: Settings, send: Send | None, clock: Callable[[], float]) -> None:
        self.settings = settings
        self._send = send or self._over_http
        self._limits = cloud.RateLimiter(rate=settings.mutations_per_second, burst=settings.mutation_burst, clock=clock)
        self.disks: cloud.StatePoller[str, Json] = cloud.StatePoller(self._read, clock=clock, interval=0.5)

    def _over_http(self, method: str, target: str, body: bytes) -> tuple[int, bytes]:
        request = Request(self.settings.endpoint + target, data=body or None, method=method)  # noqa: S310
        try:
            with urlopen(request, timeout=30) as answer:  # noqa: S310
                return answer.status, answer.read()
        except HTTPError as error:
            return error.code, error.read()

    def call(self, method: str, path: str, body: Json | None = None, **query: str | None) -> Json:
        """Raises CloudError."""
        given = urlencode({key: text for key, text in query.items() if text})
        try:
            status, text = self._send(method, f"{path}?{given}", json.dumps(body).encode() if body else b"")
        except OSError as error:
            raise CloudError(f"{method} {path}", NO_ANSWER, str(error)) from None
        answer: Json = json.loads(text)
        if status >= 400:
            raise CloudError(f"{method} {path}", answer["code"], answer["message"])
        return answer

    def _read(self, names: Sequence[str]) -> dict[str, Json]:
        return {disk["name"]: disk for disk in self.call("GET", "/disks", names=",".join(names))["disks"]}

    def change(self, call: HookCall, name: str, method: str, path: str, /, **body: Any) -> NoReturn:
        """Change a disk. Raises RetryLater for the next look at it, and CloudError."""
        refusal = {"TooMany": cloud.Refusal(), "Busy": cloud.Refusal(of_resource=True)}
        try:
            self._limits.make(
                method,
                name,
                call,
                lambda: self.call(method, path, body),
                refusal=lambda error: refusal.get(error.code),
            )
        except CloudError as error:
            if error.code != "Exists":
                raise
        finally:
            self.disks.invalidate(name)
        raise RetryLater(self.disks.next_poll(name, after=0.5))


class Disks:
    """The operations of the hooks."""

    def __init__(self, cumulus: Cumulus, nodes: cloud.NodeNames) -> None:
        self._cumulus, self._nodes, self._fences = cumulus, nodes, cloud.Fences(LABELS)

    # --- making and deleting

    def provision(self, request: volplane.ProvisionRequest, call: HookCall, region: tuple[str, ...]) -> volplane.Asset:
        if {volplane.AccessMode.READ_WRITE_MANY, volplane.AccessMode.READ_ONLY_MANY} & set(request.access_modes):
            raise volplane.Unsupported("a disk of Cumulus is attached to one machine")
        wanted = read_parameters(ClassParameters, request.parameters)
        gib = cloud.size_in_gib(request.capacity_bytes)
        zones = cloud.zones_for(request, self._settings.zone_label, region)
        if gib > CumulusBackend.largest_gib or (request.limit_bytes is not None and gib * GIB > request.limit_bytes):
            raise volplane.OutOfRange(f"{gib} GiB: more than a disk has, or than the limit of the demand")
        demand = hashlib.sha256(repr((gib, wanted, request.source_snapshot)).encode()).hexdigest()[:16]
        name = disk_name(request.owner)
        disk = self._cumulus.disks.current(name)
        if disk is None:
            source = self.source(request, gib)
            labels = {**LABELS.of(request.owner), LABELS.demand: demand, **LABELS.of_term(request.context)}
            body = {"name": name, "zone": zones[0], "gib": gib, "kind": wanted.kind, "labels": labels}
            self._cumulus.change(call, name, "POST", "/disks", **body, **source)
        LABELS.refuse_foreign(name, disk["labels"], request.owner)
        if LABELS.recorded_demand(disk["labels"]) != demand or disk["zone"] not in zones:
            raise volplane.AlreadyExists(f"{name} was made for {request.name} by another demand: {disk}")
        self._require_ready(disk)
        return self.asset(disk, request.volume_mode, wanted.fs_type, request.context.driver)

    def source(self, request: volplane.ProvisionRequest, _gib: int) -> Json:
        """Return what the disk is made from, for the call that makes it."""
        if request.source_snapshot or request.source_volume:
            raise volplane.Unsupported("a disk of Cumulus is made from nothing")
        return {}

    @property
    def _settings(self) -> Settings:
        return self._cumulus.settings

    def asset(self, disk: Json, mode: volplane.VolumeMode, fs_type: str, driver: str) -> volplane.Asset:
        source, place = cloud.csi_source(self._settings, disk["name"], mode, fs_type), [disk["zone"]]
        return cloud.csi_asset(self._settings, disk["name"], source, size_gib=disk["gib"], zones=place, driver=driver)

    def _require_ready(self, disk: Json) -> None:
        if disk["state"] != "ready":
            raise RetryLater(self._cumulus.disks.next_poll(disk["name"], after=0.5))

    def _existing(self, volume: volplane.VolumeIdentity) -> Json:
        disk = self._cumulus.disks.current(volume.handle)
        if disk is None or disk["state"] == "dropping":
            raise volplane.NotFound(f"the disk {volume.handle} of {volume.name} does not exist (any more)")
        LABELS.refuse_foreign(volume.handle, disk["labels"], volume.owner)
        return disk

    def _require_turn(self, disk: Json, call: HookCall) -> None:
        """Raise unless this leader may change the disk now; its term is written first."""
        self._fences.refuse_former_leader(disk["name"], disk["labels"], call.context)
        self._require_ready(disk)
        if mark := self._fences.mark_to_write(disk["labels"], call.context):
            self._patch(call, disk, labels={**disk["labels"], **mark})

    def _patch(self, call: HookCall, disk: Json, **body: Any) -> NoReturn:
        self._cumulus.change(call, disk["name"], "PATCH", f"/disks/{disk['name']}", **body)

    def delete(self, request: volplane.DeleteRequest, call: HookCall) -> volplane.Done:
        name = request.volume.handle
        disk = self._cumulus.disks.current(name)
        if disk is None:
            return volplane.Done()
        LABELS.refuse_foreign(name, disk["labels"], request.volume.owner)
        if disk["machines"]:
            raise volplane.VolumeInUse(
                f"{name} is attached to {', '.join(map(self._nodes, disk['machines']))}", code="InUse"
            )
        self._fences.refuse_former_leader(name, disk["labels"], call.context)
        self._require_ready(disk)
        return self._cumulus.change(call, name, "DELETE", f"/disks/{name}")

    # --- changes

    def expand(self, request: volplane.ExpandRequest, call: HookCall) -> volplane.Asset:
        disk, gib = self._existing(request.volume), cloud.size_in_gib(request.capacity_bytes)
        if gib > CumulusBackend.largest_gib:
            raise volplane.OutOfRange(f"{gib} GiB: a disk has at most {CumulusBackend.largest_gib}")
        if disk["gib"] < gib:
            self._require_turn(disk, call)
            self._patch(call, disk, gib=gib)
        fs_type = str(request.volume.source.fields.get("fsType", ""))
        return self.asset(disk, request.volume.volume_mode, fs_type, request.context.driver)

    # --- attachments

    def attach(self, request: volplane.AttachRequest, call: HookCall) -> volplane.Attachment:
        disk, machine = self._existing(request.volume), machine_of(request.node)
        if machine is None:
            raise volplane.NotFound(f"node {request.node.name} is no machine of Cumulus: {request.node.instance_id!r}")
        other = next((each for each in disk["machines"] if each != machine), None)
        if other is not None:
            raise volplane.AttachedElsewhere(
                f"{disk['name']} is attached to {self._nodes(other)}", node=self._nodes(other)
            )
        if disk["machines"].get(machine) == "attached":
            return volplane.Attachment(metadata={"device": f"/dev/disk/by-id/{disk['name']}"})
        if not disk["machines"]:
            self._require_turn(disk, call)
            most = self._settings.attach_limit
            if most and len(self._cumulus.call("GET", "/disks", machine=machine)["disks"]) >= most:
                raise volplane.ResourceExhausted(f"node {request.node.name} can hold {most} disks", scope="node")
            self._cumulus.change(call, disk["name"], "POST", f"/disks/{disk['name']}/attach", machine=machine)
        raise RetryLater(self._cumulus.disks.next_poll(disk["name"], after=0.5))

    def detach(self, request: volplane.DetachRequest, call: HookCall) -> volplane.Done:
        name = request.volume.handle
        # Other machines write to the disk once this is Done: a state that was read before is no proof.
        disk, machine = self._cumulus.disks.fetch_now(name).value, machine_of(request.node)
        if disk is not None and machine is None:  # The Node object is gone.
            machine = next((each for each in disk["machines"] if self._nodes(each) == request.node.name), None)
        if disk is None or machine not in disk["machines"]:
            return volplane.Done()
        self._fences.refuse_former_leader(name, disk["labels"], call.context)
        if disk["machines"][machine] == "detaching":
            raise RetryLater(self._cumulus.disks.next_poll(name, after=0.5))
        return self._cumulus.change(call, name, "POST", f"/disks/{name}/detach", machine=machine)

    # --- owners

    def list_page(self, request: volplane.ListRequest) -> volplane.AssetPage:
        page = self._cumulus.call("GET", "/disks", label=LABELS.cluster, after=request.page)
        listed = (disk for disk in page["disks"] if disk["state"] != "dropping")
        return volplane.AssetPage(assets=tuple(self._listed(disk, request) for disk in listed), next_page=page["next"])

    @staticmethod
    def _listed(disk: Json, request: volplane.ListRequest | volplane.InspectRequest) -> volplane.ListedAsset:
        return volplane.ListedAsset(
            handle=disk["name"],
            name=disk["name"],
            capacity_bytes=disk["gib"] * GIB,
            owner=LABELS.owner(disk["labels"], request.context.cluster_id),
            attached_to=tuple(disk["machines"]),
            changed_in=str(LABELS.term(disk["labels"]) or ""),
        )

    def inspect(self, request: volplane.InspectRequest) -> volplane.ListedAsset | volplane.Absent:
        disk = self._cumulus.disks.fetch_now(request.handle).value if NAME.fullmatch(request.handle) else None
        if disk is None or disk["state"] == "dropping":
            return volplane.Absent()
        source = cloud.csi_source(self._cumulus.settings, disk["name"], volplane.VolumeMode.BLOCK, "")
        return replace(self._listed(disk, request), source=source)

    def adopt(self, request: volplane.AdoptRequest, call: HookCall) -> volplane.Done:
        name = request.volume.handle
        disk = self._cumulus.disks.fetch_now(name).value
        if disk is None:
            raise volplane.NotFound(f"the disk {name} of {request.volume.name} does not exist (any more)")
        labels = self._fences.marks_to_adopt(name, disk["labels"], request)
        if labels:
            try:
                self._patch(call, disk, labels={**disk["labels"], **labels})
            except RetryLater as retry:
                text = f"{name} is being marked"
                raise volplane.Throttled(text, retry_after=max(retry.seconds, 0.5), nothing_done=True) from None
        self._fences.forget(name)
        return volplane.Done()

    def find(self, request: volplane.FindRequest) -> volplane.Asset | volplane.Absent:
        disk = self._cumulus.disks.fetch_now(disk_name(request.owner)).value
        if disk is None or disk["state"] == "dropping":
            return volplane.Absent()
        if LABELS.owner(disk["labels"], request.owner.cluster_id) != request.owner:
            return volplane.Absent()
        fs_type = read_parameters(ClassParameters, request.parameters).fs_type
        return self.asset(disk, volplane.VolumeMode.FILESYSTEM, fs_type, request.context.driver)

    def read_zones(self) -> cloud.ZoneStates:
        zones = {each["name"]: each["state"] for each in self._cumulus.call("GET", "/zones")["zones"]}
        return cloud.ZoneStates(zones, zones)


def machine_of(node: volplane.NodeIdentity) -> str | None:
    return node.instance_id.removeprefix(MACHINE) if node.instance_id.startswith(MACHINE) else None


class CumulusBackend(cloud.DiskBackend):
    """Disks of Cumulus."""

    default_driver_name: ClassVar[str] = "cumulus.example.com"
    options_schema: ClassVar[volplane.ParameterSchema] = volplane.ParameterSchema.of(Settings)
    distribution: ClassVar[str] = "volplane"  # That of the plugin, once it is one.
    class_parameters: ClassVar[volplane.ParameterSchema] = volplane.ParameterSchema.of(ClassParameters)
    settle_seconds: ClassVar[float] = 30.0
    largest_gib: ClassVar[int] = 16_384
    operations: ClassVar[type[Disks]] = Disks
    errors: ClassVar[cloud.ErrorTable] = cloud.ErrorTable(ERRORS)

    def __init__(
        self, options: Mapping[str, Any], *, send: Send | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        settings = read_parameters(Settings, options)
        nodes = cloud.NodeNames(machine_of)
        cumulus = self._cumulus = Cumulus(settings, send, clock)
        disks = self._disks = self.operations(cumulus, nodes)
        super().__init__(
            options,
            settings=settings,
            connect=lambda _settings: cloud.DiskAccount(
                cloud.DiskOperations.of(disks, error=self.errors.translated, close=lambda: None),
                cloud.Zones(disks.read_zones, wanted=settings.zones, up=("up",), assets="disks", clock=clock),
            ),
            nodes=nodes,
            clock=clock,
        )

    @hookimpl
    def owns(self, request: volplane.OwnsRequest) -> bool:
        """Return whether it is a csi source of this driver."""
        return request.source.kind == "csi" and request.source.fields.get("driver") == self._settings.csi_driver_name
