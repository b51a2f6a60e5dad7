"""A cluster whose controller runs in a pod, as far as anybody can see, with users who have rights of their own."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from integration.certificates import Authority
from integration.controller_process import Site, running_process
from volplane.cli.controller_client import Access
from volplane.controller.http_access import DIRECTORY_VARIABLE
from volplane.kube.client import Client
from volplane.kube.kinds import CLAIMS, LEASES, NAMESPACES, PODS, Kind
from volplane.kube.objects import KubeObject
from volplane.process import process
from volplane.process.duties import ALL_CONTROLLERS
from volplane_embedded.apiserver.http import serve
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.apiserver.users import Access as Wanted
from volplane_embedded.apiserver.users import User
from volplane_embedded.inprocess import InProcessTransport

__all__ = ["ADMIN", "OURS", "POD", "Led", "led_cluster", "may_ask"]

OURS = "volplane-system"
POD = "volplane-7d9f-x2x4z"
ADMIN = "token-of-the-admin"
ACCOUNTS = Kind("v1", "ServiceAccount", "serviceaccounts", True, KubeObject)


def may_ask(wanted: Wanted) -> bool:
    """What everybody needs who asks the leader: to find it, and to forward its port."""
    return wanted.namespace == OURS and wanted in {
        Wanted("get", "coordination.k8s.io", "leases", OURS, "volplane"),
        Wanted("get", "", "pods", OURS, POD),
        Wanted("get", "", "pods/portforward", OURS, POD),
        Wanted("create", "", "pods/portforward", OURS, POD),
    }


class Led:
    def __init__(self, site: Site, directory: Path, url: str, authority: Authority) -> None:
        self.site = site
        self.url = url
        self.forwarded: list[tuple[str, str, int]] = []
        """The ports to which a way was opened."""
        self._directory, self._authority = directory, authority

    @property
    def port(self) -> int:
        return int(self.site.url.rpartition(":")[2])

    def user(self, name: str, may: Callable[[Wanted], bool] = may_ask, **of: Any) -> Access:
        """A user of these rights, who has a token."""
        token = f"token-of-{name}"
        self.site.server.users.by_token[token] = User(name, ("system:authenticated",), may)
        return self.access(name, {"token": token}, **of)

    def certified(self, name: str, may: Callable[[Wanted], bool]) -> Access:
        """One who has a certificate alone."""
        self.site.server.users.by_token[f"unknown-{name}"] = User(name, ("system:authenticated",), may)
        certificate, key = self._authority.issue(name)
        return self.access(name, {"client-certificate": str(certificate), "client-key": str(key)})

    def access(self, name: str, user: dict[str, Any], *, namespace: str = "default") -> Access:
        config = {
            "clusters": [
                {"name": "c", "cluster": {"server": self.url, "certificate-authority": str(self._authority.file)}}
            ],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": name, "context": {"cluster": "c", "user": name, "namespace": namespace}}],
            "current-context": name,
        }
        file = self._directory / f"kubeconfig-of-{name}"
        file.write_text(yaml.safe_dump(config))
        return Access(kubeconfig=file)

    def admin(self) -> Access:
        return self.access("admin", {"token": ADMIN})

    async def connect(self, namespace: str, pod: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self.forwarded.append((namespace, pod, port))
        return await asyncio.open_connection("127.0.0.1", port)

    async def make_claim(self, namespace: str, name: str, **spec: Any) -> None:
        if await self.site.client.find(NAMESPACES, namespace) is None:
            await self.site.client.create(NAMESPACES, NAMESPACES.body(metadata={"name": namespace}))
        whole = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}, **spec}
        body = CLAIMS.body(metadata={"name": name, "namespace": namespace}, spec=whole)
        await self.site.client.create(CLAIMS, body)

    async def known(self, *keys: str) -> None:
        """Wait until the leader knows these claims."""

        def are() -> bool:
            plane = self.site.process.plane
            return plane is not None and all(plane.state.claims.get(key) is not None for key in keys)

        await self.site.until("they are known", are)

    async def rewrite_lease(self, **change: Any) -> None:
        """Write to the Lease what its holder would not; nobody takes it back for an hour."""
        change["spec"] = {"leaseDurationSeconds": 3600} | change.get("spec", {})
        await self.site.client.patch(LEASES, f"{OURS}/volplane", change)


@asynccontextmanager
async def led_cluster(directory: Path, monkeypatch: pytest.MonkeyPatch, *, in_pod: bool = True) -> AsyncIterator[Led]:
    """Run it until the block ends. in_pod: no file of the leader's token is found on this machine."""
    server = ApiServer(now=lambda: datetime.now(UTC))
    authority = Authority(directory)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.file))
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_cert_chain(*authority.issue("server"))
    listener = await serve(server, port=0, token=ADMIN, tls=context)
    if in_pod:
        (directory / "namespace").write_text(OURS)
        monkeypatch.setattr(process, "_POD_NAMESPACE", directory / "namespace")
        monkeypatch.setattr("socket.gethostname", lambda: POD)
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(directory / "run"))
    client = Client(InProcessTransport(server))
    try:
        async with running_process(
            directory, frozenset(ALL_CONTROLLERS), server=server, identity=f"{POD}_12ab"
        ) as site:
            led = Led(site, directory, listener.url, authority)
            server.forward_source = led.connect
            if in_pod:
                monkeypatch.setenv(DIRECTORY_VARIABLE, str(directory / "elsewhere"))
                container = {"name": "volplane", "image": "volplane", "ports": [{"containerPort": led.port}]}
                spec = {"serviceAccountName": "volplane", "containers": [container]}
                await client.create(ACCOUNTS, ACCOUNTS.body(metadata={"name": "volplane", "namespace": OURS}))
                await client.create(PODS, PODS.body(metadata={"name": POD, "namespace": OURS}, spec=spec))
            yield led
    finally:
        await listener.close()
