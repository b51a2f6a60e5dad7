"""FakeCompute in the process: clients of google-cloud-compute whose requests go to a FakeCompute instead of a socket.

Requests pass through the client library (messages, transcoding, errors) and through requests, up to its transport
adapter, which returns the response. Nothing waits, so virtual time can be used.
"""

from __future__ import annotations

import threading
from http.client import RemoteDisconnected
from typing import Any
from urllib.parse import urlsplit

from google.api_core.client_options import ClientOptions
from google.auth.credentials import AnonymousCredentials
from requests import PreparedRequest, Response
from requests.adapters import BaseAdapter
from requests.exceptions import ConnectionError as RequestsConnectionError
from requests.structures import CaseInsensitiveDict

from volplane_gce_pd.api import repeating_paths
from volplane_gce_pd.testing.fake import FakeCompute
from volplane_testing.cloud import HttpRequest


class InProcess:
    """Makes clients on a fake: pass it to `GcePdBackend(options, connect_to=InProcess(fake))`.

    Safe for threads; backends may share one.
    """

    def __init__(self, fake: FakeCompute, *, token: str = "") -> None:
        """token: that all calls carry; "" = none."""
        self._adapter = _Adapter(fake)
        self._token = token
        self._clients: dict[str, Any] = {}
        self._lock = threading.Lock()

    def __call__(self, _settings: object, service: str) -> Any:
        """Return the client of a service, as `volplane_gce_pd.api.Connect` gives it."""
        return self.client(service)

    def client(self, service: str = "DisksClient") -> Any:
        """Return the client of a service, such as "InstancesClient"."""
        with self._lock:
            if service not in self._clients:
                from google.cloud import compute_v1  # noqa: PLC0415 - takes a second and 150 MB

                options = ClientOptions(api_endpoint="https://compute.fake.invalid")
                client = getattr(compute_v1, service)(credentials=AnonymousCredentials(), client_options=options)
                session = client.transport._session  # noqa: SLF001 - there is no public way in
                session.mount("https://", self._adapter)
                if self._token:
                    session.headers["authorization"] = f"Bearer {self._token}"
                session.trust_env = False  # A sixth of the time of a request goes into looking for a proxy.
                self._clients[service] = repeating_paths(client)
            return self._clients[service]


class _Adapter(BaseAdapter):  # type: ignore[misc]
    def __init__(self, fake: FakeCompute) -> None:
        super().__init__()
        self._fake = fake

    def send(self, request: PreparedRequest, *_args: Any, **_kwargs: Any) -> Response:
        url = urlsplit(str(request.url))
        body = request.body or b""
        answer = self._fake.answer(
            HttpRequest(
                str(request.method),
                f"{url.path}?{url.query}" if url.query else url.path,
                {key.lower(): str(value) for key, value in request.headers.items()},
                body.encode() if isinstance(body, str) else bytes(body),
            )
        )
        if answer.closed:
            raise RequestsConnectionError("NewConnectionError: [Errno 111] Connection refused", request=request)
        if answer.lost:
            reason = RemoteDisconnected("Remote end closed connection without response")
            raise RequestsConnectionError("Connection aborted.", reason, request=request)
        response = Response()
        response.status_code = answer.status
        response.headers = CaseInsensitiveDict({"Content-Type": answer.content_type})
        response._content = answer.body  # noqa: SLF001 - as requests' own adapters do
        response.url, response.request = str(request.url), request
        return response

    def close(self) -> None:
        """Do nothing: there is nothing to close."""
