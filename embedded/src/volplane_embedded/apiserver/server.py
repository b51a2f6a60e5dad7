"""The API server without sockets: handles requests and opens watches and logs."""

from __future__ import annotations

import logging
import random as random_module
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime

import msgspec

from volplane_embedded.apiserver import responses
from volplane_embedded.apiserver.admission import Admission, Webhook
from volplane_embedded.apiserver.custom_kinds import CustomKinds
from volplane_embedded.apiserver.decoding import decode
from volplane_embedded.apiserver.deletion import Deletion
from volplane_embedded.apiserver.discovery import Discovery
from volplane_embedded.apiserver.errors import StatusError, bad_request
from volplane_embedded.apiserver.execution import ExecRequest, ExecSource, exec_request
from volplane_embedded.apiserver.kinds import CROSS_NAMESPACE, GRANTS_GROUP
from volplane_embedded.apiserver.kinds import resources as all_resources
from volplane_embedded.apiserver.lists import Lists
from volplane_embedded.apiserver.namespace_lifecycle import INITIAL, NamespaceLifecycle
from volplane_embedded.apiserver.openapi import OpenApi
from volplane_embedded.apiserver.options import DeleteOptions
from volplane_embedded.apiserver.pod_subresources import LogSource, bind, evict, open_log
from volplane_embedded.apiserver.portforward import ForwardSource, forwarded_ports
from volplane_embedded.apiserver.quota_admission import QUOTA_PLUGIN, QuotaAdmission
from volplane_embedded.apiserver.requests import Answer, Query, Request, Routes, is_watch, misused, wrong_method
from volplane_embedded.apiserver.resources import Json, Resource
from volplane_embedded.apiserver.responses import negotiate
from volplane_embedded.apiserver.reviews import REVIEWS, review
from volplane_embedded.apiserver.scale import SCALE, scale_of, write_scale
from volplane_embedded.apiserver.selectors import select
from volplane_embedded.apiserver.storage import ObjectStorage, storage_of, unwritable
from volplane_embedded.apiserver.store import Snapshot, Store
from volplane_embedded.apiserver.tables import table
from volplane_embedded.apiserver.users import CALLER, Users, authorize
from volplane_embedded.apiserver.verbs import Verbs, Written
from volplane_embedded.apiserver.watch import Watch, Watches

_log = logging.getLogger(__name__)

Parameters = Sequence[tuple[str, str]] | Mapping[str, str]
"""Decoded query parameters."""

_HEALTH = frozenset({"/healthz", "/livez", "/readyz", "/healthz/ping", "/livez/ping", "/readyz/ping"})


class ApiServer:
    """A Kubernetes-compatible API server for development and tests; not for production.

    now: aware UTC times. With a seeded `random` and a virtual clock all results are reproducible. Not thread-safe: one
    event loop owns it. history: number of changes kept per resource for watches and pages. watch_buffer: number of
    events that may wait for a slow watcher before its watch is closed.
    """

    def __init__(
        self,
        *,
        now: Callable[[], datetime],
        store: Store | None = None,
        resources: Sequence[Resource] | None = None,
        disabled_admission: frozenset[str] = frozenset(),
        random: random_module.Random | None = None,
        history: int = 16_384,
        watch_buffer: int = 10_000,
        without_bookmarks: frozenset[str] = frozenset({"events"}),
        without: Collection[str] = (),
        feature_gates: Collection[str] = (),
    ) -> None:
        """disabled_admission: names of plugins, as in the stock flag. without: API groups whose
        CustomResourceDefinitions the server does not begin with. without_bookmarks: plurals of kinds whose watches
        get none; a stock server has no watch cache for events, and sends none for quiet kinds if its etcd reports no
        progress. feature_gates: those that are on, and off by default; with CrossNamespaceVolumeDataSource the server
        begins with ReferenceGrants, too. Raises ValueError for an unknown name of a
        plugin or a gate.
        """
        if unknown := sorted(set(feature_gates) - {CROSS_NAMESPACE}):
            raise ValueError(f"feature gate {unknown[0]!r} is not known here; {CROSS_NAMESPACE} is")
        served = tuple(resources) if resources is not None else all_resources(now, feature_gates)
        self.store = store if store is not None else Store(history=history)
        self.log_source: LogSource | None = None
        """Set by the kubelet, which runs the containers."""
        self.exec_source: ExecSource | None = None
        """Set by the kubelet, too."""
        self.forward_source: ForwardSource | None = None
        """Set by whoever can connect to ports of pods."""
        self.users = Users()
        """Of those who listen for this server, the users by their tokens."""
        source = random if random is not None else random_module.SystemRandom()
        self._objects = ObjectStorage(self.store, now, source, served, self._changed_storage)
        self._custom = CustomKinds(self._objects, self._delete)
        self._resources: Sequence[Resource] = ()
        self._namespaces = NamespaceLifecycle(self._objects, self._delete, self._custom.served)
        self._deletion = Deletion(self._objects, self._namespaces)
        admission = Admission(self._storage_classes, disabled_admission)
        limited = None if QUOTA_PLUGIN in disabled_admission else _quotas(served)
        self._verbs = Verbs(self._objects, self._namespaces, admission, QuotaAdmission(self._objects, limited))
        self.webhooks: list[Webhook] = admission.webhooks
        """Admission webhooks, to be added by whoever runs the server."""
        self._lists = Lists(self._objects)
        self._renderer = responses.Renderer(self._table)
        self._watches = Watches(self._objects, self._renderer, watch_buffer, without_bookmarks)
        self._open: dict[Watch, Resource] = {}
        """In the order in which they were opened: they are ended in that order, too."""
        # Without the gate nothing asks for ReferenceGrants; on a cluster they come with the Gateway API.
        self._begin(without if CROSS_NAMESPACE in feature_gates else {*without, GRANTS_GROUP})

    def _serve(self) -> None:
        """Serve what the definitions of now define, and end the watches of what is not served any more."""
        served = (*self._objects.resources, *self._custom.served())
        if served == self._resources:
            return
        self._resources = served
        self._routes, self._discovery, self._openapi = Routes(served), Discovery(served), OpenApi(served)
        kept = {storage_of(resource) for resource in served}
        for watch in [watch for watch, resource in self._open.items() if storage_of(resource) not in kept]:
            watch.finish()

    def _changed_storage(self, resource: Resource) -> None:
        if resource.schema is not None:
            self._custom.changed(resource)
            if not resource.custom:
                self._serve()

    def _begin(self, without: Collection[str]) -> None:
        """Create what a server begins with, and continue deletions that a former process did not finish."""
        for name in INITIAL:
            if self._namespaces.resource is not None and self.store.get("namespaces", name) is None:
                body = b'{"metadata":{"name":"%b"}}' % name.encode()
                self._verbs.create(Request(self._namespaces.resource, "", "", "", Query({}), {}), body)
        self._custom.install(without)
        self._serve()
        self._namespaces.resume()
        self._custom.resume()
        self.store.flush()

    def _delete(self, resource: Resource, namespace: str, name: str) -> None:
        self._deletion.by_name(resource, namespace, name)

    def _storage_classes(self) -> Iterator[Json]:
        for resource in self._objects.resources:
            if resource.plural == "storageclasses":
                yield from (stored.decode() for stored in self.store.all(storage_of(resource)))

    def _table(self, resource: Resource, objects: Sequence[Json], metadata: Json, include: str) -> Json:
        return table(resource, objects, metadata, include, now=self._objects.now())

    # Requests

    def handle(self, method: str, path: str, query: Parameters, headers: Mapping[str, str], body: bytes) -> Answer:
        """Handle any request but a watch or a log. Errors are responses too. A write is durable on return."""
        answer = self._answered(method, path, query, headers, body)
        try:
            self.store.flush()
        except OSError as why:
            return responses.error_answer(unwritable(why))
        return answer

    async def answer(
        self, method: str, path: str, query: Parameters, headers: Mapping[str, str], body: bytes
    ) -> Answer:
        """Answer as `handle` does, but writes of the same turn of the event loop share one sync to disk."""
        answer = self._answered(method, path, query, headers, body)
        try:
            await self.store.settled()
        except OSError as why:
            return responses.error_answer(unwritable(why))
        return answer

    def _answered(self, method: str, path: str, query: Parameters, headers: Mapping[str, str], body: bytes) -> Answer:
        try:
            return self._handle(method, path, Query(query), _lower(headers), body)
        except StatusError as failure:
            return responses.error_answer(failure)
        except RecursionError:
            return responses.error_answer(bad_request("the body is nested too deep"))
        except Exception:  # noqa: BLE001 - a bug becomes a 500; the log has the trace
            _log.exception("%s %s failed: this is a bug of the embedded API server", method, path)
            return responses.error_answer(
                StatusError(500, "InternalError", "Internal error occurred: see the server's log")
            )

    def watch(self, path: str, query: Parameters, headers: Mapping[str, str]) -> Watch | Answer:
        """Open a watch (GET with watch=true). Needs a running event loop. A refused watch is an Answer.

        So is an object: it is watched by a field selector on its collection, not by its path.
        """
        try:
            request = self._routes.find(path, Query(query), _lower(headers))
            authorize(CALLER.get(), "GET", path, Query(query), request)
            if request is None:
                return self._document("GET", path, _lower(headers))
            if request.subresource or (request.name and "/watch/" not in path):
                # Only collections are watched. On the old paths an object is a collection of one.
                return self._get(request, opens_watch=False)
            fields = [request.query.text("fieldSelector")]
            if request.name:
                fields.append(f"metadata.name={request.name}")
            selectors = ",".join(part for part in fields if part)
            selection = select(request.resource, request.query.text("labelSelector"), selectors)
            watch = self._watches.open(request, selection, negotiate(request.headers.get("accept", "")))
        except StatusError as failure:
            return responses.error_answer(failure)
        self._open[watch] = request.resource
        watch.on_close(lambda: self._forget(watch))
        return watch

    def _forget(self, watch: Watch) -> None:
        self._open.pop(watch, None)

    def log(self, path: str, query: Parameters, headers: Mapping[str, str]) -> AsyncIterator[bytes] | Answer:
        """Open the output of a container (GET of pods/log). A refused request is an Answer."""
        try:
            request = self._request(path, Query(query), _lower(headers))
            authorize(CALLER.get(), "GET", path, request.query, request)
            return open_log(self._objects, request, self.log_source)
        except StatusError as failure:
            return responses.error_answer(failure)

    def executed(self, path: str, query: Parameters, headers: Mapping[str, str]) -> ExecRequest | Answer:
        """Return which command is to run in a container (pods/exec). A refused request is an Answer."""
        asked = list(query.items()) if isinstance(query, Mapping) else query
        try:
            request = self._request(path, Query(query), _lower(headers))
            authorize(CALLER.get(), "POST", path, request.query, request)
            return exec_request(self._objects, request, self.exec_source, asked)
        except StatusError as failure:
            return responses.error_answer(failure)

    def forwarded(self, path: str, query: Parameters, headers: Mapping[str, str]) -> list[int] | Answer:
        """Return the ports of a pod that are asked for (GET of pods/portforward). A refused request is an Answer."""
        asked = list(query.items()) if isinstance(query, Mapping) else query
        try:
            request = self._request(path, Query(query), _lower(headers))
            authorize(CALLER.get(), "GET", path, request.query, request)
            return forwarded_ports(self._objects, request, self.forward_source, asked)
        except StatusError as failure:
            return responses.error_answer(failure)

    @property
    def open_watches(self) -> int:
        """How many watches are open."""
        return len(self._open)

    def end_watches(self) -> None:
        """Close all open watches, as a stopping server does."""
        for watch in tuple(self._open):
            watch.close()

    def restore(self, snapshot: Snapshot, *, version: int = 0) -> None:
        """Go back to what `store.snapshot` gave, as a server whose etcd was restored from a backup. All watches end.

        version: where versions go on; 0: at that of the backup. Raises ValueError for a durable store.
        """
        self.store.restore(snapshot, version=version)
        self.end_watches()
        self._serve()

    def close(self) -> None:
        """End every watch and close the store."""
        self.end_watches()
        try:
            self.store.close()
        except OSError as why:
            _log.error("what was written last, and never acknowledged, is lost: %s", why)

    def _request(self, path: str, query: Query, headers: Mapping[str, str]) -> Request:
        request = self._routes.find(path, query, headers)
        if request is None:
            raise StatusError(404, "NotFound", "the server could not find the requested resource")
        return request

    def _handle(self, method: str, path: str, query: Query, headers: Mapping[str, str], body: bytes) -> Answer:
        if path in REVIEWS:
            return review(method, path, body, headers.get("content-type", ""), self.users)
        request = self._routes.find(path, query, headers)
        authorize(CALLER.get(), method, path, query, request)
        everywhere = request is not None and request.resource.namespaced and not request.namespace
        if request is None or (request.resource.custom and everywhere and method not in ("GET", "HEAD")):
            return self._document(method, path, headers)
        match method:
            case "GET" | "HEAD":
                return self._get(request, opens_watch=is_watch(path, query))
            case "POST":
                return self._post(request, body)
            case "PUT" | "PATCH" if request.subresource == SCALE:
                return responses.json_answer(200, write_scale(self._verbs, request, method, body))
            case "PUT" if self._changes(request) or request.subresource == "finalize":
                return self._changed(request, self._verbs.update(request, body), 200)
            case "PATCH" if self._changes(request):
                return self._changed(request, self._verbs.patch(request, body), 200)
            case "DELETE" if not request.subresource:
                return self._deleted(request, body)
        raise misused(method, request)

    def _changes(self, request: Request) -> bool:
        return bool(request.name) and request.subresource in ("", "status")

    def _document(self, method: str, path: str, headers: Mapping[str, str]) -> Answer:
        if method not in ("GET", "HEAD"):
            if path.startswith("/apis/") and path.count("/") > 3:
                return responses.text_answer(404, "404 page not found\n")
            raise wrong_method()
        if path.rstrip("/") in _HEALTH:
            return responses.text_answer(200, "ok")
        accept = headers.get("accept", "")
        found = self._discovery.document(path, accept)
        published = (msgspec.json.encode(found[0]), found[1]) if found else self._openapi.document(path, accept)
        if published is None:
            return responses.text_answer(404, "404 page not found\n")
        body, content_type = published
        return Answer(200, {"Content-Type": content_type, "Vary": "Accept"}, body)

    def _get(self, request: Request, *, opens_watch: bool) -> Answer:
        if request.subresource == SCALE:
            return responses.json_answer(200, scale_of(self._objects.find(request).decode()))
        if request.subresource not in ("", "status"):
            raise wrong_method()
        if opens_watch:
            raise bad_request("a watch is opened by ApiServer.watch")
        form = negotiate(request.headers.get("accept", ""))
        include = request.query.text("includeObject")
        if request.name:
            return _json(200, self._renderer.one(request.resource, self._lists.get(request), form, include))
        rows, meta = self._lists.list(request)
        return _json(200, self._renderer.many(request.resource, rows, meta, form, include))

    def _post(self, request: Request, body: bytes) -> Answer:
        if request.subresource == "binding":
            bind(self._objects, request, body)
            return responses.json_answer(201, _success(201))
        if request.subresource == "eviction":
            evict(self._objects, self._deletion, request, body)
            return responses.json_answer(201, _success(201))
        if request.subresource == "token":
            return self._token(request, body)
        named = request.name and not request.resource.custom  # Where a custom kind is created, the name is passed over.
        if named or request.subresource or (request.resource.namespaced and not request.namespace):
            raise misused("POST", request)
        self._custom.admit(request.resource, "")
        return self._changed(request, self._verbs.create(request, body), 201)

    def _token(self, request: Request, body: bytes) -> Answer:
        """Answer a TokenRequest about a service account. Its token does not expire."""
        self._objects.find(request)
        value = decode(body, request.headers.get("content-type", ""))
        if not isinstance(value, dict) or not isinstance(spec := value.get("spec") or {}, dict):
            raise bad_request("the object provided is unrecognized (must be of type TokenRequest)")
        token = self.users.account_token(request.namespace, request.name, spec)
        status = {"token": token, "expirationTimestamp": "2100-01-01T00:00:00Z"}
        about = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": {"name": request.name}}
        return responses.json_answer(201, {**about, "spec": spec, "status": status})

    def _changed(self, request: Request, written: Written, status: int) -> Answer:
        form = negotiate(request.headers.get("accept", ""))
        body = self._renderer.one(request.resource, written.data, form, request.query.text("includeObject"))
        answer = _json(status, body)
        if written.warnings:
            answer.headers["Warning"] = responses.warning_header(written.warnings)
        return answer

    def _deleted(self, request: Request, body: bytes) -> Answer:
        resource = request.resource
        options = DeleteOptions.read(body, request.query, request.headers.get("content-type", ""))
        form = negotiate(request.headers.get("accept", ""))
        if request.name:
            deleted = self._deletion.one(request, options)
            if resource.returns_deleted or not deleted.gone:
                return _json(200, self._renderer.one(resource, deleted.data, form))
            details = {"name": request.name, "group": resource.group, "kind": resource.plural, "uid": deleted.uid}
            return responses.json_answer(200, _success(0, {key: value for key, value in details.items() if value}))
        if (resource.namespaced and not request.namespace) or resource is self._namespaces.resource:
            raise wrong_method()
        rows, meta = self._lists.list(request)
        self._deletion.collection(resource, rows, options)
        meta["resourceVersion"] = str(self.store.version)
        return _json(200, self._renderer.many(resource, rows, meta, form))


def _quotas(served: Sequence[Resource]) -> Resource | None:
    return next((resource for resource in served if resource.plural == "resourcequotas"), None)


def _lower(headers: Mapping[str, str]) -> Mapping[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _json(status: int, body: bytes) -> Answer:
    return Answer(status, {"Content-Type": "application/json"}, body)


def _success(code: int, details: Json | None = None) -> Json:
    status: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if details:
        status["details"] = details
    if code:
        status["code"] = code
    return status
