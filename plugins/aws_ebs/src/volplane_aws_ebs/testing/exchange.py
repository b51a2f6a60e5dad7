"""One HTTP exchange with a FakeEC2, without saying how the bytes travel. Also the two calls of STS that drivers make."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

from volplane_aws_ebs.testing.core import FakeEC2, Reply
from volplane_aws_ebs.testing.query import QueryProtocol
from volplane_aws_ebs.testing.refusals import Refusal

__all__ = ["Exchange", "Message"]

_CREDENTIAL = re.compile(r"Credential=([^/,\s]+)/\d{8}/([^/]+)/(\w+)/aws4_request")
_STS_VERSION = "2011-06-15"
_ROLE_SECONDS = 3_600.0
_MOST_FIELDS = 20_000


@dataclass(frozen=True, slots=True)
class Message:
    """An answer. lost: none must be sent; closed: the connection must end as if the request had never arrived."""

    status: int = 200
    body: bytes = b""
    lost: bool = False
    closed: bool = False


class Exchange:
    """Turns request bodies into answers. Safe for threads."""

    def __init__(self, fake: FakeEC2) -> None:
        self._fake = fake
        self._protocol = QueryProtocol()
        self._numbers = itertools.count(1)

    def answer(self, body: str, headers: Mapping[str, str]) -> Message:
        """body: the form; headers: with lower-case names."""
        request_id = f"00000000-0000-4000-8000-{next(self._numbers):012d}"
        try:
            form = dict(parse_qsl(body, keep_blank_values=True, strict_parsing=True, max_num_fields=_MOST_FIELDS))
        except ValueError:
            return self._refused(Refusal("InvalidRequest", "The body is not a form"), request_id)
        signed = _CREDENTIAL.search(headers.get("authorization", ""))
        access_key, region = (signed[1], signed[2]) if signed else ("", "")
        if form.get("Version") == _STS_VERSION:
            return self._sts(form, request_id)
        if signed and region != self._fake.behaviour.region:
            message = f"Credential should be scoped to a valid region: {self._fake.behaviour.region}, not {region}."
            return self._refused(Refusal("AuthFailure", message), request_id)
        return self._ec2(form, access_key, request_id)

    def _ec2(self, form: Mapping[str, str], access_key: str, request_id: str) -> Message:
        action = form.get("Action", "")
        try:
            given = self._protocol.parameters(action, form)
        except Refusal as refusal:
            return self._refused(refusal, request_id)
        reply: Reply = self._fake.request(action, given, access_key=access_key)
        if reply.lost or reply.closed:
            return Message(lost=reply.lost, closed=reply.closed)
        if reply.refusal is not None:
            return self._refused(reply.refusal, request_id)
        return Message(body=self._protocol.result(action, reply.result or {}, request_id))

    def _refused(self, refusal: Refusal, request_id: str) -> Message:
        return Message(refusal.status, self._protocol.refusal(refusal, request_id))

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
        xml = f"<{action}Result>{result}</{action}Result><ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata>"
        return Message(body=f"<{action}Response>{xml}</{action}Response>".encode())

    def _assumed(self, form: Mapping[str, str]) -> str:
        """Credentials whose key id tells the role: ASIA and the name of the role."""
        role, session = form.get("RoleArn", ""), form.get("RoleSessionName", "")
        end = datetime.now(UTC).timestamp() + _ROLE_SECONDS
        expires = datetime.fromtimestamp(end, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        key = "ASIA" + re.sub(r"\W", "", role.rpartition("/")[2]).upper()
        return (
            f"<Credentials><AccessKeyId>{escape(key)}</AccessKeyId><SecretAccessKey>secret</SecretAccessKey>"
            f"<SessionToken>token</SessionToken><Expiration>{expires}</Expiration></Credentials>"
            f"<AssumedRoleUser><Arn>{escape(role)}/{escape(session)}</Arn><AssumedRoleId>AROA:x</AssumedRoleId></AssumedRoleUser>"
        )


def _decoded(encoded: str) -> str:
    """The fake's encoded messages are the action that was refused."""
    action = encoded or "ec2:Unknown"
    principal = {"arn": "arn:aws:iam::123456789012:user/test"}
    return json.dumps({"allowed": False, "explicitDeny": False, "context": {"principal": principal, "action": action}})
