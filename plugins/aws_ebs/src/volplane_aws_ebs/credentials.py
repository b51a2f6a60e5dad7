"""The credentials that a driver's calls are signed with, as sessions of boto3. Imported at the first call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import boto3
from botocore.credentials import Credentials, RefreshableCredentials
from botocore.session import Session

from volplane_aws_ebs.settings import Settings


def session_for(settings: Settings, sts: Mapping[str, Any]) -> boto3.Session:
    """Return a session with the credentials of the options, else of the default chain; with `role_arn`, those of the
    role.

    sts: arguments for the client of STS that assumes the role.
    """
    session = boto3.Session(region_name=settings.region)
    if settings.access_key_id is not None:
        session = _session_with(settings, _OptionCredentials(settings))
    return _in_role(session, settings, sts) if settings.role_arn else session


class _OptionCredentials(Credentials):  # type: ignore[misc]
    """The keys that the options name, read again for every call, so that changed ones are used at once."""

    def __init__(self, settings: Settings) -> None:
        super().__init__("read when signing", "read when signing", method="volplane")
        self._settings = settings

    def get_frozen_credentials(self) -> Any:
        settings = self._settings
        if settings.access_key_id is None or settings.secret_access_key is None:
            raise AssertionError("checked by Settings")
        token = (settings.session_token.reveal() or None) if settings.session_token is not None else None
        keys = Credentials(settings.access_key_id.reveal(), settings.secret_access_key.reveal(), token)
        return keys.get_frozen_credentials()


def _session_with(settings: Settings, credentials: Credentials) -> boto3.Session:
    inner = Session()
    inner._credentials = credentials  # noqa: SLF001 - botocore has no public way in
    return boto3.Session(botocore_session=inner, region_name=settings.region)


def _in_role(session: boto3.Session, settings: Settings, sts: Mapping[str, Any]) -> boto3.Session:
    """Return a session with the credentials of the role, fetched again before they expire."""
    parameters = {"RoleArn": settings.role_arn, "RoleSessionName": settings.role_session_name}
    if settings.role_external_id:
        parameters["ExternalId"] = settings.role_external_id
    client = session.client("sts", **sts)

    def fetch() -> dict[str, str]:
        credentials = client.assume_role(**parameters)["Credentials"]
        return {
            "access_key": credentials["AccessKeyId"],
            "secret_key": credentials["SecretAccessKey"],
            "token": credentials["SessionToken"],
            "expiry_time": credentials["Expiration"].isoformat(),
        }

    fetched = RefreshableCredentials.create_from_metadata(fetch(), refresh_using=fetch, method="assume-role")
    return _session_with(settings, fetched)
