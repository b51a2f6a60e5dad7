"""Calls of EC2 and STS through boto3. The only module that uses its clients; boto3 is imported at the first call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Protocol

from volplane.cloud import NO_ANSWER, NO_CREDENTIALS, NOT_SENT, CloudError, measured
from volplane_aws_ebs.settings import Settings

_CONNECT_SECONDS = 5
_READ_SECONDS = 20
_ATTEMPTS = 2
"""Attempts of the SDK, for idle connections that were closed; all other retries are decided by volplane.

Only for actions whose repetition changes nothing (`Action.repeatable`).
"""
_CONNECTIONS = 32


class Action(StrEnum):
    """Every action that the driver calls, of EC2 unless it says STS. The IAM policy is derived from this list."""

    ATTACH_VOLUME = "AttachVolume"
    COPY_VOLUMES = "CopyVolumes"
    CREATE_SNAPSHOT = "CreateSnapshot"
    CREATE_SNAPSHOTS = "CreateSnapshots"
    CREATE_TAGS = "CreateTags"
    CREATE_VOLUME = "CreateVolume"
    DELETE_SNAPSHOT = "DeleteSnapshot"
    DELETE_TAGS = "DeleteTags"
    DELETE_VOLUME = "DeleteVolume"
    DESCRIBE_AVAILABILITY_ZONES = "DescribeAvailabilityZones"
    DESCRIBE_FAST_SNAPSHOT_RESTORES = "DescribeFastSnapshotRestores"
    DESCRIBE_IMAGES = "DescribeImages"
    DESCRIBE_INSTANCES = "DescribeInstances"
    DESCRIBE_INSTANCE_TYPES = "DescribeInstanceTypes"
    DESCRIBE_LOCKED_SNAPSHOTS = "DescribeLockedSnapshots"
    DESCRIBE_SNAPSHOTS = "DescribeSnapshots"
    DESCRIBE_VOLUMES = "DescribeVolumes"
    DESCRIBE_VOLUMES_MODIFICATIONS = "DescribeVolumesModifications"
    DESCRIBE_VOLUME_STATUS = "DescribeVolumeStatus"
    DETACH_VOLUME = "DetachVolume"
    ENABLE_FAST_SNAPSHOT_RESTORES = "EnableFastSnapshotRestores"
    LOCK_SNAPSHOT = "LockSnapshot"
    MODIFY_VOLUME = "ModifyVolume"
    DECODE_AUTHORIZATION_MESSAGE = "DecodeAuthorizationMessage"
    """Of STS; without the right to it, messages stay encoded."""
    ASSUME_ROLE = "AssumeRole"
    """Of STS, with the credentials of the default chain; only with the option `role_arn`."""

    @property
    def mutates(self) -> bool:
        """Return whether it changes something in EC2."""
        return not self.startswith(("Describe", "Decode", "Assume"))

    @property
    def repeatable(self) -> bool:
        """Return whether two calls with the same parameters leave what one leaves.

        CreateVolume and CopyVolumes have a client token. AttachVolume, CreateSnapshot(s) and ModifyVolume have none
        (Amazon EC2 Developer Guide, "Ensuring idempotency in Amazon EC2 API requests"): if the answer to a first call
        is lost, a second one is refused, creates another snapshot, or uses up one of the volume's changes of the day.
        """
        return self not in (
            Action.ATTACH_VOLUME,
            Action.CREATE_SNAPSHOT,
            Action.CREATE_SNAPSHOTS,
            Action.MODIFY_VOLUME,
        )


_METHODS: Mapping[Action, str] = {
    action: "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in action)[1:] for action in Action
}
_NOT_SENT_ERRORS = (
    "EndpointConnectionError",
    "ConnectTimeoutError",
    "ProxyConnectionError",
    "SSLError",
    "NoRegionError",
)
_CREDENTIAL_ERRORS = ("Credential", "Token", "Login", "ProfileNotFound", "ConfigNotFound", "MetadataRetrieval")


class AwsError(CloudError):
    """A call that gave no result. code, message: from AWS, or one of the codes of this module."""

    def __init__(self, action: Action, code: str, message: str) -> None:
        super().__init__(action, code, message)
        self.action = action


class ServiceClient(Protocol):
    """A boto3 client of one service of AWS: one method for each action."""

    def close(self) -> None: ...


NewClient = Callable[[str, int], ServiceClient]
"""Makes the client of a service ("ec2" or "sts"). The number: attempts of the SDK at each call."""
Connect = Callable[[Settings], NewClient]
"""Reads the credentials that the settings name; all clients that are made then share them."""


def connect(settings: Settings) -> NewClient:
    """Return the clients of one session of boto3: a second session takes 20 MB and 0.1 s of CPU, and assumes the role
    again.
    """
    from botocore.config import Config  # noqa: PLC0415 - takes 0.15 s, which `volplane plugins` does not need

    from volplane_aws_ebs.credentials import session_for  # noqa: PLC0415

    def options(service: str, attempts: int) -> dict[str, Any]:
        config = Config(
            connect_timeout=_CONNECT_SECONDS,
            read_timeout=_READ_SECONDS,
            retries={"mode": "standard", "total_max_attempts": attempts},
            max_pool_connections=_CONNECTIONS,
            tcp_keepalive=True,
        )
        endpoint = settings.sts_endpoint if service == "sts" else settings.endpoint
        return {"config": config, "endpoint_url": endpoint or None}

    session = session_for(settings, options("sts", _ATTEMPTS))

    def new_client(service: str, attempts: int) -> ServiceClient:
        client: ServiceClient = session.client(service, **options(service, attempts))
        return client

    return new_client


class AwsClient:
    """Calls of EC2 and STS over boto3 clients that are made once, at the first call. Safe for threads.

    boto3 counts attempts by client, so the actions that may not be repeated have a client of their own.
    """

    def __init__(self, settings: Settings, connect_to: Connect = connect) -> None:
        self._settings = settings
        self._connect = connect_to
        self._new_client: NewClient | None = None
        self._clients: dict[tuple[str, int], ServiceClient] = {}
        self._connecting = threading.Lock()

    def call(self, action: Action, **parameters: Any) -> Mapping[str, Any]:
        """Make the call and return its result. Raises AwsError for every error of AWS or of the network."""
        with measured("ec2", str(action)):
            return self._called(action, parameters)

    def _called(self, action: Action, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        service = "sts" if action is Action.DECODE_AUTHORIZATION_MESSAGE else "ec2"
        try:
            method = getattr(self._client(service, _ATTEMPTS if action.repeatable else 1), _METHODS[action])
            result: Mapping[str, Any] = method(**parameters)
        except Exception as error:
            raise _aws_error(action, error) from error
        return result

    def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        with self._connecting:
            for client in self._clients.values():
                client.close()
            self._clients.clear()
            self._new_client = None

    def _client(self, service: str, attempts: int) -> ServiceClient:
        key = (service, attempts)
        client = self._clients.get(key)
        if client is not None:
            return client
        with self._connecting:
            if self._new_client is None:
                self._new_client = self._connect(self._settings)
            if key not in self._clients:
                self._clients[key] = self._new_client(service, attempts)
            return self._clients[key]


def _aws_error(action: Action, error: Exception) -> AwsError:
    """Translate an exception of botocore, known by its name and `response`, so that botocore is not imported."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping) and isinstance(response.get("Error"), Mapping):
        called = getattr(error, "operation_name", action)
        code = str(response["Error"].get("Code", "Unknown"))
        message = str(response["Error"].get("Message", ""))
        if called == Action.ASSUME_ROLE and action is not Action.ASSUME_ROLE:
            return AwsError(action, NO_CREDENTIALS, f"AssumeRole: {message} ({code})")
        return AwsError(action, code, message)
    name = type(error).__name__
    if isinstance(error, OSError) and error.filename is not None:
        # Of a provider of credentials: the token of a web identity or of a pod identity is a file.
        return AwsError(action, NO_CREDENTIALS, f"{error.filename}: {error.strerror}")
    if not type(error).__module__.startswith(("botocore", "boto3", "urllib3")):
        raise error
    text = " ".join(str(error).split())
    if name in _NOT_SENT_ERRORS:
        return AwsError(action, NOT_SENT, text)
    if any(part in name for part in _CREDENTIAL_ERRORS):
        return AwsError(action, NO_CREDENTIALS, text)
    if name == "ParamValidationError":
        return AwsError(action, "InvalidParameterValue", text)
    return AwsError(action, NO_ANSWER, f"{name}: {text}")
