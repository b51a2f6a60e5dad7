"""FakeEC2 over HTTP, on loopback: the protocol of EC2, and the three actions of STS that drivers call."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

from volplane_aws_ebs.testing.fake import FakeEC2
from volplane_aws_ebs.testing.faults import EC2Error
from volplane_aws_ebs.testing.query import QueryProtocol
from volplane_testing.cloud import CloudFailure, FakeCloudServer, HttpRequest, HttpResponse, Reply
from volplane_testing.disks import DiskDirectory

_XML = "text/xml;charset=UTF-8"

_CREDENTIAL = re.compile(r"Credential=([^/,\s]+)/\d{8}/([^/]+)/(\w+)/aws4_request")
_STS_VERSION = "2011-06-15"
_ROLE_SECONDS = 3_600.0
_MAX_FIELDS = 20_000


class Exchange:
    """From request bodies to responses, over any transport. Safe for threads."""

    def __init__(self, fake: FakeEC2) -> None:
        self._fake = fake
        self._protocol = QueryProtocol()
        self._numbers = itertools.count(1)

    def answer(self, body: str, headers: Mapping[str, str]) -> HttpResponse:
        """Return the response. body: the form. headers: with lower-case names."""
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

    def _ec2(self, form: Mapping[str, str], access_key: str, request_id: str) -> HttpResponse:
        action = form.get("Action", "")
        try:
            params = self._protocol.parameters(action, form)
        except EC2Error as error:
            return self._error_message(error, request_id)
        reply: Reply = self._fake.request(action, params, caller=access_key)
        if reply.lost or reply.closed:
            return HttpResponse(lost=reply.lost, closed=reply.closed)
        if reply.error is not None:
            return self._error_message(reply.error, request_id)
        return HttpResponse(content_type=_XML, body=self._protocol.result(action, reply.result or {}, request_id))

    def _error_message(self, error: CloudFailure, request_id: str) -> HttpResponse:
        return HttpResponse(error.status, self._protocol.error(error, request_id), _XML)

    # --- STS ----------------------------------------------------------------------------------------------------

    def _sts(self, form: Mapping[str, str], request_id: str) -> HttpResponse:
        action = form.get("Action", "")
        self._fake.calls[f"sts:{action}"] += 1
        roles, role = self._fake.behaviour.roles, form.get("RoleArn", "")
        if action == "AssumeRole" and roles is not None and roles.get(role) != form.get("ExternalId", ""):
            text = f"You are not authorized to perform: sts:AssumeRole on resource: {escape(role)}"
            error = f"<Error><Type>Sender</Type><Code>AccessDenied</Code><Message>{text}</Message></Error>"
            return HttpResponse(403, f"<ErrorResponse>{error}</ErrorResponse>".encode(), _XML)
        if action in ("AssumeRole", "AssumeRoleWithWebIdentity"):
            result = self._assumed(form)
        elif action == "DecodeAuthorizationMessage":
            result = f"<DecodedMessage>{escape(_decoded(form.get('EncodedMessage', '')))}</DecodedMessage>"
        else:
            error = f"<Error><Type>Sender</Type><Code>InvalidAction</Code><Message>{escape(action)}</Message></Error>"
            return HttpResponse(
                400, f"<ErrorResponse>{error}<RequestId>{request_id}</RequestId></ErrorResponse>".encode(), _XML
            )
        metadata = f"<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata>"
        xml = f"<{action}Result>{result}</{action}Result>{metadata}"
        return HttpResponse(content_type=_XML, body=f"<{action}Response>{xml}</{action}Response>".encode())

    def _assumed(self, form: Mapping[str, str]) -> str:
        """Return credentials that have ASIA and the name of the role as key id."""
        role, session = form.get("RoleArn", ""), form.get("RoleSessionName", "")
        end = datetime.now(UTC).timestamp() + _ROLE_SECONDS
        expires = datetime.fromtimestamp(end, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        key = "ASIA" + re.sub(r"\W", "", role.rpartition("/")[2]).upper()
        return (
            f"<Credentials><AccessKeyId>{escape(key)}</AccessKeyId><SecretAccessKey>HUSH{escape(key)}</SecretAccessKey>"
            f"<SessionToken>FwoHUSH/{escape(key)}+0=</SessionToken><Expiration>{expires}</Expiration></Credentials>"
            f"<AssumedRoleUser><Arn>{escape(role)}/{escape(session)}</Arn>"
            "<AssumedRoleId>AROA:x</AssumedRoleId></AssumedRoleUser>"
        )


def _decoded(encoded: str) -> str:
    """Decode a message of the fake: it is the name of the refused action."""
    action = encoded or "ec2:Unknown"
    principal = {"arn": "arn:aws:iam::123456789012:user/test"}
    return json.dumps({"allowed": False, "explicitDeny": False, "context": {"principal": principal, "action": action}})


class FakeEC2Server(FakeCloudServer):
    """Serves a FakeEC2 under `url`, which is also for the options `endpoint` and `sts_endpoint` of the driver.

    Until `close`; also a context manager. The fake needs a clock that runs. port: 0 = any free port. disks: shows every
    volume under the instances that it is attached to, for pods of `volplane dev --disks`; a path is that of the
    directory for them.
    """

    def __init__(self, fake: FakeEC2, *, port: int = 0, disks: DiskDirectory | Path | None = None) -> None:
        self.fake = fake
        exchange = Exchange(fake)
        shown = DiskDirectory(disks) if isinstance(disks, Path) else disks

        if shown is not None:
            fake.contents = shown

        def answer(request: HttpRequest) -> HttpResponse:
            answered = exchange.answer(request.body.decode("utf-8", "replace"), request.headers)
            if shown is not None:
                shown.show({**dict.fromkeys(fake.snapshots, ()), **fake.attached()})
            return answered

        super().__init__(answer, port=port)
