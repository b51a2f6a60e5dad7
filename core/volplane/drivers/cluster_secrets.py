"""Reads the Kubernetes Secrets that driver options refer to, before a driver starts and before each probe."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from http import HTTPStatus

from volplane.errors import ApiError, ApiNotFound, BackendError, PermissionDenied, Unavailable
from volplane.kube import objects
from volplane.kube.client import Client
from volplane.kube.kinds import SECRETS
from volplane.secret import Secret, SecretPlace

__all__ = ["ClusterSecrets"]


class ClusterSecrets:
    """Reads Secrets from the API server. Keeps no values: `volplane.secret.Secret` does."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def refresh(self, named: Mapping[str, Secret]) -> None:
        """Set the present values of the Kubernetes Secrets in `named` (option -> secret). Reads each object once.

        Raises Unavailable or PermissionDenied naming option and Secret; the earlier value is then kept.
        """
        read: dict[str, objects.Secret] = {}
        for option, secret in named.items():
            if secret.place is not SecretPlace.KUBERNETES:
                continue
            if secret.where not in read:
                try:
                    read[secret.where] = await self._client.get(SECRETS, secret.where)
                except ApiError as error:
                    raise _unreadable(option, secret, error) from None
            secret.give(_value(option, secret, read[secret.where].data or {}))


def _unreadable(option: str, secret: Secret, error: ApiError) -> BackendError:
    if isinstance(error, ApiNotFound):
        return Unavailable(f"{option}: Secret {secret.where} does not exist; create it with the key {secret.key}")
    if error.status == HTTPStatus.FORBIDDEN:
        return PermissionDenied(
            f"{option}: Secret {secret.where} may not be read; `volplane manifests --config` prints the Role that "
            "allows it"
        )
    return Unavailable(f"{option}: Secret {secret.where} cannot be read: {error}")


def _value(option: str, secret: Secret, data: Mapping[str, str]) -> str:
    if secret.key not in data:
        keys = ", ".join(sorted(data)) or "none"
        raise Unavailable(f"{option}: Secret {secret.where} has no key {secret.key}; its keys: {keys}")
    try:
        return base64.b64decode(data[secret.key], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise Unavailable(f"{option}: key {secret.key} of Secret {secret.where} is no UTF-8 text") from None
