"""Calls of EC2 and STS through boto3, and the errors that they end with."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Protocol

from volplane_aws_ebs.settings import Settings

__all__ = ["NOT_SENT", "NO_ANSWER", "NO_CREDENTIALS", "AwsRefusal", "Call", "Connect", "Gateway", "Line", "connect"]


class Call(StrEnum):
    """An action of EC2, or of STS where it says so."""

    ATTACH_VOLUME = "AttachVolume"
    CREATE_SNAPSHOT = "CreateSnapshot"
    CREATE_TAGS = "CreateTags"
    CREATE_VOLUME = "CreateVolume"
    DELETE_SNAPSHOT = "DeleteSnapshot"
    DELETE_VOLUME = "DeleteVolume"
    DESCRIBE_AVAILABILITY_ZONES = "DescribeAvailabilityZones"
    DESCRIBE_INSTANCES = "DescribeInstances"
    DESCRIBE_INSTANCE_TYPES = "DescribeInstanceTypes"
    DESCRIBE_SNAPSHOTS = "DescribeSnapshots"
    DESCRIBE_VOLUMES = "DescribeVolumes"
    DESCRIBE_VOLUMES_MODIFICATIONS = "DescribeVolumesModifications"
    DETACH_VOLUME = "DetachVolume"
    MODIFY_VOLUME = "ModifyVolume"
    DECODE_AUTHORIZATION_MESSAGE = "DecodeAuthorizationMessage"
    """Of STS; without the right to it, messages stay encoded."""
    ASSUME_ROLE = "AssumeRole"
    """Of STS, with the credentials of the default chain; only with the option `role_arn`."""

    @property
    def mutates(self) -> bool:
        """Whether it changes something in EC2."""
        return not self.startswith(("Describe", "Decode", "Assume"))


NO_ANSWER = "NoAnswer"
"""Code of our own: the request was sent and no usable answer came; it may have been done."""
NOT_SENT = "NotSent"
"""Code of our own: no connection; the request cannot have been done."""
NO_CREDENTIALS = "NoCredentials"
"""Code of our own: the default chain has no credentials, or the role cannot be assumed."""


class AwsRefusal(Exception):
    """A call that gave no result. code, message: AWS's own, or one of the codes of this module."""

    def __init__(self, call: Call, code: str, message: str) -> None:
        super().__init__(f"{call}: {code}: {message}")
        self.call = call
        self.code = code
        self.message = message


_CONNECT_SECONDS = 5
_READ_SECONDS = 20
_ATTEMPTS = 2
"""Within the SDK, for connections that died idle; what else is to be tried again is decided by volplane."""
_CONNECTIONS = 32
_METHODS: Mapping[Call, str] = {
    call: "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in call)[1:] for call in Call
}
_NOT_SENT = ("EndpointConnectionError", "ConnectTimeoutError", "ProxyConnectionError", "SSLError", "NoRegionError")
_CREDENTIALS = ("Credential", "Token", "Login", "ProfileNotFound", "ConfigNotFound", "MetadataRetrieval")


class Line(Protocol):
    """A connection to one service of AWS, as a client of boto3 offers it: one method for each call."""

    def close(self) -> None: ...


Connect = Callable[[Settings, str], Line]
"""Makes the client of a service ("ec2" or "sts") for these settings."""


def connect(settings: Settings, service: str) -> Line:
    """The client of boto3 with the credentials that the settings name."""
    from botocore.config import Config  # noqa: PLC0415 - 0.15 s, which `volplane plugins` need not pay

    from volplane_aws_ebs.credentials import session_for  # noqa: PLC0415

    config = Config(
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
        max_pool_connections=_CONNECTIONS,
        tcp_keepalive=True,
    )
    sts = {"config": config, "endpoint_url": settings.sts_endpoint or None}
    options = sts if service == "sts" else {"config": config, "endpoint_url": settings.endpoint or None}
    line: Line = session_for(settings, sts).client(service, **options)
    return line


class Gateway:
    """Calls of EC2 and STS over clients that are made once, at the first call. Safe for threads."""

    def __init__(self, settings: Settings, connect_to: Connect = connect) -> None:
        self._settings = settings
        self._connect = connect_to
        self._lines: dict[str, Line] = {}
        self._opening = threading.Lock()

    def call(self, call: Call, **parameters: Any) -> Mapping[str, Any]:
        """Make the call and return its result. Raises AwsRefusal, and nothing else for what AWS or the network do."""
        service = "sts" if call is Call.DECODE_AUTHORIZATION_MESSAGE else "ec2"
        try:
            method = getattr(self._line(service), _METHODS[call])
            result: Mapping[str, Any] = method(**parameters)
        except Exception as error:
            raise _refusal(call, error) from error
        return result

    def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        with self._opening:
            for line in self._lines.values():
                line.close()
            self._lines.clear()

    def _line(self, service: str) -> Line:
        line = self._lines.get(service)
        if line is not None:
            return line
        with self._opening:
            if service not in self._lines:
                self._lines[service] = self._connect(self._settings, service)
            return self._lines[service]


def _refusal(call: Call, error: Exception) -> AwsRefusal:
    """Without an import of botocore: its errors are told by their names, an answer by its `response`."""
    answered = getattr(error, "response", None)
    if isinstance(answered, Mapping) and isinstance(answered.get("Error"), Mapping):
        asked = getattr(error, "operation_name", call)
        code = str(answered["Error"].get("Code", "Unknown"))
        message = str(answered["Error"].get("Message", ""))
        if asked == Call.ASSUME_ROLE and call is not Call.ASSUME_ROLE:
            return AwsRefusal(call, NO_CREDENTIALS, f"AssumeRole: {message} ({code})")
        return AwsRefusal(call, code, message)
    name = type(error).__name__
    if not type(error).__module__.startswith(("botocore", "boto3", "urllib3")):
        raise error
    text = " ".join(str(error).split())
    if name in _NOT_SENT:
        return AwsRefusal(call, NOT_SENT, text)
    if any(part in name for part in _CREDENTIALS):
        return AwsRefusal(call, NO_CREDENTIALS, text)
    if name == "ParamValidationError":
        return AwsRefusal(call, "InvalidParameterValue", text)
    return AwsRefusal(call, NO_ANSWER, f"{name}: {text}")
