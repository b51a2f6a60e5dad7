"""Calls of Compute Engine. The only module that uses the client library, which is imported at the first call.

Calls that start an operation use the library's `*_unary` methods, which return it: the library's own waiting would
hold a thread and ask the public endpoint whatever endpoint is set.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

from volplane.cloud import NO_ANSWER, NO_CREDENTIALS, NOT_SENT, CloudError, measured
from volplane_gce_pd.settings import Settings

_TIMEOUT_SECONDS = 20.0
_REQUEST_LINE = re.compile(r"^[A-Z]+ https?://\S+: ")
"""The client library puts it before Google's message."""


class Method(StrEnum):
    """Every method of the Compute Engine API v1 that the driver calls. The roles document is derived from this list."""

    DISKS_AGGREGATED_LIST = "disks.aggregatedList"
    DISKS_DELETE = "disks.delete"
    DISKS_GET = "disks.get"
    DISKS_INSERT = "disks.insert"
    DISKS_LIST = "disks.list"
    DISKS_RESIZE = "disks.resize"
    DISKS_SET_LABELS = "disks.setLabels"
    DISKS_UPDATE = "disks.update"
    REGION_DISKS_DELETE = "regionDisks.delete"
    REGION_DISKS_GET = "regionDisks.get"
    REGION_DISKS_INSERT = "regionDisks.insert"
    REGION_DISKS_LIST = "regionDisks.list"
    REGION_DISKS_RESIZE = "regionDisks.resize"
    REGION_DISKS_SET_LABELS = "regionDisks.setLabels"
    REGION_DISKS_UPDATE = "regionDisks.update"
    INSTANCES_AGGREGATED_LIST = "instances.aggregatedList"
    INSTANCES_ATTACH_DISK = "instances.attachDisk"
    INSTANCES_DETACH_DISK = "instances.detachDisk"
    INSTANCES_GET = "instances.get"
    INSTANCES_LIST = "instances.list"
    MACHINE_TYPES_GET = "machineTypes.get"
    IMAGES_DELETE = "images.delete"
    IMAGES_GET = "images.get"
    IMAGES_INSERT = "images.insert"
    IMAGES_LIST = "images.list"
    SNAPSHOTS_DELETE = "snapshots.delete"
    SNAPSHOTS_GET = "snapshots.get"
    SNAPSHOTS_INSERT = "snapshots.insert"
    SNAPSHOTS_LIST = "snapshots.list"
    ZONES_LIST = "zones.list"
    ZONE_OPERATIONS_GET = "zoneOperations.get"
    ZONE_OPERATIONS_LIST = "zoneOperations.list"
    REGION_OPERATIONS_GET = "regionOperations.get"
    REGION_OPERATIONS_LIST = "regionOperations.list"
    GLOBAL_OPERATIONS_AGGREGATED_LIST = "globalOperations.aggregatedList"
    GLOBAL_OPERATIONS_GET = "globalOperations.get"
    GLOBAL_OPERATIONS_LIST = "globalOperations.list"

    @property
    def mutates(self) -> bool:
        """Return whether it changes something, and so returns an operation."""
        return self.partition(".")[2] not in ("get", "list", "aggregatedList")

    @property
    def lists(self) -> bool:
        """Return whether it returns pages."""
        return self.partition(".")[2] in ("list", "aggregatedList")


_REQUESTS: Mapping[Method, str] = {
    Method.DISKS_AGGREGATED_LIST: "AggregatedListDisksRequest",
    Method.DISKS_DELETE: "DeleteDiskRequest",
    Method.DISKS_GET: "GetDiskRequest",
    Method.DISKS_INSERT: "InsertDiskRequest",
    Method.DISKS_LIST: "ListDisksRequest",
    Method.DISKS_RESIZE: "ResizeDiskRequest",
    Method.DISKS_SET_LABELS: "SetLabelsDiskRequest",
    Method.DISKS_UPDATE: "UpdateDiskRequest",
    Method.REGION_DISKS_DELETE: "DeleteRegionDiskRequest",
    Method.REGION_DISKS_GET: "GetRegionDiskRequest",
    Method.REGION_DISKS_INSERT: "InsertRegionDiskRequest",
    Method.REGION_DISKS_LIST: "ListRegionDisksRequest",
    Method.REGION_DISKS_RESIZE: "ResizeRegionDiskRequest",
    Method.REGION_DISKS_SET_LABELS: "SetLabelsRegionDiskRequest",
    Method.REGION_DISKS_UPDATE: "UpdateRegionDiskRequest",
    Method.INSTANCES_AGGREGATED_LIST: "AggregatedListInstancesRequest",
    Method.INSTANCES_ATTACH_DISK: "AttachDiskInstanceRequest",
    Method.INSTANCES_DETACH_DISK: "DetachDiskInstanceRequest",
    Method.INSTANCES_GET: "GetInstanceRequest",
    Method.INSTANCES_LIST: "ListInstancesRequest",
    Method.MACHINE_TYPES_GET: "GetMachineTypeRequest",
    Method.IMAGES_DELETE: "DeleteImageRequest",
    Method.IMAGES_GET: "GetImageRequest",
    Method.IMAGES_INSERT: "InsertImageRequest",
    Method.IMAGES_LIST: "ListImagesRequest",
    Method.SNAPSHOTS_DELETE: "DeleteSnapshotRequest",
    Method.SNAPSHOTS_GET: "GetSnapshotRequest",
    Method.SNAPSHOTS_INSERT: "InsertSnapshotRequest",
    Method.SNAPSHOTS_LIST: "ListSnapshotsRequest",
    Method.ZONES_LIST: "ListZonesRequest",
    Method.ZONE_OPERATIONS_GET: "GetZoneOperationRequest",
    Method.ZONE_OPERATIONS_LIST: "ListZoneOperationsRequest",
    Method.REGION_OPERATIONS_GET: "GetRegionOperationRequest",
    Method.REGION_OPERATIONS_LIST: "ListRegionOperationsRequest",
    Method.GLOBAL_OPERATIONS_AGGREGATED_LIST: "AggregatedListGlobalOperationsRequest",
    Method.GLOBAL_OPERATIONS_GET: "GetGlobalOperationRequest",
    Method.GLOBAL_OPERATIONS_LIST: "ListGlobalOperationsRequest",
}


class GceError(CloudError):
    """A call or an operation that failed.

    code: the reason in the body of an HTTP error, the code of an operation's error, or one of this module. status: of
    HTTP, 0 if there was none.
    """

    def __init__(self, method: str, code: str, message: str, status: int = 0) -> None:
        super().__init__(method, code, message)
        self.status = status


Connect = Callable[[Settings, str], Any]
"""Makes the client of a service, such as "DisksClient", for these settings."""


def connect(settings: Settings, service: str) -> Any:
    """Return the client of the service, with the credentials that the settings name."""
    from google.api_core.client_options import ClientOptions  # noqa: PLC0415 - takes a second and 150 MB
    from google.cloud import compute_v1  # noqa: PLC0415

    from volplane_gce_pd.credentials import credentials_for  # noqa: PLC0415

    credentials = credentials_for(settings)
    universe = getattr(credentials, "universe_domain", None)
    options = ClientOptions(api_endpoint=settings.endpoint or None, universe_domain=universe)
    return repeating_paths(getattr(compute_v1, service)(credentials=credentials, client_options=options))


def repeating_paths(client: Any) -> Any:
    """Make a new client send each field in `paths` of `update` as a parameter of its own; returns the client.

    That is what the API takes (discovery document of compute v1), while Google's message has one text for all of them.
    """
    session = client.transport._session  # noqa: SLF001 - there is no public way in
    patch = session.patch

    def patch_repeating(url: str, *, params: Sequence[tuple[str, str]], **arguments: Any) -> Any:
        each = [(name, part) for name, value in params for part in (value.split(",") if name == "paths" else [value])]
        return patch(url, params=each, **arguments)

    session.patch = patch_repeating
    return client


class ComputeClient:
    """Calls of Compute Engine in one project, over clients that are made once, at the first call. Safe for threads."""

    def __init__(self, settings: Settings, connect_to: Connect = connect) -> None:
        self._settings = settings
        self._connect = connect_to
        self._clients: dict[str, Any] = {}
        self._connecting = threading.Lock()

    def call(self, method: Method, **fields: Any) -> Any:
        """Make the call and return its message; of a method that lists, the first page.

        fields: of the request message; the project, where it is another one than the driver's. Raises GceError for
        every error of Google, of the credentials or of the network. Nothing is repeated here.
        """
        with measured("compute", str(method)):
            return self._called(method, fields)

    def _called(self, method: Method, fields: Mapping[str, Any]) -> Any:
        try:
            from google.cloud import compute_v1  # noqa: PLC0415 - takes a second and 150 MB

            kind = getattr(compute_v1, _REQUESTS[method])
            # Before version 2026-09-01 of the API, a place that does not answer failed the list unless this was asked.
            part = {"return_partial_success": True} if "return_partial_success" in kind.meta.fields else {}
            request = kind({"project": self._settings.project, **part, **fields})
            result = self._function(method)(request, retry=None, timeout=_TIMEOUT_SECONDS)
            return next(iter(result.pages)) if method.lists else result
        except Exception as error:
            failure = _gce_error(method, error)
            if failure.code == NO_CREDENTIALS or failure.status == 401:
                # The default chain reads its files once: the next call reads what stands there then.
                with self._connecting:
                    self._clients.clear()
            raise failure from error

    def pages(self, method: Method, **fields: Any) -> Iterator[Any]:
        """Yield every page of a method that lists. Raises GceError."""
        token = ""
        while True:
            page = self.call(method, **fields, page_token=token) if token else self.call(method, **fields)
            yield page
            token = page.next_page_token
            if not token:
                return

    def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        with self._connecting:
            for client in self._clients.values():
                client.transport.close()
            self._clients.clear()

    def _function(self, method: Method) -> Callable[..., Any]:
        service, _, name = method.partition(".")
        snake = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
        client = self._client(f"{service[0].upper()}{service[1:]}Client")
        function: Callable[..., Any] = getattr(client, f"{snake}_unary" if method.mutates else snake)
        return function

    def _client(self, service: str) -> Any:
        client = self._clients.get(service)
        if client is not None:
            return client
        with self._connecting:
            if service not in self._clients:
                self._clients[service] = self._connect(self._settings, service)
            return self._clients[service]


def _gce_error(method: Method, error: Exception) -> GceError:
    """Translate an exception of the client library, of google-auth or of requests; raise any other one."""
    from google.api_core.exceptions import GoogleAPICallError  # noqa: PLC0415
    from google.auth.exceptions import GoogleAuthError, TransportError  # noqa: PLC0415
    from google.protobuf.json_format import ParseError  # noqa: PLC0415
    from requests.exceptions import RequestException  # noqa: PLC0415

    text = " ".join(str(error).split())
    if isinstance(error, GoogleAPICallError):
        status = int(error.code or 0)
        message = _REQUEST_LINE.sub("", str(error.message or text))
        return GceError(method, _reason(error) or f"HTTP {status}", message, status)
    if isinstance(error, TransportError):
        return GceError(method, NOT_SENT, f"no token could be fetched: {text}")
    if isinstance(error, GoogleAuthError):
        return GceError(method, NO_CREDENTIALS, text)
    if isinstance(error, RequestException):
        return GceError(method, NOT_SENT if _never_sent(error) else NO_ANSWER, f"{type(error).__name__}: {text}")
    if isinstance(error, ParseError):
        return GceError(method, NO_ANSWER, f"the answer cannot be read: {text}")
    if isinstance(error, ValueError | TypeError) and type(error).__module__ == "builtins":
        return GceError(method, "invalid", text)
    raise error


def _reason(error: Any) -> str:
    """Return the reason in the body of an HTTP error, as in `error.errors[].reason`; "" if there is none."""
    for each in error.errors or ():
        reason = each.get("reason") if isinstance(each, Mapping) else getattr(each, "code", None)
        if reason:
            return str(reason)
    return ""


_UNCONNECTED = ("NewConnectionError", "NameResolutionError", "ConnectTimeout", "SSLError", "ProxyError")


def _never_sent(error: BaseException) -> bool:
    """Return whether the chain of causes says that there was no connection."""
    seen: BaseException | None = error
    while seen is not None:
        if any(name in type(seen).__name__ or name in str(seen) for name in _UNCONNECTED):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
