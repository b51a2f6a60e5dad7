"""The in-process face: a boto3 client whose requests go to a FakeEC2 instead of to a socket.

They pass through botocore as real ones do (validation, serialization, signing, parsing, error handling) up to the event
before-send, where the answer is given. Nothing waits, so it can be used in virtual time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
from botocore.awsrequest import AWSResponse
from botocore.config import Config
from botocore.exceptions import ConnectionClosedError, EndpointConnectionError

from volplane_aws_ebs.testing.core import FakeEC2
from volplane_aws_ebs.testing.exchange import Exchange

__all__ = ["client_of", "enter"]


def client_of(fake: FakeEC2, *, service: str = "ec2", access_key: str = "AKIATEST") -> Any:
    """A boto3 client of "ec2" or "sts" on the fake. The SDK does not retry: its pauses would be real ones."""
    session = boto3.Session(
        aws_access_key_id=access_key, aws_secret_access_key=access_key, region_name=fake.behaviour.region
    )
    client = session.client(
        service, config=Config(retries={"mode": "standard", "total_max_attempts": 1}, tcp_keepalive=False)
    )
    enter(client, fake)
    return client


def enter(client: Any, fake: FakeEC2) -> None:
    """Let this client's requests be answered by the fake from now on."""
    exchange = Exchange(fake)

    def before_send(request: Any, **_kwargs: Any) -> AWSResponse:
        body = request.body.decode() if isinstance(request.body, bytes) else request.body
        headers = {str(key).lower(): _text(value) for key, value in request.headers.items()}
        message = exchange.answer(body, headers)
        if message.closed:
            raise EndpointConnectionError(endpoint_url=request.url)
        if message.lost:
            raise ConnectionClosedError(endpoint_url=request.url)
        return AWSResponse(request.url, message.status, {"content-type": "text/xml"}, _Raw(message.body))

    client.meta.events.register(f"before-send.{client.meta.service_model.service_id.hyphenize()}", before_send)


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


class _Raw:
    """A body that has already arrived."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self, *_args: Any, **_kwargs: Any) -> Iterator[bytes]:
        yield self._body
