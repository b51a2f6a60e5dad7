"""FakeEC2 over HTTP, on loopback: the protocol of EC2, and the two actions of STS that drivers call."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

from volplane_aws_ebs.testing.fake import FakeEC2, Reply
from volplane_aws_ebs.testing.faults import EC2Error
from volplane_aws_ebs.testing.query import QueryProtocol

__all__ = ["Exchange", "FakeEC2Server", "Message"]

_CREDENTIAL = re.compile(r"Credential=([^/,\s]+)/\d{8}/([^/]+)/(\w+)/aws4_request")
_STS_VERSION = "2011-06-15"
_ROLE_SECONDS = 3_600.0
_MAX_FIELDS = 20_000


@dataclass(frozen=True, slots=True)
class Message:
    """A response. lost: none is sent after the request was served. closed: the connection ends before the request."""

    status: int = 200
    body: bytes = b""
    lost: bool = False
    closed: bool = False


class Exchange:
    """From request bodies to responses, over any transport. Safe for threads."""

    def __init__(self, fake: FakeEC2) -> None:
        self._fake = fake
        self._protocol = QueryProtocol()
        self._numbers = itertools.count(1)

    def answer(self, body: str, headers: Mapping[str, str]) -> Message:
        """The response. body: the form. headers: with lower-case names."""
        request_id = f"00000000-0000-4000-8000-{next(self._numbers):012d}"
        try:
            form = dict(parse_qsl(body, keep_blank_values=True, strict_parsing=True, max_num_fields=_MAX_FIELDS))
        except ValueError:
            return self._error_message(EC2Error("InvalidRequest", "The body is not a form"), request_id)
        signed = _CREDENTIAL.search(headers.get("authorization", ""))
        access_key, region = (signed[1], signed[2]) if signed else ("", "")
        if form.get("Version") == _STS_VERSION:
            return self._sts(form, request_id)
        if signed and region != self._fake.behaviour.region:
            message = f"Credential should be scoped to a valid region: {self._fake.behaviour.region}, not {region}."
            return self._error_message(EC2Error("AuthFailure", message), request_id)
        return self._ec2(form, access_key, request_id)

    def _ec2(self, form: Mapping[str, str], access_key: str, request_id: str) -> Message:
        action = form.get("Action", "")
        try:
            params = self._protocol.parameters(action, form)
        except EC2Error as error:
            return self._error_message(error, request_id)
        reply: Reply = self._fake.request(action, params, access_key=access_key)
        if reply.lost or reply.closed:
            return Message(lost=reply.lost, closed=reply.closed)
        if reply.error is not None:
            return self._error_message(reply.error, request_id)
        return Message(body=self._protocol.result(action, reply.result or {}, request_id))

    def _error_message(self, error: EC2Error, request_id: str) -> Message:
        return Message(error.status, self._protocol.error(error, request_id))

    # --- STS ----------------------------------------------------------------------------------------------------

    def _sts(self, form: Mapping[str, str], request_id: str) -> Message:
        action = form.get("Action", "")
        self._fake.calls[f"sts:{action}"] += 1
        if action == "AssumeRole":
            result = self._assumed(form)
        elif action == "DecodeAuthorizationMessage":
            result = f"<DecodedMessage>{escape(_decoded(form.get('EncodedMessage', '')))}</DecodedMessage>"
        else:
            error = f"<Error><Type>Sender</Type><Code>InvalidAction</Code><Message>{escape(action)}</Message></Error>"
            return Message(400, f"<ErrorResponse>{error}<RequestId>{request_id}</RequestId></ErrorResponse>".encode())
        metadata = f"<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata>"
        xml = f"<{action}Result>{result}</{action}Result>{metadata}"
        return Message(body=f"<{action}Response>{xml}</{action}Response>".encode())

    def _assumed(self, form: Mapping[str, str]) -> str:
        """Credentials whose key id is ASIA and the name of the role."""
        role, session = form.get("RoleArn", ""), form.get("RoleSessionName", "")
        end = datetime.now(UTC).timestamp() + _ROLE_SECONDS
        expires = datetime.fromtimestamp(end, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        key = "ASIA" + re.sub(r"\W", "", role.rpartition("/")[2]).upper()
        return (
            f"<Credentials><AccessKeyId>{escape(key)}</AccessKeyId><SecretAccessKey>secret</SecretAccessKey>"
            f"<SessionToken>token</SessionToken><Expiration>{expires}</Expiration></Credentials>"
            f"<AssumedRoleUser><Arn>{escape(role)}/{escape(session)}</Arn>"
            "<AssumedRoleId>AROA:x</AssumedRoleId></AssumedRoleUser>"
        )


def _decoded(encoded: str) -> str:
    """The encoded messages of the fake are the name of the refused action."""
    action = encoded or "ec2:Unknown"
    principal = {"arn": "arn:aws:iam::123456789012:user/test"}
    return json.dumps({"allowed": False, "explicitDeny": False, "context": {"principal": principal, "action": action}})


_MAX_CONNECTIONS = 128
_MAX_BODY = 4 << 20
_IDLE_SECONDS = 60.0


class FakeEC2Server:
    """Serves a FakeEC2 under `url` until `close`; also a context manager. The fake needs a clock that runs.

    port: 0 = any free port. At most 128 connections at once, with a thread each; more wait to be accepted.
    """

    def __init__(self, fake: FakeEC2, *, port: int = 0) -> None:
        self.fake = fake
        self._server = _Server(("127.0.0.1", port), Exchange(fake))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True, name="fake-ec2")
        self._thread.start()

    @property
    def url(self) -> str:
        """For `endpoint_url` of boto3, and for the options `endpoint` and `sts_endpoint` of the driver."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        """Stop serving and close every connection."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], exchange: Exchange) -> None:
        self.exchange = exchange
        self._free = threading.Semaphore(_MAX_CONNECTIONS)
        self._open: set[socket.socket] = set()
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._free.acquire()
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        try:
            super().shutdown_request(request)
        finally:
            self._free.release()

    def server_close(self) -> None:
        for request in list(self._open):
            with contextlib.suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that close their connection."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_SECONDS
    server: _Server
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > _MAX_BODY:
            self._send(Message(413 if length.isdigit() else 411))
            self.close_connection = True
            return
        body = self.rfile.read(int(length)).decode("utf-8", "replace")
        message = self.server.exchange.answer(body, {key.lower(): value for key, value in self.headers.items()})
        if message.lost or message.closed:
            self.close_connection = True
            return
        self._send(message)

    def _send(self, message: Message) -> None:
        self.send_response(message.status)
        self.send_header("Content-Type", "text/xml;charset=UTF-8")
        self.send_header("Content-Length", str(len(message.body)))
        self.end_headers()
        self.wfile.write(message.body)
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class calls it so
        """Do not log."""
