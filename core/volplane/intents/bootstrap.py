"""What must exist before the first decision: our namespace, the sealing key, the cluster's id."""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import math
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from volplane._delays import PREPARE_FAILED
from volplane.errors import ApiConflict, ApiError, ApiForbidden, ApiNotFound, ApiUnavailable, ConfigurationError
from volplane.kube.client import Client
from volplane.kube.http.route import refused
from volplane.kube.kinds import NAMESPACES, SECRETS, Kind
from volplane.kube.objects import Secret
from volplane.state.naming import nodes_namespace
from volplane.state.records import Sealer

SEAL_SECRET = "volplane-seal"  # noqa: S105 - the name of a Secret, not a secret
_KEY = "key"

WARN_INTERVAL = 30.0
REFUSED_SECONDS = 10.0
"""How long credentials that are refused at the start are tried: the authenticator may be restarting."""

log = logging.getLogger(__name__)


async def ensure_namespace(client: Client, name: str, labels: Mapping[str, str] | None = None) -> None:
    """Create our namespace with these labels unless it exists, or this account may not read namespaces."""
    try:
        found = await client.find(NAMESPACES, name)
    except ApiForbidden:
        return
    if found is None:
        await _create_once(client, NAMESPACES, NAMESPACES.body(metadata={"name": name, "labels": dict(labels or {})}))


async def _create_once(client: Client, kind: Kind[Any], body: dict[str, Any]) -> None:
    try:
        await client.create(kind, body)
    except ApiError as error:
        if not error.already_exists:
            raise


async def find_sealer(
    client: Client, namespace: str, on_nodes: Collection[str] = (), *, make: bool = False
) -> Sealer | None:
    """Return the sealing key of Secret `volplane-seal`; without one make it, or return None.

    on_nodes: the drivers that processes of nodes serve, which have a key of their own. Raises ConfigurationError if the
    Secret holds no usable key: another key would void all intents.
    """
    key = f"{namespace}/{SEAL_SECRET}"
    secret = await client.find(SECRETS, key)
    if secret is None and make:
        fresh = base64.b64encode(secrets.token_bytes(32)).decode()
        body = SECRETS.body(
            metadata={"name": SEAL_SECRET, "namespace": namespace}, type="Opaque", data={_KEY: fresh}, immutable=True
        )
        await _create_once(client, SECRETS, body)
        secret = await client.get(SECRETS, key)
    nodes = await find_sealer(client, nodes_namespace(namespace), make=make) if on_nodes else None
    return None if secret is None else Sealer(_key_of(secret), namespace, nodes, on_nodes)


def _key_of(secret: Secret) -> bytes:
    text = (secret.data or {}).get(_KEY, "")
    try:
        key = base64.b64decode(text, validate=True)
    except binascii.Error:
        key = b""
    if len(key) < 16:
        raise ConfigurationError(
            f'secret {secret.key}: data["{_KEY}"] must be at least 16 bytes in base64; restore it, or delete '
            "the secret to have a new one made (open intents are then settled as unknown)"
        )
    return key


async def cluster_id_of(client: Client, configured: str | None) -> str:
    """Return the mark on our assets: as configured, else the uid of namespace kube-system."""
    if configured:
        return configured
    try:
        return (await client.get(NAMESPACES, "kube-system")).uid
    except (ApiNotFound, ApiConflict) as error:
        raise ConfigurationError(
            "the cluster has no namespace kube-system, whose uid marks our assets; set clusterId in the configuration"
        ) from error


@dataclass(slots=True, kw_only=True)
class Bootstrap:
    """Makes or reads what must exist, and waits for the API server."""

    client: Client = field(kw_only=False)
    namespace: str
    labels: Mapping[str, str] | None = None
    cluster_id: str | None = None
    on_node: bool = False
    """Whether the process serves a node: the central one makes the key, whatever the account of the nodes may do."""
    trouble: str = field(default="", init=False)
    """Why `run` is waiting; "" if it is not."""

    async def run(self, on_nodes: Collection[str] = ()) -> tuple[str, Sealer]:
        """Return cluster id and sealer; wait while there is no API server. Raises ConfigurationError."""
        loop = asyncio.get_running_loop()
        warned = -math.inf
        impatient = loop.time() + REFUSED_SECONDS
        while True:
            try:
                await ensure_namespace(self.client, self.namespace, self.labels)
                if on_nodes:
                    await ensure_namespace(self.client, nodes_namespace(self.namespace))
                cluster_id = await cluster_id_of(self.client, self.cluster_id)
                sealer = await find_sealer(self.client, self.namespace, on_nodes, make=not self.on_node)
                if sealer is None:
                    missing = f"the central process has not made Secret {self.namespace}/{SEAL_SECRET} yet"
                    raise ApiUnavailable(missing, status=HTTPStatus.NOT_FOUND)
            except ApiError as error:
                tired = error.status == HTTPStatus.UNAUTHORIZED and loop.time() >= impatient
                if not isinstance(error, ApiUnavailable) or tired:
                    # The credentials or rights have to be changed first.
                    if isinstance(error, ApiForbidden) or error.status == HTTPStatus.UNAUTHORIZED:
                        raise ConfigurationError(str(refused(self.client.server, error))) from error
                    why = f"the API server refuses what every start needs ({error.status}): {error}"
                    raise ConfigurationError(why) from error
                self.trouble = str(error)
                if loop.time() >= warned + WARN_INTERVAL:
                    warned = loop.time()
                    log.warning("waiting, trying again every %g s: %s", PREPARE_FAILED.first, error)
                await asyncio.sleep(PREPARE_FAILED.delay(asked=error.retry_after))
            else:
                self.trouble = ""
                return cluster_id, sealer
