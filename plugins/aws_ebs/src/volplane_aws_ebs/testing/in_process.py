"""FakeEC2 in the process: boto3 clients whose requests go to a FakeEC2 instead of a socket.

Requests pass through botocore (validation, serialization, signing, parsing, errors) up to its event `before-send`,
whose handler returns the response. Nothing waits, so virtual time can be used.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import boto3
from botocore.awsrequest import AWSResponse
from botocore.config import Config
from botocore.exceptions import ConnectionClosedError, EndpointConnectionError

from volplane_aws_ebs.testing.fake import FakeEC2
from volplane_aws_ebs.testing.server import Exchange


class InProcess:
    """Makes boto3 clients on a fake, one per service: pass it to `AwsEbsBackend(options, connect_to=InProcess(fake))`.

    The clients do not retry, because botocore would wait in real time. Safe for threads; backends may share one.
    """

    def __init__(self, fake: FakeEC2, *, access_key: str = "AKIATEST") -> None:
        self._fake = fake
        self._access_key = access_key
        self._clients: dict[str, Any] = {}
        self._lock = threading.Lock()

    def __call__(self, _settings: object) -> Callable[[str, int], Any]:
        """Return what makes the client of a service, as `volplane_aws_ebs.api.Connect` gives it."""
        return lambda service, _attempts: self.client(service)

    def client(self, service: str = "ec2") -> Any:
        """Return the client of "ec2" or "sts"."""
        with self._lock:
            if service not in self._clients:
                self._clients[service] = self._made(service)
            return self._clients[service]

    def _made(self, service: str) -> Any:
        # botocore would put the words of its user agent together for each request, a tenth of its time.
        config = Config(retries={"mode": "standard", "total_max_attempts": 1}, user_agent="volplane-testing")
        key = {"aws_access_key_id": self._access_key, "aws_secret_access_key": self._access_key}
        with _creating:
            client = _session().client(service, region_name=self._fake.behaviour.region, config=config, **key)
        intercept(client, self._fake)
        return client


_creating = threading.Lock()


@cache
def _session() -> Any:
    """Return one session for all clients: loading the service models takes 0.1 s. Sessions are not safe for threads."""
    return boto3.Session()


def intercept(client: Any, fake: FakeEC2) -> None:
    """Let the fake answer all further requests of any boto3 client."""
    exchange = Exchange(fake)

    def before_send(request: Any, **_kwargs: Any) -> AWSResponse:
        body = request.body.decode() if isinstance(request.body, bytes) else request.body
        headers = {str(key).lower(): _text(value) for key, value in request.headers.items()}
        message = exchange.answer(body, headers)
        if message.closed:
            raise EndpointConnectionError(endpoint_url=request.url)
        if message.lost:
            raise ConnectionClosedError(endpoint_url=request.url)
        return AWSResponse(request.url, message.status, {"content-type": message.content_type}, _Raw(message.body))

    client.meta.events.register(f"before-send.{client.meta.service_model.service_id.hyphenize()}", before_send)


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


class _Raw:
    """A response body that is complete."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self, *_args: Any, **_kwargs: Any) -> Iterator[bytes]:
        yield self._body
