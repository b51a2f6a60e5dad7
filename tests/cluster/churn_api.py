"""The API server as the churn sees it: JSON over HTTP, with nothing of the client that is under test.

A call is made again until the server answers it, because the server is killed now and then. So a create that answers
"already exists" and a delete that answers "not found" count as done.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from kubernetes import config
from kubernetes.client import Configuration

Json = dict[str, Any]

CORE = "/api/v1"
STORAGE = "/apis/storage.k8s.io/v1"
LEASES = "/apis/coordination.k8s.io/v1/namespaces"
CALL_SECONDS = 15.0
PAUSE = 0.3
STARTING = 30.0
"""Seconds in which a server may refuse what it will not refuse later."""
PATIENCE = 300.0
"""Seconds after which a server that answers nothing fails the run."""


class Refused(Exception):
    """The server refused a call."""

    def __init__(self, status: int, told: str) -> None:
        super().__init__(f"{status}: {told}")
        self.status = status


@dataclass(frozen=True, slots=True)
class Api:
    session: aiohttp.ClientSession
    url: str

    async def get(self, path: str) -> Json | None:
        """Return the object; None if it is not there."""
        try:
            return await self._call("GET", path)
        except Refused as refused:
            if refused.status == 404:
                return None
            raise

    async def list(self, path: str) -> list[Json]:
        items: list[Json] = (await self._call("GET", path))["items"]
        return items

    async def create(self, path: str, body: Json) -> Json:
        """Create the object, or return the one of this name that is there."""
        try:
            return await self._call("POST", path, body)
        except Refused as refused:
            if refused.status != 409:
                raise
        found = await self.get(f"{path}/{body['metadata']['name']}")
        assert found is not None, f"{path}: {body['metadata']['name']} went at once"
        return found

    async def patch(self, path: str, body: Json) -> Json:
        """Merge this into the object. Raises Refused, with 404 if it is gone and 409 if its version is another one."""
        return await self._call("PATCH", path, body)

    async def delete(self, path: str, body: Json | None = None) -> None:
        try:
            await self._call("DELETE", path, body)
        except Refused as refused:
            if refused.status != 404:
                raise

    async def _call(self, method: str, path: str, body: Json | None = None) -> Json:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        headers = {"Content-Type": "application/merge-patch+json" if method == "PATCH" else "application/json"}
        data = json.dumps(body) if body is not None else None
        while True:
            try:
                async with self.session.request(method, self.url + path, data=data, headers=headers) as response:
                    answer: Json = json.loads(await response.read())
                    if response.status < 300:
                        return answer
                    told = str(answer.get("message"))
                    passing = response.status in {401, 403} and loop.time() < begun + STARTING
                    if not passing and response.status != 429 and response.status < 500:
                        raise Refused(response.status, told)
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                told = f"{type(error).__name__}: {error}"
            if loop.time() > begun + PATIENCE:
                raise Refused(0, f"{method} {path}: no answer in {PATIENCE:g} s: {told}")
            await asyncio.sleep(PAUSE)


def connect(kubeconfig: Path) -> Api:
    """Return the cluster of a kubeconfig. Called in the loop; close `session` at the end."""
    settings = Configuration()
    config.load_kube_config(str(kubeconfig), client_configuration=settings)
    context: ssl.SSLContext | bool = True
    if settings.host.startswith("https:"):
        context = ssl.create_default_context(cafile=settings.ssl_ca_cert)
        if settings.cert_file:
            context.load_cert_chain(settings.cert_file, settings.key_file)
    headers: Mapping[str, str] = {}
    # The name of the key differs between versions of the package.
    if token := settings.api_key.get("BearerToken") or settings.api_key.get("authorization"):
        headers = {"Authorization": token}
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=context, limit=20),
        timeout=aiohttp.ClientTimeout(total=CALL_SECONDS),
        headers=headers,
        trust_env=False,
    )
    return Api(session, settings.host.rstrip("/"))
